//! The typed accessors of GGUF metadata.

use motet::model::ModelError;
use motet::model::weights::ModelFiles;
use motet_weights::{Format, GgufMetadata, TokenizerSource};

use crate::gguf::{GgufFile, Value, array};
use crate::tiny::{Scratch, Tiny, VOCAB};

/// Opens a file that has `fields` in addition to those of the tiny model.
fn with_metadata(fields: &[(&str, Value)], check: impl FnOnce(&GgufMetadata)) {
    let mut file = GgufFile::of(Tiny::of(Format::Q4_0));
    for (name, value) in fields {
        file = file.with(name, Some(value.clone()));
    }
    let scratch = Scratch::new();
    let path = scratch.write("tiny.gguf", file.write().0);
    let files = ModelFiles::open(&path).expect("the tiny model is complete");
    let TokenizerSource::Gguf(metadata) = files.tokenizer_source() else {
        panic!("a GGUF file has metadata");
    };
    check(metadata);
}

fn is_field_error<T: std::fmt::Debug>(result: Result<T, ModelError>, expected: &str) {
    match result {
        Err(ModelError::Field { field, .. }) => assert_eq!(field, expected),
        other => panic!("{expected}: {other:?}"),
    }
}

#[test]
fn values_come_back_as_they_were_written() {
    let fields = [
        ("a.u8", Value::U8(200)),
        ("a.u64", Value::U64(1 << 40)),
        ("a.negative", Value::I32(-1)),
        ("a.f32", Value::F32(0.25)),
        ("a.flag", Value::Bool(true)),
        ("a.text", Value::text("Ġthe")),
        ("a.empty", Value::Texts(vec![])),
    ];
    with_metadata(&fields, |metadata| {
        let ok = "the field was written with this type";
        assert_eq!(metadata.get_u32("a.u8").expect(ok), Some(200));
        assert_eq!(metadata.get_u64("a.u64").expect(ok), Some(1 << 40));
        assert_eq!(metadata.get_f32("a.f32").expect(ok), Some(0.25));
        assert_eq!(metadata.get_bool("a.flag").expect(ok), Some(true));
        assert_eq!(metadata.get_str("a.text").expect(ok), Some("Ġthe"));
        assert_eq!(metadata.get_strings("a.empty").expect(ok), Some(vec![]));
        let tokens = metadata.get_strings("tokenizer.ggml.tokens").expect(ok);
        let tokens = tokens.expect(ok);
        assert_eq!((tokens.len(), tokens[VOCAB - 1]), (VOCAB, "t39"));
        let types = metadata.get_i32s("tokenizer.ggml.token_type").expect(ok);
        assert_eq!(types, Some(vec![1; VOCAB]));
        let types = metadata.get_u32s("tokenizer.ggml.token_type").expect(ok);
        assert_eq!(types, Some(vec![1; VOCAB]));
        let scores = metadata.get_f32s("tokenizer.ggml.scores").expect(ok);
        assert_eq!(scores, Some(vec![-0.5; VOCAB]));

        assert_eq!(metadata.get_str("a.none").expect(ok), None);
        assert_eq!(metadata.get_strings("a.none").expect(ok), None);
        assert!(metadata.contains("a.text") && !metadata.contains("a.none"));
        assert!(metadata.keys().any(|key| key == "general.name"));
        assert!(metadata.path().ends_with("tiny.gguf"));
    });
}

#[test]
fn values_of_another_type_are_errors_that_name_them() {
    let not_utf8 = [&2u64.to_le_bytes()[..], &[0xff, 0xfe]].concat();
    let nested = array(9, 1, &array(5, 1, &[1, 0, 0, 0]));
    let fields = [
        ("a.u64", Value::U64(1 << 40)),
        ("a.negative", Value::I32(-1)),
        ("a.f32", Value::F32(0.25)),
        ("a.text", Value::text("text")),
        ("a.texts", Value::Texts(vec!["text".to_owned()])),
        ("a.bad_text", Value::Raw(8, not_utf8.clone())),
        ("a.bad_texts", Value::Raw(9, array(8, 1, &not_utf8))),
        ("a.bad_flag", Value::Raw(7, vec![2])),
        ("a.bad_flags", Value::Raw(9, array(7, 2, &[2, 1]))),
        ("a.nested", Value::Raw(9, nested)),
        ("a.negatives", Value::I32s(vec![1, -1])),
    ];
    with_metadata(&fields, |metadata| {
        is_field_error(metadata.get_u32("a.u64"), "a.u64");
        is_field_error(metadata.get_u32("a.f32"), "a.f32");
        is_field_error(metadata.get_u64("a.negative"), "a.negative");
        is_field_error(metadata.get_f32("a.u64"), "a.u64");
        is_field_error(metadata.get_bool("a.u64"), "a.u64");
        is_field_error(metadata.get_bool("a.bad_flag"), "a.bad_flag");
        is_field_error(metadata.get_str("a.texts"), "a.texts");
        is_field_error(metadata.get_str("a.bad_text"), "a.bad_text");
        is_field_error(metadata.get_strings("a.text"), "a.text");
        is_field_error(metadata.get_strings("a.bad_texts"), "a.bad_texts");
        is_field_error(metadata.get_strings("a.nested"), "a.nested");
        is_field_error(metadata.get_i32s("a.nested"), "a.nested");
        is_field_error(metadata.get_i32s("a.bad_flags"), "a.bad_flags");
        is_field_error(metadata.get_u32s("a.negatives"), "a.negatives");
        is_field_error(metadata.get_f32s("a.negatives"), "a.negatives");
    });
}
