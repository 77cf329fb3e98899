//! Opens a model's files and collects what an engine needs from them.

#[cfg(feature = "mlx")]
use std::path::Path;
#[cfg(feature = "mlx")]
use std::sync::Once;
#[cfg(feature = "mlx")]
use std::time::Instant;

use crate::error::StartError;
#[cfg(feature = "mlx")]
use motet_mlx::{MlxModel, MlxOptions, RetainedWeights};
use motet_protocol::{ModelError, TokenId};
#[cfg(feature = "mlx")]
use motet_text::Tokenizer;
use motet_text::{ChatTemplate, GgufVocabulary, TextCodec, TextError};
use motet_weights::{GgufMetadata, ModelFiles, TokenizerSource};

impl crate::Engine {
    /// Returns the tokenizer and chat template that come with a model's weights, for
    /// [`EngineBuilder::text`](crate::EngineBuilder::text). A template that cannot be rendered is
    /// told by a warning: the model serves all but conversations.
    ///
    /// # Errors
    ///
    /// [`StartError`] naming the file and the field.
    pub fn text_of(files: &ModelFiles) -> Result<TextCodec, StartError> {
        text_of(files)
    }
}

fn text_of(files: &ModelFiles) -> Result<TextCodec, StartError> {
    let text = match files.tokenizer_source() {
        TokenizerSource::HuggingFace { folder } => TextCodec::from_folder(folder)?,
        TokenizerSource::Gguf(metadata) => TextCodec::from_gguf(&vocabulary(metadata)?)?,
    };
    if let Some(Err(error)) = text.template().map(ChatTemplate::check) {
        let reason = match &error {
            // Its words are the template's own: no caller has written any yet.
            TextError::Template { what } => what.reveal().to_owned(),
            other => other.to_string(),
        };
        tracing::warn!("the chat template fails on a trial: {reason}");
    }
    Ok(text)
}

#[cfg(feature = "mlx")]
impl crate::Engine {
    /// Sets up an engine for the model at `path`, on MLX: a GGUF file, or a Hugging
    /// Face folder with `config.json` and safetensors. Tokenizer and chat template
    /// come with it. [`model::find`](crate::model::find) finds models by name, where other
    /// programs keep them.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), motet::error::StartError> {
    /// let engine = motet::Engine::open("smollm2-135m-instruct.gguf")?.start().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`StartError`] when a file is missing, damaged or of an unknown kind. The
    /// weights themselves are read by [`start`](crate::EngineBuilder::start).
    pub fn open(path: impl AsRef<Path>) -> Result<crate::EngineBuilder, StartError> {
        Self::open_with(path, MlxOptions::default())
    }

    /// As [`open`](Self::open), with options for how to run the model.
    ///
    /// ```no_run
    /// use motet::model::mlx::{MlxDevice, MlxOptions};
    ///
    /// # async fn example() -> Result<(), motet::error::StartError> {
    /// let options = MlxOptions {
    ///     device: Some(MlxDevice::Cpu),
    ///     deterministic: true,
    ///     ..MlxOptions::default()
    /// };
    /// let engine = motet::Engine::open_with("smollm2-135m-instruct.gguf", options)?;
    /// let engine = engine.start().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open), and when the requested device does not exist. Errors of
    /// [`MlxModel::load`] that concern the options come from
    /// [`start`](crate::EngineBuilder::start).
    pub fn open_with(
        path: impl AsRef<Path>,
        options: MlxOptions,
    ) -> Result<crate::EngineBuilder, StartError> {
        open_at(path.as_ref(), options)
    }
}

#[cfg(feature = "mlx")]
impl crate::EngineBuilder {
    /// Sets the model at `path` as [draft model](Self::draft_model): a file or a folder, as for
    /// [`Engine::open`](crate::Engine::open). Its options are as a rule the model's own.
    ///
    /// ```no_run
    /// use motet::model::mlx::MlxOptions;
    ///
    /// # async fn example() -> Result<(), motet::error::StartError> {
    /// let engine = motet::Engine::open("qwen2.5-coder-1.5b-instruct.gguf")?
    ///     .open_draft_model("qwen2.5-coder-0.5b-instruct.gguf", MlxOptions::default())?
    ///     .start()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Engine::open`](crate::Engine::open);
    /// [`ModelError::DraftModel`] naming both models if a token has other bytes in the draft model.
    pub fn open_draft_model(
        self,
        path: impl AsRef<Path>,
        options: MlxOptions,
    ) -> Result<Self, StartError> {
        let opened = Opened::at(path.as_ref(), options)?;
        if let Some(text) = self.text_codec() {
            let difference = difference(text.tokenizer(), opened.text.tokenizer());
            difference.map_or(Ok(()), |why| {
                Err(ModelError::DraftModel {
                    draft: opened.files.blueprint().name.clone(),
                    target: self.model_name().to_owned(),
                    why,
                })
            })?;
        }
        Ok(self.draft_model(opened.into_load()))
    }
}

/// A model's files and its tokenizer.
#[cfg(feature = "mlx")]
struct Opened {
    files: ModelFiles,
    text: TextCodec,
    options: MlxOptions,
}

