//! Tokenizers and templates from folders and from GGUF files, whole and broken.

use std::path::Path;

use motet::text::{Chat, ChatTemplate, Message, TextCodec, TextError, Tokenizer};
use motet_text::GgufVocabulary;
use serde_json::{Value, json};

use crate::sentence_piece::sentence_piece;
use crate::vocabularies::{CHAT_ML, Folder, byte_level, tokenizer, tokenizer_json};

#[test]
fn folder_and_gguf_give_the_same_tokens() {
    let folder = Folder::new("same", &[
        ("tokenizer.json", tokenizer_json().to_string()),
        ("tokenizer_config.json", json!({
            "bos_token": "<s>", "eos_token": {"content": "<|im_end|>"}, "pad_token": null,
            "chat_template": [{"name": "tool_use", "template": "no"}, {"name": "default", "template": CHAT_ML}],
        }).to_string()),
    ]);
    let read = TextCodec::from_folder(&folder.0).expect("a whole folder");
    let built = TextCodec::from_gguf(&byte_level()).expect("whole");
    assert_eq!(read.end_tokens(), built.end_tokens());
    assert!(read.tokenizer().is_special(0), "named as bos_token");
    let text = "hello the 世界, <|im_start|> longer than its truncation";
    let tokens = built.encode_prompt(text).expect("spelled");
    assert_eq!(
        read.encode_prompt(text).expect("spelled"),
        [&[0], &tokens[..]].concat()
    );
    assert_eq!(
        read.encode_prompt(&format!("<s>{text}")).expect("spelled"),
        [&[0], &tokens[..]].concat()
    );
    assert_eq!(read.tokenizer().decode(&tokens).expect("known"), text);
    let chat = [Message::system("the"), Message::user("hello")].into();
    let tokens = read
        .encode_chat(&chat)
        .expect("the template takes any roles");
    assert_eq!(tokens, built.encode_chat(&chat).expect("the same template"));
    assert_eq!(
        tokens.iter().filter(|id| **id == 0).count(),
        1,
        "one begin token"
    );
}

#[test]
fn end_tokens_are_those_that_the_tokenizer_names() {
    let read = |name: &str, files: &[(&str, Value)]| {
        let mut all = vec![("tokenizer.json", tokenizer_json().to_string())];
        all.extend(files.iter().map(|(file, json)| (*file, json.to_string())));
        let folder = Folder::new(name, &all);
        let tokenizer = Tokenizer::from_folder(&folder.0).expect("whole");
        tokenizer.end_tokens().to_vec()
    };
    let named = ("tokenizer_config.json", json!({"eos_token": "<|im_end|>"}));
    let other = |text: &str| ("special_tokens_map.json", json!({"eos_token": text}));
    assert_eq!(read("ends-none", &[]), [0; 0]);
    assert_eq!(read("ends-named", std::slice::from_ref(&named)), [2]);
    assert_eq!(read("ends-older", &[other("<|im_end|>")]), [2]);
    assert_eq!(
        read("ends-both", &[named.clone(), other("<|im_start|>")]),
        [2, 1]
    );
    assert_eq!(read("ends-unknown", &[named, other("<none>")]), [2]);
    let gguf = GgufVocabulary {
        end: Some(0),
        end_of_turn: Some(2),
        end_of_message: Some(1),
        ..byte_level()
    };
    let built = Tokenizer::from_gguf(&gguf).expect("whole");
    assert_eq!(built.end_tokens(), [0, 2, 1]);
}

