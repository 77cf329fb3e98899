//! What the cache holds, told to those who want to know as it changes.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::Engine;
use crate::actors::cache::Follow;
use crate::error::FollowError;
use motet_core::cache::BlockEvent;

/// Batches that may wait for a reader; those beyond are lost to it. There is about one for
/// each sequence that ends.
const UNREAD_MAX: usize = 1024;

/// The changes of what is cached, from [`Engine::follow_blocks`] on. Dropping it ends that.
#[derive(Debug)]
pub struct BlockEvents {
    batches: mpsc::Receiver<BlockBatch>,
}

/// Changes that came at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockBatch {
    /// Batches before it since it was asked for. Where one is left out, the reader was too
    /// slow for it.
    pub number: u64,
    /// The changes, in order.
    pub events: Arc<[BlockEvent]>,
}

impl BlockEvents {
    /// The next changes; none when the engine has ended.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: no batch is lost.
    pub async fn next(&mut self) -> Option<BlockBatch> {
        self.batches.recv().await
    }
}

impl Engine {
    /// Tells what is cached on the device, of all salts, in blocks of `cache.block_tokens`
    /// tokens: first all that is there, then what comes and goes. It is what routers need
    /// which choose among engines by prefix. A model that cannot resume after any token
    /// may be able to use less than that.
    ///
    /// Nobody waits for a reader. Who is slow misses batches, as their numbers say, and
    /// may ask again, to be told all that is there. While nobody follows, nothing is
    /// computed for it.
    ///
    /// The events hold tokens, which is what users have said, and those of all tenants:
    /// keep them as you keep that, or leave out what has a [`Salt`](motet_core::cache::Salt).
    ///
    /// # Errors
    ///
    /// [`FollowError`] when the engine has stopped, or too many follow it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the following.
    pub async fn follow_blocks(&self) -> Result<BlockEvents, FollowError> {
        let (follower, batches) = mpsc::channel(UNREAD_MAX);
        let permit = self.cache_command_permit().await;
        let cache = self.cache.upgrade().ok_or(FollowError::Stopped)?;
        let asked = cache.ask(Follow { follower, permit }).send().await;
        match asked {
            Ok(()) => Ok(BlockEvents { batches }),
            Err(kameo::error::SendError::HandlerError(error)) => Err(error),
            Err(_) => Err(FollowError::Stopped),
        }
    }
}
