//! Models that the cache has, whole or in part.

use std::fs;
use std::path::PathBuf;

use motet_find::Progress;

use crate::loopback::{COMMIT, Manners, Stored};
use crate::{Case, gguf};

const TEMPLATE: &str = "chat_template.jinja";

/// A folder of safetensors.
fn folder(name: &str) -> Case {
    let names = [
        "config.json",
        "tokenizer.json",
        TEMPLATE,
        "model.safetensors",
    ];
    let files = names.map(|name| Stored::bytes(name, name.as_bytes().to_vec()));
    Case::new(name, files.to_vec(), Manners::default())
}

impl Case {
    /// Removes what only Motet keeps, and a file: as another program leaves a snapshot.
    fn leave_without(&self, file: &str) -> PathBuf {
        fs::remove_dir_all(self.repository().join(".motet")).expect("the names were kept");
        let path = self.repository().join("snapshots").join(COMMIT).join(file);
        fs::remove_file(&path).expect("it was downloaded");
        path
    }

    fn offline(&self, name: &str) -> Result<PathBuf, String> {
        let mut finder = self.finder.clone();
        finder.hub.offline = true;
        finder.find(name, |_| {}).map_err(|error| error.to_string())
    }
}

#[test]
fn a_name_means_the_same_model_whatever_the_cache_has() {
    let files = vec![gguf("small-Q4_K_M.gguf"), gguf("small-Q8_0.gguf")];
    let case = Case::new("means", files, Manners::default());
    let small = case.find("hf:org/small:Q8_0").expect("the hub has it");
    let error = case.offline("hf:org/small").expect_err("it is another one");
    assert!(error.contains("not all of it"), "{error}");
    let preferred = case.find("hf:org/small").expect("the hub has it");
    assert!(preferred.ends_with("small-Q4_K_M.gguf"));
    case.hub.requests();
    for (name, expected) in [("hf:org/small", &preferred), ("hf:org/small:q8_0", &small)] {
        assert_eq!(case.find(name).as_ref().ok(), Some(expected));
    }
    assert_eq!(case.hub.requests(), Vec::<String>::new());

    // Another program has downloaded one of them.
    case.leave_without("small-Q4_K_M.gguf");
    assert_eq!(
        case.find("hf:org/small:small-Q8_0.gguf").ok().as_ref(),
        Some(&small)
    );
    assert_eq!(case.hub.requests(), Vec::<String>::new());
    assert_eq!(case.find("hf:org/small").ok(), Some(preferred));
}

#[test]
fn files_that_another_program_left_out_are_downloaded() {
    let case = folder("left-out");
    let found = case.find("hf:org/small").expect("the hub has it");
    let template = case.leave_without(TEMPLATE);
    assert_eq!(case.offline("hf:org/small").ok().as_ref(), Some(&found));
    case.hub.requests();
    for asked in [true, false] {
        assert_eq!(case.find("hf:org/small").ok().as_ref(), Some(&found));
        assert!(template.exists());
        let listing = format!("/api/models/org/small/revision/{COMMIT}?blobs=true");
        let expected = if asked { vec![listing] } else { Vec::new() };
        let mut requests = case.hub.requests();
        requests.retain(|line| line.starts_with("/api"));
        assert_eq!(requests, expected);
    }
    // A model that is known to lack a file is not used.
    fs::remove_file(&template).expect("it is there");
    let error = case.offline("hf:org/small").expect_err("not whole");
    assert!(error.contains("not all of it"), "{error}");
}

#[test]
fn without_an_answer_a_model_is_used_as_the_cache_has_it() {
    let manners = Manners {
        failing_listings: 9,
        ..Manners::default()
    };
    let silent = Case::new("silent-cache", Vec::new(), manners);
    let mut case = folder("no-answer");
    let found = case.find("hf:org/small").expect("the hub has it");
    let template = case.leave_without(TEMPLATE);
    case.finder.hub.endpoint = silent.hub.endpoint();
    let mut errors = Vec::new();
    let again = case.finder.find("hf:org/small", |progress| {
        if let Progress::NoListing { error, .. } = progress {
            errors.push(error.to_string());
        }
    });
    assert_eq!(again.ok(), Some(found));
    assert!(!template.exists());
    assert_eq!(errors.len(), 1);
    assert!(
        errors[0].contains("status 503, after 1 attempts"),
        "{errors:?}"
    );
}

/// A cache that this process may only read.
#[cfg(unix)]
#[test]
fn a_whole_model_in_a_cache_that_cannot_be_written_is_used() {
    let case = folder("read-only");
    let found = case.find("hf:org/small").expect("the hub has it");
    let kept = case.repository().join(".motet");
    fs::remove_dir_all(&kept).expect("the names were kept");
    // No folder can be made where a file is.
    fs::write(&kept, "").expect("a file");
    assert_eq!(case.find("hf:org/small").ok(), Some(found));
}
