//! Cache control: warm, pin, clear and flush, and a view of the trie.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::Engine;
use crate::actors::cache::{AwaitFlushed, Inspect};
use crate::actors::scheduler::CacheCommand;
use crate::error::field_error;
use crate::error::{CacheCommandError, FlushError, SubmitError};
use crate::request::{CacheUse, Prompt, Request};
use motet_core::cache::{CacheError, Flush, Message, Pin, PrefixKey, Salt, TreeView};
use motet_protocol::PinId;
use motet_protocol::{ContextLimit, SegmentSize, Usage};
use motet_sync::primitives::Ordering;

impl Engine {
    /// Computes a prompt's state and waits for it, so that requests that begin with the prompt
    /// start from the cache, as far as memory allows. The request's output settings are
    /// ignored.
    ///
    /// # Errors
    ///
    /// [`CacheCommandError`] when the request is rejected or fails.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the work; computed state stays cached.
    #[doc(alias = "prefill")]
    #[doc(alias = "prefix cache")]
    pub async fn warm(&self, request: Request) -> Result<Usage, CacheCommandError> {
        check_cached(&request)?;
        // The prompt's state is complete once a token was sampled from it.
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

    /// Computes the state of a request's prompt and pins it: it is not evicted until it is
    /// unpinned, or `time_to_live` has passed. If the device loses the state, it is pinned
    /// again once a request has computed it again.
    ///
    /// # Errors
    ///
    /// [`CacheCommandError`] when the request is rejected or fails, or its prompt is larger
    /// than the free part of `cache.pinned_bytes_max`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the prompt cached, and perhaps pinned until its time to live
    /// has passed: set one.
    pub async fn pin(
        &self,
        mut request: Request,
        time_to_live: Option<Duration>,
    ) -> Result<PinId, CacheCommandError> {
        check_cached(&request)?;
        let tokens = self.admit(&mut request).await?.tokens;
        let bytes = self
            .inner
            .spec
            .segment_bytes(SegmentSize::whole(tokens.len()));
        let bytes_max = self.inner.config.cache.pinned_bytes_max();
        if bytes > bytes_max {
            return Err(CacheError::PinTooLarge { bytes, bytes_max }.into());
        }
        let warm = Request {
            prompt: Prompt::Tokens(tokens.to_vec()),
            restore_points: Vec::new(),
            turn_end: None,
            at_context_limit: ContextLimit::Stop,
            ..request
        };
        let pin = Pin {
            pin: PinId(self.inner.pins_made.fetch_add(1, Ordering::Relaxed) as u64 + 1),
            key: PrefixKey::of(salt(warm.cache_salt.as_deref())),
            tokens,
            time_to_live,
        };
        self.warm(warm.clone()).await?;
        let first = self.run_cache_command(Message::Pin(pin.clone())).await;
        if let Err(CacheCommandError::Cache(CacheError::NotCached { .. })) = first {
            // The state was evicted between the two commands: compute it once more.
            self.warm(warm).await?;
            self.run_cache_command(Message::Pin(pin.clone())).await?;
        } else {
            first?;
        }
        Ok(pin.pin)
    }

    /// Removes a pin, so that the prompt can be evicted like any other.
    ///
    /// # Errors
    ///
    /// [`CacheCommandError::Cache`] when there is no such pin, or it has expired.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether the pin is removed.
    pub async fn unpin(&self, pin: PinId) -> Result<(), CacheCommandError> {
        self.run_cache_command(Message::Unpin { pin }).await
    }

    /// Evicts all segments of one `cache_salt`, or of requests without a salt, except those in
    /// use by live sequences or pins.
    ///
    /// # Errors
    ///
    /// [`CacheCommandError::Stopped`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether the cache is cleared.
    pub async fn clear_cache(&self, cache_salt: Option<&str>) -> Result<(), CacheCommandError> {
        let salt = Some(salt(cache_salt));
        self.run_cache_command(Message::Clear { salt }).await
    }

    /// Evicts all segments of every salt, except those in use by live sequences or pins.
    ///
    /// # Errors
    ///
    /// [`CacheCommandError::Stopped`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether the caches are cleared.
    pub async fn clear_all_caches(&self) -> Result<(), CacheCommandError> {
        self.run_cache_command(Message::Clear { salt: None }).await
    }

    /// Copies the cached segments that are not on the disk yet to the disk tier, pinned or not,
    /// and waits until they are written: the next start on the same folder finds them. Segments
    /// with the highest retention go first, and among them those used last. The flush excludes
    /// state of sequences that have not finished, and segments that the disk tier has no space
    /// for. With a [remote tier](crate::EngineBuilder::remote_tier), it also waits until the copies for
    /// it are sent. Without either it does nothing. [`shutdown`](Engine::shutdown) flushes too.
    ///
    /// # Errors
    ///
    /// [`FlushError`] when the flush takes longer than `pager.flush_time`, or the engine has
    /// stopped.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the waiting; a part may be written, and writes in progress
    /// continue.
    pub async fn flush(&self) -> Result<(), FlushError> {
        let pager = &self.inner.config.pager;
        if pager.disk.is_none() && pager.remote.is_none() {
            return Ok(());
        }
        let flushed = tokio::time::timeout(pager.flush_time, self.flush_all()).await;
        flushed.unwrap_or(Err(FlushError::Late {
            flush_time: pager.flush_time,
        }))
    }

    /// Flushes in rounds, each at most as large as a quarter of host memory.
    async fn flush_all(&self) -> Result<(), FlushError> {
        let mut flush = Flush {
            bytes_max: self.inner.config.pager.host_bytes_max / 4,
            retries: true,
        };
        loop {
            let asked = self.run_cache_command(Message::Flush(flush)).await;
            asked.map_err(|_| FlushError::Stopped)?;
            let permit = self.cache_command_permit().await;
            let cache = self.inner.cache.upgrade().ok_or(FlushError::Stopped)?;
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

    /// Returns a view of the trie for one `cache_salt`, or for requests without a salt, for
    /// display and inspection.
    ///
    /// # Errors
    ///
    /// [`CacheCommandError::Stopped`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn cache_tree(
        &self,
        cache_salt: Option<&str>,
    ) -> Result<TreeView, CacheCommandError> {
        let permit = self.cache_command_permit().await;
        let cache = self
            .inner
            .cache
            .upgrade()
            .ok_or(CacheCommandError::Stopped)?;
        let inspect = Inspect {
            salt: salt(cache_salt),
            permit,
        };
        let asked = cache.ask(inspect).send().await;
        asked
            .map(|tree| tree.0)
            .map_err(|_| CacheCommandError::Stopped)
    }

    /// Waits for a permit to send to the cache. The permit travels with the message: a message
    /// whose caller has gone counts until it is answered.
    pub(super) async fn cache_command_permit(&self) -> OwnedSemaphorePermit {
        let permits = Arc::clone(&self.inner.cache_command_permits);
        permits
            .acquire_owned()
            .await
            .expect("the semaphore is never closed")
    }

    /// Sends a command to the cache, and repeats it once if the cache was lost meanwhile.
    async fn run_cache_command(&self, message: Message) -> Result<(), CacheCommandError> {
        match self.send_cache_command(message.clone()).await {
            Err(CacheCommandError::Cache(CacheError::Lost)) => {}
            answered => return answered,
        }
        match self.send_cache_command(message).await {
            // The command was carried out before the cache was lost.
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
        let asked = self.inner.scheduler.tell(cache_command).send().await;
        asked.map_err(|_| CacheCommandError::Stopped)?;
        answer.await.map_err(|_| CacheCommandError::Stopped)??;
        Ok(())
    }
}

/// Fails for a request that does not use the cache.
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

/// Returns the salt of this name, or the common salt of requests without one.
pub(super) fn salt(name: Option<&str>) -> Salt {
    name.map(Salt::new).unwrap_or_default()
}

impl From<SubmitError> for CacheCommandError {
    fn from(error: SubmitError) -> Self {
        Self::Submit(Box::new(error))
    }
}
