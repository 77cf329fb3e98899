//! GGUF files in several parts, vocabularies that are cut, and files that are read.

use std::path::PathBuf;

use motet::model::ModelError;
use motet::model::weights::{FileAccess, ModelFiles};
use motet_weights::{Format, Role};

use crate::folder;
use crate::gguf::{GgufFile, Value};
use crate::tiny::{HIDDEN, Scratch, Tiny, VOCAB};

fn file() -> GgufFile {
    GgufFile::of(Tiny::of(Format::Q8_0))
}

/// Writes the parts as `gguf-split` does: the metadata is in the first one.
fn split(scratch: &Scratch, whole: &GgufFile, parts: usize) -> Vec<PathBuf> {
    let count = whole.tensors.len();
    let part = |index: usize| {
        let mut part = whole.clone();
        if index > 0 {
            part.fields.clear();
        }
        let tensors = whole.tensors.chunks(count.div_ceil(parts));
        part.tensors = tensors.skip(index).take(1).flatten().cloned().collect();
        let number = |number: usize| Some(Value::U32(number as u32));
        part.with("split.no", number(index))
            .with("split.count", number(parts))
            .with("split.tensors.count", number(count))
    };
    let name = |index: usize| format!("tiny-{:05}-of-{parts:05}.gguf", index + 1);
    (0..parts)
        .map(|index| scratch.write(&name(index), part(index).write().0))
        .collect()
}

#[test]
fn a_split_model_is_opened_by_any_of_its_parts() {
    let scratch = Scratch::new();
    let joined = scratch.write("joined.gguf", file().write().0);
    let joined = ModelFiles::open(&joined).expect("the tiny model is complete");
    for part in split(&scratch, &file(), 3) {
        let files = ModelFiles::open(&part).expect("all parts are there");
        assert_eq!(files.blueprint(), joined.blueprint());
        assert_eq!(files.identity(), joined.identity(), "{}", part.display());
    }
}

#[test]
fn parts_that_are_missing_or_do_not_fit_are_named() {
    let check = |change: fn(&Scratch, &[PathBuf]) -> PathBuf, expected: [&str; 2]| {
        let scratch = Scratch::new();
        let parts = split(&scratch, &file(), 3);
        let path = change(&scratch, &parts);
        let error = ModelFiles::open(&path)
            .expect_err("a part does not fit")
            .to_string();
        for needle in expected {
            assert!(error.contains(needle), "{error} should say {needle}");
        }
    };
    check(
        |_, parts| {
            std::fs::remove_file(&parts[1]).expect("it is there");
            parts[0].clone()
        },
        [
            "tiny-00002-of-00003.gguf does not exist",
            "a part of the model",
        ],
    );
    check(
        |scratch, parts| {
            let renamed = scratch.path().join("model.gguf");
            std::fs::rename(&parts[0], &renamed).expect("it is there");
            renamed
        },
        [
            "model.gguf: field `split.no`: part 1 of 3",
            "-00001-of-00003.gguf",
        ],
    );
    check(
        |_, parts| {
            std::fs::copy(&parts[1], &parts[2]).expect("it is there");
            parts[0].clone()
        },
        [
            "tiny-00003-of-00003.gguf: field `split.no`: found 1",
            "expected 2",
        ],
    );
    check(
        |_, parts| {
            let mut fewer = file();
            fewer.tensors.truncate(1);
            let fewer = fewer
                .with("split.no", Some(Value::U32(2)))
                .with("split.count", Some(Value::U32(3)));
            std::fs::write(&parts[2], fewer.write().0).expect("it is there");
            parts[0].clone()
        },
        [
            "tiny-00003-of-00003.gguf is damaged",
            "is in another part, too",
        ],
    );
}

