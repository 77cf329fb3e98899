//! The engine: starts the house, takes requests in, lets them out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kameo::actor::{ActorRef, Spawn};
use kameo::mailbox;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::actors::cache::CacheActor;
use crate::actors::scheduler::{ASKED_MAX, Abort, MAILBOX_MAX, Scheduler, SchedulerArgs, Submit};
use crate::actors::sequence::{Guest, Sequence, SequenceArgs};
use crate::cache::CacheCore;
use crate::config::EngineConfig;
use crate::device::Device;
use crate::error::{StartError, SubmitError};
use crate::model::{Model, ModelError, ModelSpec};
use crate::request::{Prompt, Request, field_error};
use crate::scheduler::{SchedulerCore, Submission};
use crate::shared::admission::{Admission, Refusal};
use crate::shared::cancel::CancelWord;
use crate::stream::TokenStream;
use crate::sync::{AtomicUsize, Ordering};
use crate::telemetry::{EngineStats, Telemetry};
use crate::text::{TextCodec, TextOutput};
use crate::{SequenceId, TokenId};

/// How long a caller is asked to wait at least when the queue is full.
const RETRY_AFTER_MIN: Duration = Duration::from_millis(10);
/// The same, at most.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// The same, while nothing is known of how long sequences take.
const RETRY_AFTER_UNKNOWN: Duration = Duration::from_secs(1);

/// One model, shared by many sequences. The only thing an embedder must know.
///
/// Cheap to share behind an [`Arc`](std::sync::Arc); every method takes `&self`
/// but [`shutdown`](Engine::shutdown). Needs a tokio runtime with time enabled.
#[derive(Debug)]
pub struct Engine {
    scheduler: ActorRef<Scheduler>,
    admission: Admission,
    left: Arc<Notify>,
    telemetry: Arc<Telemetry>,
    text: Option<TextCodec>,
    spec: ModelSpec,
    config: EngineConfig,
    sequences_made: AtomicUsize,
    device_gone: oneshot::Receiver<()>,
}

/// Sets an engine up. Made by [`Engine::builder`].
#[derive(Debug)]
pub struct EngineBuilder<B> {
    build: B,
    text: Option<TextCodec>,
    config: EngineConfig,
}

impl Engine {
    /// Sets up an engine for the model that `build` makes. `build` runs on the
    /// device thread, where the model will live.
    pub fn builder<M, B>(build: B) -> EngineBuilder<B>
    where
        M: Model,
        B: FnOnce() -> Result<M, ModelError> + Send + 'static,
    {
        EngineBuilder {
            build,
            text: None,
            config: EngineConfig::default(),
        }
    }

    /// Takes a request in. Its tokens come through the returned stream.
    ///
    /// # Errors
    ///
    /// [`SubmitError`] when a field makes no sense, the request could never fit,
    /// or there is no place for it now. Nothing was spent on it then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before it is ready withdraws the request.
    pub async fn submit(&self, request: Request) -> Result<TokenStream, SubmitError> {
        let submitted_at = Instant::now();
        let guest = match self.admission.enter() {
            Ok(permit) => Guest::new(permit, Arc::clone(&self.left)),
            Err(refusal) => return Err(self.refused(refusal, request)),
        };
        request.validate()?;
        let prompt = self.prompt_tokens(&request.prompt)?;
        let output_tokens_max = self.output_tokens_max(&prompt, &request)?;
        let text = match &self.text {
            Some(text) => Some(TextOutput::new(text, &request.stop_strings)?),
            None if request.stop_strings.is_empty() => None,
            None => {
                return Err(SubmitError::NoTokenizer {
                    field: "stop_strings",
                });
            }
        };

        let number = self.sequences_made.fetch_add(1, Ordering::Relaxed);
        let sequence = SequenceId(number as u64 + 1);
        let cancel = CancelWord::new();
        // A piece for each token, the text held back, and how it ended.
        let (sender, output) = mpsc::channel(output_tokens_max + 2);
        let stream = TokenStream {
            sequence,
            prompt_tokens: prompt.len(),
            output,
            cancel: cancel.clone(),
            scheduler: self.scheduler.downgrade(),
            finish: None,
            over: false,
        };
        let actor = Sequence::spawn(SequenceArgs {
            id: sequence,
            prompt_tokens: prompt.len(),
            text,
            output: sender,
            scheduler: self.scheduler.clone(),
            cancel: cancel.clone(),
            telemetry: Arc::clone(&self.telemetry),
            submitted_at,
            guest,
        });
        let submission = Submission {
            sequence,
            prompt: prompt.into(),
            output_tokens_max,
            sampling: request.sampling,
            ignore_end_tokens: request.ignore_end_tokens,
        };
        let submit = Submit {
            submission,
            actor,
            cancel,
        };
        match self.scheduler.tell(submit).send().await {
            Ok(()) => Ok(stream),
            Err(_) => Err(SubmitError::Draining),
        }
    }

