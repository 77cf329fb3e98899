//! Subscribers to block events.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::error::FollowError;
use motet_core::cache::{BlockEvent, CacheCore};

/// Changes that happened together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockBatch {
    /// Number of batches before it in this subscription. A gap means that the reader was too
    /// slow for a batch.
    pub number: u64,
    /// Batches that the reader has missed between the last one and this one.
    pub missed: u64,
    /// The changes, in order.
    pub events: Arc<[BlockEvent]>,
    /// Whether they list all cached blocks: in the first batch, and where
    /// [`request_all`](crate::BlockEvents::request_all) asked for it.
    pub lists_all: bool,
}

/// Most subscribers to block events. The first batch of each lists all cached blocks.
const FOLLOWERS_MAX: usize = 8;

/// All subscribers. While there are none, the core computes no events.
#[derive(Debug, Default)]
pub(super) struct Followers(Vec<Follower>);

#[derive(Debug)]
struct Follower {
    batches: mpsc::Sender<BlockBatch>,
    /// Batches sent to it so far, including those that found its channel full.
    batches_sent: u64,
    /// Those that found it full since the last one that it got.
    missed: u64,
}

impl Followers {
    /// Adds a subscriber, and sends it all cached blocks.
    pub(super) fn add(
        &mut self,
        core: &mut CacheCore,
        batches: mpsc::Sender<BlockBatch>,
    ) -> Result<(), FollowError> {
        self.0.retain(Follower::is_present);
        if self.0.len() == FOLLOWERS_MAX {
            let followers_max = FOLLOWERS_MAX;
            return Err(FollowError::TooMany { followers_max });
        }
        let all = core.follow_blocks().into();
        let mut follower = Follower {
            batches,
            batches_sent: 0,
            missed: 0,
        };
        follower.send_batch(&all, true);
        self.0.push(follower);
        Ok(())
    }

    /// Sends one of the subscribers all cached blocks.
    pub(super) fn send_all(&mut self, core: &mut CacheCore, batches: &mpsc::Sender<BlockBatch>) {
        let is_asked = |follower: &&mut Follower| follower.batches.same_channel(batches);
        if let Some(follower) = self.0.iter_mut().find(is_asked) {
            let all = core.follow_blocks().into();
            follower.send_batch(&all, true);
        }
    }

    /// Sends the changed blocks to all subscribers.
    pub(super) fn notify(&mut self, core: &mut CacheCore) {
        if self.0.is_empty() {
            return;
        }
        self.0.retain(Follower::is_present);
        let events: Arc<[BlockEvent]> = core.take_block_events().into();
        if !events.is_empty() {
            self.0
                .iter_mut()
                .for_each(|follower| follower.send_batch(&events, false));
        }
        if self.0.is_empty() {
            core.unfollow_blocks();
        }
    }
}

impl Follower {
    fn is_present(&self) -> bool {
        !self.batches.is_closed()
    }

    /// Sends a batch if the channel has space; else the next batch shows the gap.
    fn send_batch(&mut self, events: &Arc<[BlockEvent]>, lists_all: bool) {
        let batch = BlockBatch {
            number: self.batches_sent,
            missed: self.missed,
            events: Arc::clone(events),
            lists_all,
        };
        self.batches_sent += 1;
        match self.batches.try_send(batch) {
            Ok(()) => self.missed = 0,
            Err(_) => self.missed += 1,
        }
    }
}