#[test]
fn rows_without_a_token_are_left_out() {
    let scratch = Scratch::new();
    let shorter = 33;
    for tied in [true, false] {
        let tiny = Tiny {
            tied,
            ..Tiny::of(Format::F32)
        };
        let path = scratch.write("tiny.gguf", GgufFile::of(tiny).write().0);
        let whole = ModelFiles::open(&path).expect("the tiny model is complete");
        let mut cut = ModelFiles::open(&path).expect("the tiny model is complete");
        cut.limit_vocabulary(VOCAB + 1);
        assert_eq!(cut.blueprint(), whole.blueprint(), "it has no more rows");
        cut.limit_vocabulary(shorter);
        assert_eq!(cut.blueprint().stem.vocab_size, shorter);
        for (layer, role) in whole.tensors() {
            let (cut, whole) = (cut.tensor(layer, role), whole.tensor(layer, role));
            let (cut, whole) = (cut.expect("there"), whole.expect("there"));
            let kept = match role {
                Role::Embedding | Role::Head => shorter * HIDDEN,
                _ => whole.elements(),
            };
            assert_eq!(cut.elements(), kept, "{role:?}");
            assert_eq!(cut.to_f32(), whole.to_f32()[..kept], "{role:?}");
        }
        assert_eq!(
            cut.identity(),
            whole.identity(),
            "state does not depend on them"
        );
    }
}

#[test]
fn files_that_were_read_may_change() {
    let folder = folder::sharded(Tiny::of(Format::F32), 2);
    let scratch = Scratch::new();
    let gguf = scratch.write("tiny.gguf", file().write().0);
    for path in [folder.path(), &gguf] {
        let mapped = ModelFiles::open(path).expect("the tiny model is complete");
        let read = ModelFiles::open_with(path, FileAccess::Read).expect("the same");
        let tensor = |files: &ModelFiles| -> Result<bool, ModelError> {
            let tensor = files.tensor(Some(0), Role::Down)?;
            Ok(tensor.parts().iter().any(|part| part.is_mapped()))
        };
        assert!(tensor(&mapped).expect("there"));
        assert!(!tensor(&read).expect("there"));
        let identity = mapped.identity();
        drop(mapped);
        let files = if path.is_dir() {
            let entries = std::fs::read_dir(path).expect("a folder");
            entries
                .map(|entry| entry.expect("an entry").path())
                .collect()
        } else {
            vec![path.to_owned()]
        };
        for file in files {
            std::fs::write(file, "short").expect("it can be written");
        }
        assert_eq!(read.identity(), identity);
        assert!(read.watch().check().is_ok());
    }
}

#[test]
fn mapped_files_that_change_are_named() {
    let scratch = Scratch::new();
    let path = scratch.write("tiny.gguf", file().write().0);
    let open = || ModelFiles::open(&path).expect("the tiny model is complete");
    let files = open().watch();
    assert!(files.check().is_ok());
    assert_eq!(files.replaced(), None);
    // A new file is put in its place.
    let new = scratch.write("new.gguf", file().write().0);
    std::fs::rename(&new, &path).expect("in one folder");
    assert!(files.check().is_ok());
    assert_eq!(files.replaced(), Some(&*path));
    // A file is written to. The system may count times in steps of two seconds.
    let files = open().watch();
    let written = std::fs::File::options().write(true).open(&path);
    let written = written.expect("it is there");
    let earlier = std::time::SystemTime::UNIX_EPOCH;
    written
        .set_modified(earlier)
        .expect("the file is the test's own");
    assert_eq!(files.changed(), None, "nothing has looked at it");
    let error = files.check().expect_err("it is not what was opened");
    assert!(matches!(error, ModelError::FileChanged { path: found } if found == path));
    assert_eq!(files.changed(), Some(&*path));
    // Its bytes may be the same, so that steps may go on.
    assert_eq!(files.overwritten(), None);
    assert!(files.check_not_overwritten().is_ok());
    written.set_len(100).expect("the file is the test's own");
    assert_eq!(files.overwritten(), None, "nothing has looked at it");
    assert!(files.check().is_err());
    assert_eq!(files.overwritten(), Some(&*path));
    assert!(files.check_not_overwritten().is_err());
}