    /// What the engine is doing, and has done.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        self.telemetry.stats()
    }

    /// What the model is.
    #[must_use]
    pub fn model(&self) -> &ModelSpec {
        &self.spec
    }

    /// The tokenizer and chat template, if the engine has them.
    #[must_use]
    pub fn text(&self) -> Option<&TextCodec> {
        self.text.as_ref()
    }

    /// Takes no new requests and waits until all inside have ended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the waiting; the engine stays closed to new
    /// requests.
    pub async fn drain(&self) {
        self.admission.shut();
        loop {
            let mut left = std::pin::pin!(self.left.notified());
            left.as_mut().enable();
            if self.admission.inside() == 0 {
                return;
            }
            left.await;
        }
    }

    /// Ends all sequences now (their callers get [`Shutdown`]) and waits until the
    /// device has freed everything. To let them finish, [`drain`] first.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the shutdown to go on by itself.
    ///
    /// [`drain`]: Engine::drain
    /// [`Shutdown`]: crate::error::GenerateError::Shutdown
    pub async fn shutdown(self) {
        self.admission.shut();
        // A scheduler that is gone has nothing left to end.
        self.scheduler.tell(Abort).send().await.ok();
        drop(self.scheduler);
        // The thread says it is gone, or is gone without a word.
        self.device_gone.await.ok();
    }

    fn refused(&self, refusal: Refusal, request: Request) -> SubmitError {
        self.telemetry.rejected();
        match refusal {
            Refusal::Shut => SubmitError::Draining,
            Refusal::Full => SubmitError::QueueFull {
                retry_after: match self.telemetry.finish_interval() {
                    Duration::ZERO => RETRY_AFTER_UNKNOWN,
                    interval => interval.clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX),
                },
                request: Box::new(request),
            },
        }
    }

    fn prompt_tokens(&self, prompt: &Prompt) -> Result<Vec<TokenId>, SubmitError> {
        let text = |field| self.text.as_ref().ok_or(SubmitError::NoTokenizer { field });
        let tokens = match prompt {
            Prompt::Tokens(tokens) => tokens.clone(),
            Prompt::Text(words) => text("prompt.text")?.encode_prompt(words)?,
            Prompt::Chat(messages) => text("prompt.chat")?.encode_chat(messages)?,
        };
        let vocab_size = self.spec.vocab_size;
        if tokens.is_empty() {
            return Err(field_error("prompt", "empty", "at least one token"));
        }
        if let Some(at) = tokens
            .iter()
            .position(|token| *token as usize >= vocab_size)
        {
            return Err(field_error(
                "prompt",
                format!("token id {} at index {at}", tokens[at]),
                format!("token ids below {vocab_size}"),
            ));
        }
        if tokens.len() >= self.spec.context_tokens_max {
            return Err(field_error(
                "prompt",
                format!("{} tokens long", tokens.len()),
                format!(
                    "fewer than the {} tokens of the model's context",
                    self.spec.context_tokens_max
                ),
            ));
        }
        Ok(tokens)
    }

    /// The longest output that context and device have room for.
    fn output_tokens_max(
        &self,
        prompt: &[TokenId],
        request: &Request,
    ) -> Result<usize, SubmitError> {
        let context_left = self.spec.context_tokens_max - prompt.len();
        let output_tokens_max = request.output_tokens_max.min(context_left);
        let needed_bytes = self.spec.tail_bytes(prompt.len() + output_tokens_max);
        let budget_bytes = self.config.cache.device_bytes_max;
        match needed_bytes <= budget_bytes {
            true => Ok(output_tokens_max),
            false => Err(SubmitError::TooLarge {
                needed_bytes,
                budget_bytes,
            }),
        }
    }
}

impl<M, B> EngineBuilder<B>
where
    M: Model,
    B: FnOnce() -> Result<M, ModelError> + Send + 'static,
{
    /// Lets the engine speak text: without this it takes and gives tokens only.
    #[must_use]
    pub fn text(mut self, text: TextCodec) -> Self {
        self.text = Some(text);
        self
    }

    /// Replaces the default settings.
    #[must_use]
    pub fn config(mut self, config: EngineConfig) -> Self {
        self.config = config;
        self
    }

    /// Loads the model and starts all actors.
    ///
    /// # Errors
    ///
    /// [`StartError`] when a setting cannot work or the model cannot be loaded.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives everything up once the model is loaded.
    pub async fn start(self) -> Result<Engine, StartError> {
        self.config.validate()?;
        let (device, device_gone, spec) = Device::start(self.build).await?;
        let telemetry = Arc::new(Telemetry::new());
        let (answer_sender, answers) = mpsc::channel(ASKED_MAX);
        let cache = CacheActor::spawn_with_mailbox(
            (
                CacheCore::new(spec.clone(), self.config.cache.clone()),
                answer_sender,
            ),
            mailbox::bounded(ASKED_MAX),
        );
        let scheduler = Scheduler::spawn_with_mailbox(
            SchedulerArgs {
                core: SchedulerCore::new(spec.clone(), self.config.scheduler.clone()),
                device,
                cache,
                answers,
                telemetry: Arc::clone(&telemetry),
            },
            mailbox::bounded(MAILBOX_MAX),
        );
        let inside_max = self.config.scheduler.sequences_max + self.config.scheduler.queue_max;
        Ok(Engine {
            scheduler,
            admission: Admission::new(inside_max),
            left: Arc::new(Notify::new()),
            telemetry,
            text: self.text,
            spec,
            config: self.config,
            sequences_made: AtomicUsize::new(0),
            device_gone,
        })
    }
}
