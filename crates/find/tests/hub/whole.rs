//! Downloads that succeed.

use std::fs;
use std::time::Duration;

use crate::loopback::{COMMIT, Fault, Manners, Stored};
use crate::{Case, GGUF, GGUF_BYTES, check_gguf, content, gguf};

#[test]
fn a_gguf_file_is_downloaded_once() {
    let case = Case::gguf("once");
    let mut stages = Vec::new();
    let found = case.finder.find("hf:org/small", |progress| {
        stages.push(format!("{progress:?}"))
    });
    let found = found.expect("the hub has it");
    check_gguf(&found);
    assert_eq!(
        found,
        case.repository().join("snapshots").join(COMMIT).join(GGUF)
    );
    assert!(stages[0].starts_with("Listing"), "{stages:?}");
    let last = format!("bytes: {GGUF_BYTES}, bytes_all: {GGUF_BYTES}");
    assert!(
        stages.iter().any(|stage| stage.contains(&last)),
        "{stages:?}"
    );
    assert!(
        stages
            .last()
            .is_some_and(|stage| stage.starts_with("Found")),
        "{stages:?}"
    );
    assert_eq!(
        fs::read_to_string(case.repository().join("refs/main"))
            .ok()
            .as_deref(),
        Some(COMMIT)
    );

    case.hub.requests();
    for name in [
        "hf:org/small",
        "hf:org/small:q8_0",
        &format!("hf:org/small:{GGUF}"),
    ] {
        assert_eq!(case.find(name).expect("it is in the cache"), found);
    }
    assert_eq!(case.hub.requests(), Vec::<String>::new());
}

#[test]
fn only_what_the_model_needs_is_downloaded() {
    let shards = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ];
    let index = format!(
        r#"{{"weight_map": {{"a": "{}", "b": "{}"}}}}"#,
        shards[0], shards[1]
    );
    let needed = [
        ("config.json", "{}"),
        ("generation_config.json", "{ }"),
        ("tokenizer.json", "{  }"),
        ("tokenizer_config.json", "{   }"),
        ("special_tokens_map.json", "{    }"),
        ("chat_template.jinja", "x"),
        ("additional_chat_templates/tool_use.jinja", "y"),
        ("chat_template.json", "{     }"),
        ("modules.json", "[]"),
        ("1_Pooling/config.json", "{      }"),
        ("model.safetensors.index.json", &index),
        (shards[0], "weights"),
        (shards[1], "more weights"),
    ];
    let other = [
        ("README.md", "read me"),
        ("pytorch_model.bin", "pickled"),
        ("consolidated.safetensors", "the same again"),
        ("modeling.py", "code"),
    ];
    let files = needed.iter().chain(&other);
    let files = files
        .map(|(name, text)| Stored::bytes(name, text.as_bytes().to_vec()))
        .collect();
    let case = Case::new("folder", files, Manners::default());
    let folder = case.find("hf:org/small").expect("the hub has it");
    for (name, text) in needed {
        assert_eq!(
            fs::read_to_string(folder.join(name)).ok().as_deref(),
            Some(text),
            "{name}"
        );
    }
    for (name, _) in other {
        assert!(!folder.join(name).exists(), "{name}");
    }
    assert_eq!(
        case.find("hf:org/small").expect("it is in the cache"),
        folder
    );
}

#[test]
fn all_parts_of_a_split_file_are_downloaded() {
    let parts = [
        "Q8_0/small-00001-of-00002.gguf",
        "Q8_0/small-00002-of-00002.gguf",
    ];
    let files = parts.map(|name| Stored::bytes(name, content(name.len(), 1000)));
    let case = Case::new("split", files.to_vec(), Manners::default());
    let first = case.find("hf:org/small").expect("the hub has it");
    assert!(first.ends_with(parts[0]), "{}", first.display());
    assert!(first.with_file_name("small-00002-of-00002.gguf").exists());

    let case = Case::new(
        "half",
        vec![gguf("small-00001-of-00002.gguf")],
        Manners::default(),
    );
    let error = case.failure("hf:org/small");
    assert!(
        error.contains("has no small-00002-of-00002.gguf"),
        "{error}"
    );
}

#[test]
fn a_hub_that_lists_names_only_tells_digests_with_the_files() {
    let lists_names_only = true;
    let manners = Manners {
        lists_names_only,
        ..Manners::default()
    };
    let names = ["config.json", "tokenizer.json", "model.safetensors"];
    let files = names.map(|name| Stored::bytes(name, content(name.len(), 1000)));
    let case = Case::new("names", files.to_vec(), manners);
    let folder = case.find("hf:org/small").expect("the hub has it");
    assert!(fs::read(folder.join("model.safetensors")).expect("weights") == content(17, 1000));

    let case = Case::new("names-digest", vec![gguf(GGUF)], manners);
    case.hub.fail([Fault::CutAfter(1), Fault::OtherBytes]); // the first is the question for the size
    let error = case.failure("hf:org/small");
    assert!(error.contains("has arrived with the digest"), "{error}");
}

#[test]
fn two_searches_download_a_file_once() {
    let pause = Duration::from_millis(20);
    let manners = Manners {
        pause,
        ..Manners::default()
    };
    let case = Case::new("two", vec![gguf(GGUF)], manners);
    std::thread::scope(|scope| {
        let find = || check_gguf(&case.find("hf:org/small").expect("the hub has it"));
        scope.spawn(find);
        scope.spawn(find);
    });
    assert_eq!(case.requests().len(), 1);
}
