//! What is kept: warm, pin, clear, flush, and a look at the trie.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::Engine;
use crate::actors::cache::{AwaitFlushed, Inspect};
use crate::actors::scheduler::CacheCommand;
use crate::error::{CacheCommandError, FlushError, SubmitError};
use crate::request::{CacheUse, Prompt, Request, field_error};
use motet_core::PinId;
use motet_core::cache::{CacheError, Flush, Message, Pin, Salt, TreeView};
use motet_core::protocol::{ContextLimit, SegmentSize, Usage};
use motet_sync::primitives::Ordering;

impl Engine {
    /// Computes a prompt's state, so that requests that begin with it start from the
    /// cache, as far as there is room for it. Waits until that is done. The request's
    /// output settings do not matter.
    ///
    /// # Errors
    ///
    /// [`CacheCommandError`] when the request is refused or fails.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the work; what was computed stays cached.
    pub async fn warm(&self, request: Request) -> Result<Usage, CacheCommandError> {
        check_cached(&request)?;
        // The prompt's state is whole once a token was drawn from it.
        let request = Request {
            output_tokens_max: 1,
            output_tokens_min: 0,
            n: 1,
            best_of: None,
            logprobs: None,
            grammar: None,
            ..request
        };
        let completion = self.submit(request).await?.collect().await?;
        Ok(completion.finish.usage)
    }

    /// Computes the state of a request's prompt and keeps it: it is not evicted until
    /// it is unpinned, or `time_to_live` has passed. Should the device lose it, it is
    /// kept again once a request has computed it again.
    ///
    /// # Errors
    ///
    /// [`CacheCommandError`] when the request is refused or fails, or its prompt is more than
    /// `cache.pinned_bytes_max` leaves.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the prompt cached, and perhaps pinned for its time
    /// to live: give one.
    pub async fn pin(
        &self,
        mut request: Request,
        time_to_live: Option<Duration>,
    ) -> Result<PinId, CacheCommandError> {
        check_cached(&request)?;
        let tokens = self.admit(&mut request).await?.tokens;
        let bytes = self.spec.segment_bytes(SegmentSize::whole(tokens.len()));
        let bytes_max = self.config.cache.pinned_bytes_max();
        if bytes > bytes_max {
            return Err(CacheError::PinTooLarge { bytes, bytes_max }.into());
        }
        let warm = Request {
            prompt: Prompt::Tokens(tokens.to_vec()),
            restore_points: Vec::new(),
            at_context_limit: ContextLimit::Stop,
            ..request
        };
        let pin = Pin {
            pin: PinId(self.pins_made.fetch_add(1, Ordering::Relaxed) as u64 + 1),
            salt: salt(warm.cache_salt.as_deref()),
            tokens,
            time_to_live,
        };
        self.warm(warm.clone()).await?;
        let first = self.run_cache_command(Message::Pin(pin.clone())).await;
        if let Err(CacheCommandError::Cache(CacheError::NotCached { .. })) = first {
            // Another has taken its room between the two: once more.
            self.warm(warm).await?;
            self.run_cache_command(Message::Pin(pin.clone())).await?;
        } else {
            first?;
        }
        Ok(pin.pin)
    }

    /// Gives a pinned prompt up to eviction, like any other.
    ///
    /// # Errors
    ///
    /// [`CacheCommandError::Cache`] when there is no such pin, or it has expired.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the pin or not.
    pub async fn unpin(&self, pin: PinId) -> Result<(), CacheCommandError> {
        self.run_cache_command(Message::Unpin { pin }).await
    }

    /// Evicts everything that no live sequence and no pin holds, cached for the requests
    /// of a `cache_salt`, or for those without one.
    ///
    /// # Errors
    ///
    /// [`CacheCommandError::Stopped`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the cache cleared or not.
    pub async fn clear_cache(&self, cache_salt: Option<&str>) -> Result<(), CacheCommandError> {
        let salt = Some(salt(cache_salt));
        self.run_cache_command(Message::Clear { salt }).await
    }

    /// Evicts everything that no live sequence and no pin holds, whosever it is.
    ///
    /// # Errors
    ///
    /// [`CacheCommandError::Stopped`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the cache cleared or not.
    pub async fn clear_all_caches(&self) -> Result<(), CacheCommandError> {
        self.run_cache_command(Message::Clear { salt: None }).await
    }