#[test]
fn tokens_that_end_a_turn_are_known_by_their_names() {
    let ends = |change: fn(&mut GgufVocabulary)| {
        let mut vocabulary = byte_level();
        vocabulary.end = None;
        change(&mut vocabulary);
        let tokenizer = Tokenizer::from_gguf(&vocabulary).expect("whole");
        tokenizer.end_tokens().to_vec()
    };
    let harmony = |vocabulary: &mut GgufVocabulary| {
        let names = ["<|return|>", "<|call|>", "<|end|>"];
        vocabulary.tokens.splice(..3, names.map(str::to_owned));
    };
    assert_eq!(ends(|_| {}), [2]);
    assert_eq!(
        ends(|v| v.token_types[2] = 1),
        [2],
        "converters write them as normal"
    );
    assert_eq!(ends(|v| v.tokens[2] = "</s>".into()), [2]);
    // A text that only looks like it: a tag of HTML.
    assert_eq!(
        ends(|v| {
            v.tokens[2] = "</s>".into();
            v.token_types[2] = 4;
        }),
        [0; 0]
    );
    assert_eq!(ends(harmony), [0, 1], "a message may follow another");
    assert_eq!(ends(|v| v.tokens[1] = "<|end|>".into()), [1, 2]);
}

#[test]
fn each_family_ends_a_turn_as_its_template_does() {
    let ends = |template: &str| {
        let vocabulary = GgufVocabulary {
            end: None,
            chat_template: Some(template.to_owned()),
            tokens: byte_level()
                .tokens
                .into_iter()
                .map(|t| t.replace("<|im_end|>", "<|x|>"))
                .collect(),
            ..byte_level()
        };
        let codec = TextCodec::from_gguf(&vocabulary).expect("whole");
        codec.end_tokens().to_vec()
    };
    let loops = |body: &str| format!("{{% for message in messages %}}{body}{{% endfor %}}");
    assert_eq!(ends(&loops("{{ message.content }}<|x|>")), [2]);
    assert_eq!(
        ends(&loops("{{ message.content | trim }}  \n<|x|><|im_start|>")),
        [2]
    );
    assert_eq!(ends(&loops("{{ message.content }} text<|x|>")), [0; 0]);
    assert_eq!(
        ends(&loops("{{ message.role }}<|x|>")),
        [0; 0],
        "it writes no answer"
    );
    assert_eq!(ends("{{ raise_exception('no') }}"), [0; 0]);
}

#[test]
fn broken_folder_is_rejected_by_name() {
    let check = |name: &str, files: &[(&str, String)], needles: &[&str]| {
        let folder = Folder::new(name, files);
        let error = TextCodec::from_folder(&folder.0).expect_err("broken");
        let message = error.to_string();
        for needle in needles {
            assert!(message.contains(needle), "{message} should say {needle}");
        }
    };
    let whole = || ("tokenizer.json", tokenizer_json().to_string());
    let config = |value: Value| ("tokenizer_config.json", value.to_string());
    check("empty", &[], &["tokenizer.json does not exist"]);
    check(
        "torn",
        &[("tokenizer.json", "{".into())],
        &["tokenizer.json is damaged"],
    );
    // Found by fuzzing: the file is cut off inside of its decoder.
    let cut = tokenizer_json().to_string();
    let decoder = cut.find("\"decoder\"").expect("it has one") + 30;
    check(
        "cut",
        &[("tokenizer.json", cut[..decoder].into())],
        &["tokenizer.json is damaged"],
    );
    // A name in it is no text.
    let strange = whole()
        .1
        .replacen("\"decoder\":{", "\"decoder\":{\"\\ud800\":1,", 1);
    check(
        "strange",
        &[("tokenizer.json", strange)],
        &["tokenizer.json is damaged", "line 1 column"],
    );
    let mut decoder = tokenizer_json();
    decoder["decoder"] = json!({"type": "WordPiece", "prefix": "##", "cleanup": true});
    check(
        "decoder",
        &[("tokenizer.json", decoder.to_string())],
        &["`decoder`", "WordPiece"],
    );
    let mut huge = tokenizer_json();
    huge["model"]["vocab"]["huge"] = json!(4_000_000_000u32);
    check(
        "huge",
        &[("tokenizer.json", huge.to_string())],
        &["model.vocab", "4000000000"],
    );
    check(
        "config",
        &[whole(), ("tokenizer_config.json", "[".into())],
        &["tokenizer_config.json is damaged"],
    );
    check(
        "special",
        &[whole(), config(json!({"eos_token": "</end>"}))],
        &["`eos_token`", "</end>"],
    );
    check(
        "template",
        &[whole(), config(json!({"chat_template": 7}))],
        &["`chat_template`", "7"],
    );
    check(
        "default",
        &[
            whole(),
            config(json!({"chat_template": [{"name": "x", "template": "y"}]})),
        ],
        &["`x`", "named `default`"],
    );
    check(
        "nameless",
        &[whole(), config(json!({"chat_template": [{"name": "x"}]}))],
        &["`chat_template`", "`name` and `template`"],
    );
    let syntax = ("chat_template.jinja", "a\n{% if %}".to_owned());
    check(
        "jinja",
        &[whole(), syntax],
        &["chat_template.jinja", "does not compile", "line 2"],
    );
    let model = |name: &'static str| (name, String::new());
    check(
        "tekken",
        &[model("tekken.json")],
        &["tokenizer.json does not exist", "tekken.json"],
    );
    check(
        "spm",
        &[model("tokenizer.model")],
        &["tokenizer.json does not exist", "SentencePiece"],
    );
}

