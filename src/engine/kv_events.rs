//! Changes of the cached blocks, sent to subscribers as they happen.

use std::sync::{Arc, Weak};

use tokio::sync::mpsc;

use super::{Engine, Inner};
use crate::actors::cache::{BlockBatch, Follow, SendAllBlocks};
use crate::error::FollowError;

/// Batches that may wait for a reader; further batches are lost to it. A batch is sent when
/// a sequence ends, when a step completes blocks of its prompt, and when copies move.
const UNREAD_MAX: usize = 1024;

/// A subscription to changes of the cached blocks, from [`Engine::follow_blocks`]. Dropping it
/// ends the subscription.
#[derive(Debug)]
pub struct BlockEvents {
    batches: mpsc::Receiver<BlockBatch>,
    follower: mpsc::WeakSender<BlockBatch>,
    engine: Weak<Inner>,
}

impl BlockEvents {
    /// Returns the next changes; `None` when the engine has ended.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: no batch is lost.
    pub async fn next(&mut self) -> Option<BlockBatch> {
        self.batches.recv().await
    }

    /// Asks for all cached blocks. A later batch [lists](BlockBatch::lists_all) them, as they are after
    /// the batches before it.
    ///
    /// # Errors
    ///
    /// [`FollowError::Stopped`] when the engine has stopped.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the question asked.
    pub async fn request_all(&self) -> Result<(), FollowError> {
        let engine = self.engine.upgrade().ok_or(FollowError::Stopped)?;
        let engine = Engine { inner: engine };
        let permit = engine.cache_command_permit().await;
        let cache = engine.inner.cache.upgrade().ok_or(FollowError::Stopped)?;
        let follower = self.follower.upgrade().ok_or(FollowError::Stopped)?;
        let request = SendAllBlocks(Follow { follower, permit });
        let asked = cache.tell(request).send().await;
        asked.map_err(|_| FollowError::Stopped)
    }
}

impl Engine {
    /// Subscribes to the cached blocks, for all salts, in blocks of `cache.block_tokens` tokens:
    /// those on the device and, by their [tier](motet_core::cache::BlockTier), those in copies
    /// that were made or used since the first subscription. The first batch lists all cached
    /// blocks; later batches list the changes. Routers that choose an engine by prefix need
    /// this. A model that cannot resume after any token may be able to reuse less than the
    /// blocks suggest.
    ///
    /// The engine never waits for a reader. A slow reader misses batches, as their numbers
    /// show, and may subscribe again to receive all blocks. Without subscribers nothing is
    /// computed.
    ///
    /// The events contain tokens, and so the text of all tenants' requests: protect them like
    /// the requests, or leave out blocks with a [`Salt`](motet_core::cache::Salt).
    ///
    /// # Errors
    ///
    /// [`FollowError`] when the engine has stopped, or has too many subscribers.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the subscription.
    #[doc(alias = "kv_events")]
    pub async fn follow_blocks(&self) -> Result<BlockEvents, FollowError> {
        let (follower, batches) = mpsc::channel(UNREAD_MAX);
        let permit = self.cache_command_permit().await;
        let cache = self.inner.cache.upgrade().ok_or(FollowError::Stopped)?;
        let events = BlockEvents {
            batches,
            follower: follower.downgrade(),
            engine: Arc::downgrade(&self.inner),
        };
        let asked = cache.ask(Follow { follower, permit }).send().await;
        match asked {
            Ok(()) => Ok(events),
            Err(kameo::error::SendError::HandlerError(error)) => Err(error),
            Err(_) => Err(FollowError::Stopped),
        }
    }
}
