//! A Hugging Face folder: JSON configuration beside safetensors files.

mod json;
pub(crate) mod pooling;
mod quantisation;
mod shards;

use std::path::{Path, PathBuf};

use super::ModelError;
use super::fields::Fields;
use super::mlx::MlxQuantisation;
use super::opened::FileAccess;
use super::stored::Directory;
pub(crate) use json::JsonObject;

/// Far above any real file, which has a few kilobytes.
const CONFIG_BYTES_MAX: usize = 1 << 20;

/// The configuration in a folder.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// `config.json`.
    whole: JsonObject,
    /// The part of a multimodal model's configuration that is of its language model.
    nested: Option<JsonObject>,
    /// `generation_config.json`.
    generation: Option<JsonObject>,
}

impl Folder {
    /// Reads the folder's configuration.
    pub(crate) fn open(path: &Path) -> Result<Self, ModelError> {
        let config = path.join("config.json");
        let whole = JsonObject::read(&config, "a model's config.json", CONFIG_BYTES_MAX)?;
        let nested = whole.object("text_config")?;
        let generation = path.join("generation_config.json");
        let read = JsonObject::read(&generation, "a generation_config.json", CONFIG_BYTES_MAX);
        let generation = match read {
            Ok(json) => Some(json),
            Err(ModelError::Missing { .. }) => None,
            Err(error) => return Err(error),
        };
        Ok(Self {
            path: path.to_owned(),
            whole,
            nested,
            generation,
        })
    }

    /// The form of MLX's quantised weights, if the folder has such. An error for other
    /// quantised weights, of which only gpt-oss's MXFP4 is supported in folders.
    pub(crate) fn quantisation(&self, mxfp4: bool) -> Result<Option<MlxQuantisation>, ModelError> {
        const EXPECTED: &str =
            "an unquantised folder, one in MLX's quantisation, gpt-oss in MXFP4, or a GGUF file";
        let parts = [Some(&self.whole), self.nested.as_ref()];
        for json in parts.into_iter().flatten() {
            // MLX's converter writes a copy of it as `quantization_config`.
            if let Some(quantisation) = json.object("quantization")? {
                return quantisation::read(&quantisation).map(Some);
            }
            let name = "quantization_config";
            let Some(config) = json.object(name)? else {
                continue;
            };
            match config.text("quant_method")? {
                Some("mxfp4") if mxfp4 => {}
                Some(method) => {
                    let what = format!("found `{method}`");
                    return Err(config.wrong("quant_method", what, EXPECTED));
                }
                None => {
                    let value = json.get(name).expect("it is an object");
                    return Err(json.unlike(name, value, EXPECTED));
                }
            }
        }
        Ok(None)
    }

    /// Reads the headers of the folder's weights.
    pub(crate) fn directory(&self, access: FileAccess) -> Result<Directory, ModelError> {
        shards::open(&self.path, access)
    }

    /// `config.json`.
    pub(crate) fn whole(&self) -> &JsonObject {
        &self.whole
    }

    /// The part of a multimodal model's `config.json` that is of its language model.
    pub(crate) fn nested(&self) -> Option<&JsonObject> {
        self.nested.as_ref()
    }

    /// The language model's part of `config.json`.
    pub(crate) fn text(&self) -> &JsonObject {
        self.nested.as_ref().unwrap_or(&self.whole)
    }

    /// The object to read a field from. Multimodal models write some fields of their language
    /// model outside its part.
    pub(crate) fn object_with(&self, name: &str) -> &JsonObject {
        if name == "tie_word_embeddings" && !self.text().mentions(name) {
            return &self.whole;
        }
        self.text()
    }

    /// The objects that may name tokens, the most specific last.
    pub(crate) fn objects(&self) -> impl Iterator<Item = &JsonObject> {
        let config = [Some(&self.whole), self.nested.as_ref()];
        config
            .into_iter()
            .chain([self.generation.as_ref()])
            .flatten()
    }

    /// The folder's own name, even if the path is `.`.
    pub(crate) fn name(&self) -> String {
        let whole = self.path.canonicalize();
        let whole = whole.unwrap_or_else(|_| self.path.clone());
        match whole.file_name() {
            Some(name) => name.to_string_lossy().into_owned(),
            None => "model".to_owned(),
        }
    }
}
