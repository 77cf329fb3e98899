//! A mapped file that is shortened while it is in use. The reads are in a child process, which a
//! bus error ends unless it has asked to survive.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

use motet::model::ModelError;
use motet::model::weights::{ModelFiles, survive_shortened_files};
use motet_weights::{Format, Role};

use crate::gguf::GgufFile;
use crate::tiny::{Scratch, Tiny};

/// The signal of a bus error on Linux.
const SIGBUS: i32 = 7;
const CHILD: &str = "MOTET_SHORTENED_CHILD";

/// Runs the test below in a process of its own.
fn child(mode: &str) -> ExitStatus {
    let program = std::env::current_exe().expect("the tests' own program");
    let arguments = ["--exact", "shortened::reads_behind_the_end", "--ignored"];
    let mut command = Command::new(program);
    command.args(arguments).env(CHILD, mode);
    let output = command.output().expect("the program starts");
    output.status
}

#[test]
#[ignore = "a child process of the tests here: its file is shortened under it"]
fn reads_behind_the_end() {
    let Ok(mode) = std::env::var(CHILD) else {
        return;
    };
    if mode != "plain" {
        survive_shortened_files().expect("a handler can be installed");
        survive_shortened_files().expect("once more changes nothing");
    }
    let mut file = GgufFile::of(Tiny::of(Format::F32));
    // The metadata stays, so that the tensors begin behind the first page.
    file.alignment = 1 << 16;
    let alignment = crate::gguf::Value::U32(1 << 16);
    let file = file.with("general.alignment", Some(alignment));
    let scratch = Scratch::new();
    let path = scratch.write("tiny.gguf", file.write().0);
    let files = ModelFiles::open(&path).expect("the tiny model is complete");
    let other = ModelFiles::open(&path).expect("the tiny model is complete");
    let watch = files.watch();
    let sum = |files: &ModelFiles| -> f32 {
        let tensor = files.tensor(Some(0), Role::Down).expect("it is there");
        tensor.to_f32().iter().map(|number| number.abs()).sum()
    };
    assert!(sum(&files) > 0.0);
    let written = std::fs::File::options().write(true).open(&path);
    written
        .expect("it is there")
        .set_len(4096)
        .expect("the file is the test's own");
    if mode == "foreign" {
        let foreign = std::fs::File::open(&path).expect("it is there");
        // SAFETY: the mapping is only read, and the read is to fail.
        let map = unsafe { memmap2::MmapOptions::new().len(1 << 16).map(&foreign) };
        let map = map.expect("longer than the file");
        assert_eq!(std::hint::black_box(&map)[1 << 15], 0, "not reached");
    }
    assert_eq!(
        watch.changed(),
        None,
        "nothing was read and nothing asked for"
    );
    assert_eq!(sum(&files), 0.0, "zeros are in the place of what is gone");
    assert_eq!(watch.changed(), Some(&*path));
    assert!(matches!(
        watch.check_known(),
        Err(ModelError::FileChanged { .. })
    ));
    assert_eq!(
        other.watch().changed(),
        None,
        "its own mapping was not read"
    );
    assert_eq!(sum(&other), 0.0);
    assert_eq!(other.watch().changed(), Some(&*path));
    drop((files, other));
    let path = scratch.write("next.gguf", file.write().0);
    let files = ModelFiles::open(&path).expect("the tiny model is complete");
    assert!(sum(&files) > 0.0);
    assert_eq!(
        files.watch().changed(),
        None,
        "an entry that is used again is clean"
    );
}

#[test]
fn a_shortened_file_ends_the_process_unless_it_asked_to_survive() {
    assert_eq!(child("plain").signal(), Some(SIGBUS));
    let survived = child("survive");
    assert!(survived.success(), "{survived}");
    // An error in another mapping than a model's is not handled here.
    assert_eq!(child("foreign").signal(), Some(SIGBUS));
}
