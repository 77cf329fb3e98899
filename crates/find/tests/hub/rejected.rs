//! Answers that are no model, and repositories without one.

use motet_find::{ProgressLines, Token};

use crate::loopback::{Fault, Manners, Stored, TOKEN};
use crate::{Case, GGUF, check_gguf, gguf};

#[test]
fn bytes_with_another_digest_are_removed() {
    let case = Case::gguf("digest");
    case.hub.fail([Fault::OtherBytes]);
    let error = case.failure("hf:org/small");
    assert!(error.contains("has arrived with the digest"), "{error}");
    assert_eq!(case.partial(), None);
    check_gguf(&case.find("hf:org/small").expect("the right bytes come"));

    // A file that is no model's is checked as well.
    let names = ["config.json", "tokenizer.json", "model.safetensors"];
    let mut files = names.map(|name| Stored::bytes(name, b"{}".to_vec()));
    files[0].digest = files[0].digest.replace(|c: char| c.is_ascii_digit(), "f");
    let case = Case::new("digest-of-config", files.to_vec(), Manners::default());
    let error = case.failure("hf:org/small");
    assert!(
        error.contains("config.json has arrived with the digest"),
        "{error}"
    );
}

#[test]
fn pages_instead_of_files_are_no_models() {
    let case = Case::gguf("page");
    case.hub.fail([Fault::Html]);
    let error = case.failure("hf:org/small");
    assert!(
        error.contains("gave a wrong answer for small-Q8_0.gguf"),
        "{error}"
    );
    assert!(
        error.contains("status 200, a page of HTML, 4 bytes; expected the file"),
        "{error}"
    );

    let is_page = true;
    let manners = Manners {
        is_page,
        ..Manners::default()
    };
    let case = Case::new("portal", vec![gguf(GGUF)], manners);
    let error = case.failure("hf:org/small");
    assert!(
        error.contains("a page of HTML; expected the listing of a repository"),
        "{error}"
    );
    assert!(error.contains("HF_ENDPOINT"), "{error}");
}

#[test]
fn a_gated_repository_needs_a_token_which_stays_with_the_hub() {
    let manners = Manners {
        gated: true,
        ..Manners::default()
    };
    let mut case = Case::new("gated", vec![gguf(GGUF)], manners);
    let error = case.failure("hf:org/small");
    for part in [
        "denies access to org/small (status 403): no token is set",
        "Accept",
        "HF_TOKEN",
    ] {
        assert!(error.contains(part), "{error}");
    }
    case.finder.hub.token = Token::new("hf_other");
    let error = case.failure("hf:org/small");
    assert!(
        error.contains("the token in use may not read it"),
        "{error}"
    );
    assert!(!error.contains("hf_other"), "{error}");

    case.finder.hub.token = Token::new(TOKEN);
    case.hub.requests();
    check_gguf(&case.find("hf:org/small").expect("this token may"));
    for line in case.hub.requests() {
        assert_eq!(
            line.contains("with a token"),
            !line.starts_with("/small"),
            "{line}"
        );
    }
}

#[test]
fn secrets_are_checked_and_not_printed() {
    let mut case = Case::gguf("secrets");
    case.finder.hub.token = Token::new("hf_one\nhf_two");
    let error = case.failure("hf:org/small");
    assert!(error.contains("check HF_TOKEN"), "{error}");
    assert!(!error.contains("hf_one"), "{error}");
    assert_eq!(case.hub.requests(), Vec::<String>::new());

    case.finder.hub.token = None;
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = free.local_addr().expect("an address");
    drop(free);
    for (endpoint, shown) in [
        (
            format!("http://ann:pass@{address}"),
            format!("http://…@{address}"),
        ),
        // No scheme of a hub.
        ("gopher://ann:pass@h".to_owned(), "gopher://…@h".to_owned()),
    ] {
        case.finder.hub.endpoint = endpoint;
        let mut lines = ProgressLines::default();
        let mut printed = Vec::new();
        let error = case.finder.find("hf:org/small", |progress| {
            printed.extend(lines.line(&progress));
        });
        printed.push(error.expect_err("no hub is there").to_string());
        let printed = printed.join("\n");
        assert!(printed.contains(&shown), "{printed}");
        assert!(!printed.contains("pass"), "{printed}");
    }
}

#[test]
fn a_listing_that_is_too_long_is_read_once() {
    let manners = Manners {
        listing_bytes_min: 33 << 20,
        ..Manners::default()
    };
    let case = Case::new("long-listing", vec![gguf(GGUF)], manners);
    let error = case.failure("hf:org/small");
    assert!(error.contains("more than 32 MiB"), "{error}");
    assert_eq!(case.hub.requests().len(), 1);
}

#[test]
fn what_the_hub_lacks_is_named() {
    let other = |names: &[&str]| {
        let files = names.iter().map(|name| Stored::bytes(name, b"x".to_vec()));
        Case::new(names[0], files.collect(), Manners::default())
    };
    let case = other(&["pytorch_model.bin", "config.json"]);
    let error = case.failure("hf:org/small");
    assert!(
        error.contains("it has config.json, pytorch_model.bin; expected GGUF files"),
        "{error}"
    );
    let error = case.failure("hf:org/other");
    assert!(
        error.contains("has no model repository org/other, or it is private"),
        "{error}"
    );
    let case = other(&["a.gguf", "b.gguf", "c.gguf"]);
    let error = case.failure("hf:org/small");
    assert!(error.contains("write `hf:org/small:FILE`"), "{error}");
    assert!(error.contains("a.gguf, b.gguf, c.gguf"), "{error}");
    let error = case.failure("hf:org/small:d");
    assert!(
        error.contains("no GGUF file `d`; it has a.gguf, b.gguf, c.gguf"),
        "{error}"
    );

    // A hub that is not there.
    let mut case = other(&["d.gguf"]);
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    case.finder.hub.endpoint = format!("http://{}", free.local_addr().expect("an address"));
    drop(free);
    let error = case.failure("hf:org/small");
    assert!(error.contains("after 3 attempts"), "{error}");
    case.finder.hub.offline = true;
    let error = case.failure("hf:org/small");
    assert!(error.contains("HF_HUB_OFFLINE is set"), "{error}");
}

#[test]
fn names_that_lead_out_of_the_repository_are_rejected() {
    for (number, name) in ["../../../x.gguf", "/x.gguf", "a/../../x.gguf", "a//x.gguf"]
        .iter()
        .enumerate()
    {
        let case = Case::new(
            &format!("out-{number}"),
            vec![gguf(name)],
            Manners::default(),
        );
        let error = case.failure("hf:org/small");
        assert!(error.contains("leads out of its repository"), "{error}");
        assert_eq!(case.requests(), Vec::<String>::new());
    }
    let index = r#"{"weight_map": {"a": "../../x.safetensors"}}"#;
    let files = [
        ("config.json", "{}"),
        ("tokenizer.json", "{}"),
        ("model.safetensors.index.json", index),
        ("../../x.safetensors", "x"),
    ];
    let files = files.map(|(name, text)| Stored::bytes(name, text.as_bytes().to_vec()));
    let case = Case::new("out-by-index", files.to_vec(), Manners::default());
    let error = case.failure("hf:org/small");
    assert!(error.contains("it names no files of its folder"), "{error}");
}
