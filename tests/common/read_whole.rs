//! A model's files, used as a trusting caller would use them.

use std::hint::black_box;
use std::path::Path;

use motet::model::ModelError;
use motet::model::weights::ModelFiles;
use motet_weights::TokenizerSource;

/// Opens the model and, if that works, uses all of it.
pub(crate) fn use_all(path: &Path) -> Result<ModelFiles, ModelError> {
    let files = ModelFiles::open(path)?;
    assert_eq!(files.identity(), files.identity());
    for (layer, role) in files.tensors() {
        let tensor = match files.tensor(layer, role) {
            // Scales in an array of their own are read only now.
            Err(error @ ModelError::QuantisedTensor { .. }) => return Err(error),
            tensor => tensor.expect("checked when it was opened"),
        };
        if tensor.shape.len() == 1 {
            assert_eq!(tensor.to_f32().len(), tensor.elements());
        }
    }
    if let TokenizerSource::Gguf(metadata) = files.tokenizer_source() {
        for key in metadata.keys() {
            // Most are errors; none may panic.
            black_box([
                metadata.get_str(key).is_ok(),
                metadata.get_u64(key).is_ok(),
                metadata.get_f32(key).is_ok(),
                metadata.get_bool(key).is_ok(),
                metadata.get_strings(key).is_ok(),
                metadata.get_f32s(key).is_ok(),
                metadata.get_i32s(key).is_ok(),
            ]);
        }
    }
    Ok(files)
}