    /// Copies to the disk what is cached and not there yet, pinned or not, and waits until it
    /// is written: the next start on the same folder finds it. First goes what is kept most
    /// dearly and was used last. What sequences have computed that are not over yet is not
    /// among it, and neither is what the disk tier has no room for. Without a disk tier there
    /// is nothing to do. [`shutdown`](Engine::shutdown) does this too.
    ///
    /// # Errors
    ///
    /// [`FlushError`] when that takes longer than `pager.flush_time`, or the engine has
    /// stopped.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the waiting; part of it may be written, and goes on being
    /// written.
    pub async fn flush(&self) -> Result<(), FlushError> {
        let pager = &self.config.pager;
        if pager.disk.is_none() {
            return Ok(());
        }
        let flushed = tokio::time::timeout(pager.flush_time, self.flush_all()).await;
        flushed.unwrap_or(Err(FlushError::Late {
            flush_time: pager.flush_time,
        }))
    }

    /// Flushes as much at a time as host memory has room for until it is written.
    async fn flush_all(&self) -> Result<(), FlushError> {
        let mut flush = Flush {
            bytes_max: self.config.pager.host_bytes_max / 4,
            retries: true,
        };
        loop {
            let asked = self.run_cache_command(Message::Flush(flush)).await;
            asked.map_err(|_| FlushError::Stopped)?;
            let permit = self.cache_command_permit().await;
            let cache = self.cache.upgrade().ok_or(FlushError::Stopped)?;
            let (reply, answer) = oneshot::channel();
            let asked = cache.tell(AwaitFlushed { reply, permit }).send().await;
            asked.map_err(|_| FlushError::Stopped)?;
            drop(cache);
            let more = answer.await.map_err(|_| FlushError::Stopped)?;
            if !more {
                return Ok(());
            }
            flush.retries = false;
        }
    }

    /// What is cached for the requests of a `cache_salt`, or for those without one: the
    /// trie as data, for pictures and for people.
    ///
    /// # Errors
    ///
    /// [`CacheCommandError::Stopped`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only looks.
    pub async fn cache_tree(
        &self,
        cache_salt: Option<&str>,
    ) -> Result<TreeView, CacheCommandError> {
        let permit = self.cache_command_permit().await;
        let cache = self.cache.upgrade().ok_or(CacheCommandError::Stopped)?;
        let inspect = Inspect {
            salt: salt(cache_salt),
            permit,
        };
        let asked = cache.ask(inspect).send().await;
        asked
            .map(|tree| tree.0)
            .map_err(|_| CacheCommandError::Stopped)
    }

    /// Waits until few enough ask. The turn goes with the question: one whose caller has
    /// gone counts until it is answered.
    pub(super) async fn cache_command_permit(&self) -> OwnedSemaphorePermit {
        let permits = Arc::clone(&self.cache_command_permits);
        permits
            .acquire_owned()
            .await
            .expect("the semaphore is never closed")
    }

    /// Has the cache do something. Where that fails meanwhile, it is asked again.
    async fn run_cache_command(&self, message: Message) -> Result<(), CacheCommandError> {
        match self.send_cache_command(message.clone()).await {
            Err(CacheCommandError::Cache(CacheError::Lost)) => {}
            answered => return answered,
        }
        match self.send_cache_command(message).await {
            // It had done so before it failed.
            Err(CacheCommandError::Cache(
                CacheError::PinnedTwice(_) | CacheError::UnknownPin(_),
            )) => Ok(()),
            answered => answered,
        }
    }

    async fn send_cache_command(&self, message: Message) -> Result<(), CacheCommandError> {
        let permit = Some(self.cache_command_permit().await);
        let (reply, answer) = oneshot::channel();
        let cache_command = CacheCommand {
            message,
            reply,
            permit,
        };
        let asked = self.scheduler.tell(cache_command).send().await;
        asked.map_err(|_| CacheCommandError::Stopped)?;
        answer.await.map_err(|_| CacheCommandError::Stopped)??;
        Ok(())
    }
}

/// What is to be kept must be cached.
fn check_cached(request: &Request) -> Result<(), SubmitError> {
    match request.cache {
        CacheUse::Shared => Ok(()),
        CacheUse::Off => Err(field_error(
            "cache",
            "off",
            "shared: a prompt is kept in the cache",
        )),
    }
}

/// The salt of this name, or that of all who name none.
pub(super) fn salt(name: Option<&str>) -> Salt {
    name.map(Salt::new).unwrap_or_default()
}

impl From<SubmitError> for CacheCommandError {
    fn from(error: SubmitError) -> Self {
        Self::Submit(Box::new(error))
    }
}