#[test]
fn broken_vocabulary_is_rejected_by_key() {
    let check = |change: fn(&mut GgufVocabulary), needles: [&str; 2]| {
        for mut vocabulary in [byte_level(), sentence_piece()] {
            if vocabulary.model == "llama" && needles[0].ends_with(".pre") {
                continue;
            }
            vocabulary.merges.truncate(1);
            change(&mut vocabulary);
            let message = Tokenizer::from_gguf(&vocabulary)
                .expect_err("broken")
                .to_string();
            for needle in needles {
                assert!(message.contains(needle), "{message} should say {needle}");
            }
        }
    };
    check(
        |v| v.model = "bert".into(),
        ["tokenizer.ggml.model", "`bert`"],
    );
    check(
        |v| v.pre = Some("gemma4".into()),
        ["tokenizer.ggml.pre", "`gemma4`"],
    );
    check(|v| v.tokens.clear(), ["tokenizer.ggml.tokens", "0 tokens"]);
    check(
        |v| v.token_types.truncate(5),
        ["tokenizer.ggml.token_type", "5 values"],
    );
    check(
        |v| v.scores = vec![0.0; 3],
        ["tokenizer.ggml.scores", "3 values"],
    );
    check(
        |v| v.begin = Some(1 << 20),
        ["tokenizer.ggml.bos_token_id", "1048576"],
    );
    check(
        |v| v.end_of_turn = Some(u32::MAX),
        ["tokenizer.ggml.eot_token_id", "4294967295"],
    );
    check(
        |v| v.end_of_message = Some(1 << 30),
        ["tokenizer.ggml.eom_token_id", "1073741824"],
    );
    for (merge, needle) in [
        ("ab", "`ab` has no space"),
        ("x yz", "out of vocabulary"),
        ("", "``"),
    ] {
        let mut vocabulary = byte_level();
        vocabulary.merges.push(merge.into());
        let message = Tokenizer::from_gguf(&vocabulary)
            .expect_err("broken")
            .to_string();
        assert!(message.contains(needle), "{message} should say {needle}");
    }
}

#[test]
fn template_file_takes_precedence() {
    let config = json!({"chat_template": "config", "eos_token": "<e>"}).to_string();
    let folder = Folder::new(
        "first",
        &[
            ("tokenizer_config.json", config),
            ("chat_template.jinja", "file{{ eos_token }}".into()),
        ],
    );
    let text = |folder: &Path| {
        let template = ChatTemplate::from_folder(folder).expect("whole")?;
        Some(template.render(&Chat::default(), false).expect("plain"))
    };
    assert_eq!(text(&folder.0).as_deref(), Some("file<e>"));
    std::fs::remove_file(folder.0.join("chat_template.jinja")).expect("it was written");
    assert_eq!(text(&folder.0).as_deref(), Some("config"));
    std::fs::remove_file(folder.0.join("tokenizer_config.json")).expect("it was written");
    assert_eq!(text(&folder.0), None);
}

