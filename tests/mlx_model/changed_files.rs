//! Files that change under a model, and vocabularies that are cut.

use std::path::Path;

use motet::model::mlx::{MlxDevice, MlxModel, MlxOptions};
use motet::model::weights::{ModelFiles, survive_shortened_files};
use motet::model::{Model, ModelError};
use motet_model::{OutputKind, Span, TokenSource};

use crate::harness::{Slot, assert_close, one_at_a_time};
use crate::naive::{Shape, Tiny, VOCAB};
use crate::scratch::Scratch;
use crate::tiny::{PLAIN, TOLERANCE, both, tokens};

/// Its matrices stay mapped: the kernels read rows of whole blocks of 16.
const MAPPED: Shape = Shape {
    hidden: 64,
    inner: 96,
    heads: 4,
    kv_heads: 2,
    head_dim: 16,
    ..PLAIN
};

fn options(kernels: bool) -> MlxOptions {
    MlxOptions {
        device: Some(MlxDevice::Cpu),
        kernels,
        ..MlxOptions::default()
    }
}

#[test]
fn rows_without_a_token_are_not_computed() {
    let _turn = one_at_a_time();
    for tied in [true, false] {
        let tiny = Tiny::new(Shape { tied, ..MAPPED }, 3);
        let shorter = VOCAB - 3;
        let prompt: Vec<u32> = tokens(1, 9)
            .iter()
            .map(|token| token % shorter as u32)
            .collect();
        for (kernels, mut whole) in [true, false].into_iter().zip(both(&tiny)) {
            let mut files = ModelFiles::open(tiny.folder()).expect("a complete model");
            files.limit_vocabulary(shorter);
            let mut cut = MlxModel::load(&files, options(kernels)).expect("a model");
            assert_eq!(cut.spec().vocab_size, shorter);
            let logits = |model: &mut MlxModel| Slot::new(model, &[]).logits(model, &prompt);
            let mut expected = logits(&mut whole);
            expected.iter_mut().for_each(|row| row.truncate(shorter));
            // MLX's products sum in an order that depends on the number of rows.
            let tolerance = if kernels { 0.0 } else { TOLERANCE };
            assert_close(&logits(&mut cut), &expected, tolerance, "a cut vocabulary");
        }
    }
}

/// A model whose files are in a folder of their own.
fn copied(tiny: &Tiny) -> (Scratch, ModelFiles, MlxModel) {
    let scratch = Scratch::new();
    for entry in std::fs::read_dir(tiny.folder()).expect("a folder") {
        let entry = entry.expect("a file");
        let bytes = std::fs::read(entry.path()).expect("a file");
        scratch.write(entry.file_name().to_str().expect("a plain name"), bytes);
    }
    let files = ModelFiles::open(scratch.path()).expect("a complete model");
    let model = MlxModel::load(&files, options(true)).expect("a model");
    (scratch, files, model)
}

/// Evaluates a prompt on a slot of its own.
fn step(model: &mut MlxModel) -> Result<Slot, ModelError> {
    let prompt = tokens(2, 5);
    let mut slot = Slot::new(model, &[]);
    let spans = &mut [Span {
        tokens: TokenSource::Known(&prompt),
        path: &slot.path,
        tail: &mut slot.tail,
        output_kind: OutputKind::Logits,
    }];
    model.step(spans)?;
    Ok(slot)
}

#[track_caller]
fn assert_changed<T>(result: Result<T, ModelError>, weights: &Path) {
    match result.map(|_| ()) {
        Err(ModelError::FileChanged { path }) => assert_eq!(path, weights),
        other => panic!("expected an error about the file, got {other:?}"),
    }
}

#[test]
fn a_file_that_was_written_to_gives_no_copies_and_no_loads_while_steps_go_on() {
    let _turn = one_at_a_time();
    let tiny = Tiny::new(MAPPED, 4);
    let (scratch, files, mut model) = copied(&tiny);
    let mut slot = step(&mut model).expect("nothing has changed");
    let sealed = model.seal(&mut slot.tail, 2).expect("a segment");
    model.export(&sealed).expect("nothing has changed");
    model.copy_out(&mut slot.tail, 0..1).expect("as before");
    let weights = scratch.path().join("model.safetensors");
    let written = std::fs::File::options().write(true).open(&weights);
    written
        .expect("it is there")
        .set_modified(std::time::SystemTime::UNIX_EPOCH)
        .expect("the file is the test's own");
    // The model shares what a watch of its files finds, as that of an engine does.
    model.export(&sealed).expect("nothing has looked at it");
    files.watch().check().expect_err("it has another time");
    assert_changed(model.export(&sealed), &weights);
    assert_changed(model.copy_out(&mut slot.tail, 0..1), &weights);
    assert_changed(MlxModel::load(&files, options(true)), &weights);
    step(&mut model).expect("its bytes may be the same");
}

#[test]
fn a_shortened_file_fails_each_step_and_each_load() {
    let _turn = one_at_a_time();
    survive_shortened_files().expect("a handler can be installed");
    let tiny = Tiny::new(MAPPED, 4);
    let (scratch, files, mut model) = copied(&tiny);
    step(&mut model).expect("nothing has changed");
    let weights = scratch.path().join("model.safetensors");
    let written = std::fs::File::options().write(true).open(&weights);
    written
        .expect("it is there")
        .set_len(4096)
        .expect("the file is the test's own");
    for _ in 0..2 {
        assert_changed(step(&mut model), &weights);
    }
    assert_changed(MlxModel::load(&files, options(true)), &weights);
}
