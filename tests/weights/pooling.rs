//! The pooling that a model's files declare for embeddings.

use motet::model::ModelError;
use motet::model::weights::ModelFiles;
use motet::request::DeclaredPooling;
use motet::request::Pooling;
use motet_weights::Format;
use serde_json::{Value as Json, json};

use crate::folder::whole;
use crate::gguf::{GgufFile, Value};
use crate::tiny::{Scratch, Tiny};

const MEAN: DeclaredPooling = DeclaredPooling::Declared(Pooling::Mean);
const LAST: DeclaredPooling = DeclaredPooling::Declared(Pooling::Last);

fn unsupported(what: &str) -> DeclaredPooling {
    DeclaredPooling::Unsupported(what.to_owned())
}

fn module(kind: &str, path: &str) -> Json {
    json!({"idx": 0, "name": "0", "path": path, "type": format!("sentence_transformers.models.{kind}")})
}

/// The pooling of a folder with this list of modules and this configuration in `1_Pooling`.
fn declared(modules: Option<Json>, config: Option<Json>) -> Result<DeclaredPooling, ModelError> {
    let folder = whole(Tiny::of(Format::F32));
    if let Some(modules) = modules {
        folder.write("modules.json", modules.to_string());
    }
    if let Some(config) = config {
        let module = folder.path().join("1_Pooling");
        std::fs::create_dir(&module).expect("the folder is writable");
        folder.write("1_Pooling/config.json", config.to_string());
    }
    ModelFiles::open(folder.path()).expect("it opens").pooling()
}

#[test]
fn folders_declare_their_pooling() {
    let check = |modules, config, expected| {
        let found = declared(modules, config).expect("it is read");
        assert_eq!(found, expected);
    };
    let pipeline = || {
        let modules = [
            module("Transformer", ""),
            module("Pooling", "1_Pooling"),
            module("Normalize", "2_Normalize"),
        ];
        Some(json!(modules))
    };
    let flags = |mean, last| {
        Some(json!({
            "word_embedding_dimension": 32, "pooling_mode_cls_token": false,
            "pooling_mode_mean_tokens": mean, "pooling_mode_lasttoken": last,
        }))
    };
    check(None, None, DeclaredPooling::Undeclared);
    check(pipeline(), flags(true, false), MEAN);
    check(pipeline(), flags(false, true), LAST);
    check(None, flags(false, true), LAST);
    check(pipeline(), Some(json!({"pooling_mode": "lasttoken"})), LAST);
    check(pipeline(), Some(json!({"pooling_mode": "mean"})), MEAN);
    check(pipeline(), flags(false, false), DeclaredPooling::Undeclared);
    let cls = Some(json!({"pooling_mode_cls_token": true}));
    check(pipeline(), cls, unsupported("mode `cls`"));
    let both = flags(true, true);
    check(pipeline(), both, unsupported("modes lasttoken, mean"));
    let dense = json!([module("Transformer", ""), module("Dense", "2_Dense")]);
    check(Some(dense), None, unsupported("module `Dense`"));
    // A path out of the folder is not followed: what it names is no pooling of this model.
    let outside = json!([module("Pooling", "../1_Pooling")]);
    let found = declared(Some(outside), flags(true, false)).expect("it is read");
    assert_eq!(found, DeclaredPooling::Undeclared);
}

#[test]
fn damaged_declarations_are_errors() {
    let not_a_list = declared(Some(json!({"modules": 1})), None);
    assert!(
        matches!(not_a_list, Err(ModelError::Damaged { .. })),
        "{not_a_list:?}"
    );
    let not_a_flag = Some(json!({"pooling_mode_mean_tokens": "yes"}));
    let not_a_flag = declared(None, not_a_flag);
    assert!(
        matches!(not_a_flag, Err(ModelError::Field { .. })),
        "{not_a_flag:?}"
    );
}

#[test]
fn gguf_files_declare_their_pooling() {
    let check = |number: Option<u32>, expected| {
        let file = GgufFile::of(Tiny::of(Format::F32));
        let file = file.with("llama.pooling_type", number.map(Value::U32));
        let scratch = Scratch::new();
        let path = scratch.write("model.gguf", file.write().0);
        let files = ModelFiles::open(&path).expect("it opens");
        assert_eq!(files.pooling().expect("it is read"), expected);
    };
    check(None, DeclaredPooling::Undeclared);
    check(Some(0), DeclaredPooling::Undeclared);
    check(Some(1), MEAN);
    check(Some(3), LAST);
    check(Some(2), unsupported("mode `cls`"));
    check(Some(4), unsupported("mode `rank`"));
    check(Some(9), unsupported("`pooling_type` 9"));
}