/// A conversation with tools has a template of its own, where the files have one by this name.
#[test]
fn tools_have_the_template_that_is_named_for_them() {
    let named = json!([{"name": "tool_use", "template": "tools"}, {"name": "rag", "template": "{{"},
                       {"name": "default", "template": "plain"}]);
    let config = json!({"chat_template": named}).to_string();
    let folder = Folder::new("named", &[("tokenizer_config.json", config)]);
    let check = |template: &ChatTemplate, expected: [&str; 2]| {
        let chat = Chat::from([Message::user("hello")]);
        let with_tools = chat.clone().variable("tools", json!([]));
        let without = chat.clone().variable("tools", json!(null));
        for (chat, expected) in [
            (chat, expected[0]),
            (with_tools, expected[1]),
            (without, expected[0]),
        ] {
            assert_eq!(template.render(&chat, true).expect("it renders"), expected);
        }
    };
    let read = || {
        ChatTemplate::from_folder(&folder.0)
            .expect("whole")
            .expect("one")
    };
    check(&read(), ["plain", "tools"]);
    // A file is the default, and a folder has the others.
    std::fs::write(folder.0.join("chat_template.jinja"), "file\r\n").expect("written");
    check(&read(), ["file", "file"]);
    let additional = folder.0.join("additional_chat_templates");
    std::fs::create_dir(&additional).expect("made");
    std::fs::write(additional.join("tool_use.jinja"), "file for tools\n").expect("written");
    check(&read(), ["file", "file for tools"]);
    let vocabulary = GgufVocabulary {
        chat_template: Some("plain".into()),
        tool_template: Some("tools".into()),
        ..byte_level()
    };
    let template = ChatTemplate::from_gguf(&vocabulary)
        .expect("whole")
        .expect("one");
    check(&template, ["plain", "tools"]);
}

#[test]
fn a_trial_shows_templates_that_cannot_be_rendered() {
    let check = |source: &str| ChatTemplate::new(source, []).expect("it compiles").check();
    check("{{ messages[0].content }}").expect("it renders");
    // Branches that the trial does not take, and one that only tools take.
    for (source, unknown) in [
        (
            "{% if tools %}{{ tools[0].function.name|wordwrap(9) }}{% endif %}",
            "wordwrap",
        ),
        ("{% macro f(x=1|none_such) %}{% endmacro %}", "none_such"),
        (
            "{% set x %}{% filter none_such %}{% endfilter %}{% endset %}",
            "none_such",
        ),
        (
            "{% for m in messages if m is odd_one %}{% endfor %}",
            "odd_one",
        ),
        (
            "{{ 1 if true else {'a': [(1, x is nothing)]}[x:1 is nothing](2, *y) }}",
            "nothing",
        ),
        (
            "{% if messages|length > 1 %}{{ tools[0].function.name + 1 }}{% endif %}",
            "str",
        ),
    ] {
        let error = check(source).expect_err(unknown);
        let is_named =
            matches!(&error, TextError::Template { what } if what.reveal().contains(unknown));
        assert!(is_named, "{source}: {error:?}");
    }
    let rejects = "{% if messages|length > 1 %}{{ raise_exception('no tools') }}{% endif %}";
    check(rejects).expect("a template may reject tools");
    check("{{ raise_exception('no questions') }}").expect_err("nothing is left");
    let error = check("{{ messages|unheard_of }}").expect_err("no such filter");
    assert!(matches!(&error, TextError::Template { what } if what.reveal().contains("unheard_of")));
    let vocabulary = GgufVocabulary {
        tool_template: Some("{{ tools|unheard_of }}".into()),
        ..byte_level()
    };
    let template = ChatTemplate::from_gguf(&vocabulary)
        .expect("whole")
        .expect("one");
    template.check().expect_err("no such filter");
}

#[test]
fn a_chat_needs_a_template() {
    let codec = TextCodec::new(tokenizer(), None);
    let error = codec
        .encode_chat(&[Message::user("hello")].into())
        .expect_err("no template");
    assert!(matches!(error, TextError::NoTemplate));
    assert!(codec.template().is_none());
}