#[cfg(feature = "mlx")]
impl Opened {
    fn at(path: &Path, options: MlxOptions) -> Result<Self, StartError> {
        let mut files = ModelFiles::open_with(path, options.file_access)?;
        for part in files.skipped() {
            tracing::info!(
                "{} is not used: {} tensors such as {}",
                part.part,
                part.tensors,
                part.example
            );
        }
        let text = text_of(&files)?;
        // Rows that no token has are neither kept nor computed.
        files.limit_vocabulary(text.tokenizer().vocab_size());
        Ok(Self {
            files,
            text,
            options,
        })
    }

    /// Returns a function that loads the model. A device thread that follows another one takes over
    /// its weights.
    fn into_load(self) -> impl Fn() -> Result<MlxModel, ModelError> + Send + Sync {
        let Self { files, options, .. } = self;
        let retained_weights = RetainedWeights::default();
        move || {
            if retained_weights.is_empty() {
                read_all(&files);
            }
            MlxModel::load_reusing(&files, options.clone(), &retained_weights)
        }
    }
}

/// Not generic over the path, so that the code of a start is compiled once.
#[cfg(feature = "mlx")]
fn open_at(path: &Path, options: MlxOptions) -> Result<crate::EngineBuilder, StartError> {
    let opened = Opened::at(path, options)?;
    let pooling = opened.files.pooling()?;
    let outline = MlxModel::outline(&opened.files, &opened.options)?;
    let watch = opened.files.watch();
    let text = opened.text.clone();
    let builder = crate::Engine::builder(opened.into_load()).outline(outline);
    let replacement = Once::new();
    let builder = builder.check_files(move || {
        let checked = watch.check();
        if let Some(path) = watch.replaced() {
            replacement.call_once(|| {
                tracing::debug!(
                    "{} was replaced; the engine goes on with the file that it opened",
                    path.display()
                );
            });
        }
        checked
    });
    Ok(builder.text(text).pooling(pooling))
}

/// Describes the first token that two tokenizers have with different bytes.
#[cfg(feature = "mlx")]
fn difference(target: &Tokenizer, draft: &Tokenizer) -> Option<String> {
    let tokens = 0..target.vocab_size().min(draft.vocab_size()) as TokenId;
    tokens.into_iter().find_map(|token| {
        let draft = draft.token_bytes(token).ok()?;
        let target = target.token_bytes(token).ok()?;
        let [shown, expected] = [draft, target].map(|bytes| bytes.escape_ascii().to_string());
        (draft != target)
            .then(|| format!("token {token} of it is `{shown}`, and of the model `{expected}`"))
    })
}

/// Reads all weights, so that the first steps need not. Logs how far it is in every second but the
/// first.
#[cfg(feature = "mlx")]
fn read_all(files: &ModelFiles) {
    let started_at = Instant::now();
    let mut logged_seconds = 0;
    files.read_all(|read, all| {
        let seconds = started_at.elapsed().as_secs();
        if seconds > logged_seconds {
            logged_seconds = seconds;
            let name = &files.blueprint().name;
            tracing::info!(
                "{name}: {} of {} MB of weights are read",
                read >> 20,
                all >> 20
            );
        }
    });
}

fn vocabulary(metadata: &GgufMetadata) -> Result<GgufVocabulary, ModelError> {
    let strings = |key| -> Result<Vec<String>, ModelError> {
        let strings = metadata.get_strings(key)?.unwrap_or_default();
        Ok(strings.into_iter().map(str::to_owned).collect())
    };
    let token = |key| -> Result<Option<TokenId>, ModelError> { metadata.get_u32(key) };
    let string = |key| -> Result<Option<String>, ModelError> {
        Ok(metadata.get_str(key)?.map(str::to_owned))
    };
    Ok(GgufVocabulary {
        architecture: string("general.architecture")?,
        model: string("tokenizer.ggml.model")?.unwrap_or_default(),
        pre: string("tokenizer.ggml.pre")?,
        tokens: strings("tokenizer.ggml.tokens")?,
        merges: strings("tokenizer.ggml.merges")?,
        scores: metadata
            .get_f32s("tokenizer.ggml.scores")?
            .unwrap_or_default(),
        token_types: metadata
            .get_i32s("tokenizer.ggml.token_type")?
            .unwrap_or_default(),
        begin: token("tokenizer.ggml.bos_token_id")?,
        end: token("tokenizer.ggml.eos_token_id")?,
        end_of_turn: token("tokenizer.ggml.eot_token_id")?,
        end_of_message: token("tokenizer.ggml.eom_token_id")?,
        unknown: token("tokenizer.ggml.unknown_token_id")?,
        padding: token("tokenizer.ggml.padding_token_id")?,
        add_begin: metadata.get_bool("tokenizer.ggml.add_bos_token")?,
        add_end: metadata.get_bool("tokenizer.ggml.add_eos_token")?,
        add_space_prefix: metadata.get_bool("tokenizer.ggml.add_space_prefix")?,
        chat_template: string("tokenizer.chat_template")?,
        tool_template: string("tokenizer.chat_template.tool_use")?,
    })
}
