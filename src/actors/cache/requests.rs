//! Messages from the engine and the snapshot task to the cache.

use kameo::actor::ActorRef;
use kameo::message::{Context, Message};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::CacheActor;
use super::followers::BlockBatch;
use crate::actors::pager::PagerActor;
use crate::error::FollowError;
use motet_core::cache::{Salt, TreeView};
use motet_core::snapshot::{CopyView, TrieView};

/// Connects the cache to its pager.
pub(crate) struct AttachPager(pub(crate) ActorRef<PagerActor>);

/// A request for a subscription to block events.
pub(crate) struct Follow {
    pub(crate) follower: mpsc::Sender<BlockBatch>,
    /// Released with the answer.
    pub(crate) permit: OwnedSemaphorePermit,
}

/// A subscriber's request for all cached blocks.
pub(crate) struct SendAllBlocks(pub(crate) Follow);

/// A caller's request for an answer once all that is being flushed has been written.
pub(crate) struct AwaitFlushed {
    /// Receives whether there is more to flush.
    pub(crate) reply: oneshot::Sender<bool>,
    /// Released when the message is handled.
    pub(crate) permit: OwnedSemaphorePermit,
}

/// A request for a view of the trie.
pub(crate) struct Inspect {
    pub(crate) salt: Salt,
    /// Released with the answer.
    pub(crate) permit: OwnedSemaphorePermit,
}

/// A request for the cache's part of a snapshot.
pub(crate) struct TakeTrieSnapshot {
    /// The pager's copies.
    pub(crate) offloaded_copies: Vec<CopyView>,
    /// Released with the answer.
    pub(crate) permit: OwnedSemaphorePermit,
}

/// A view of the trie.
#[derive(kameo::Reply)]
pub(crate) struct Inspected(pub(crate) TreeView);

/// The cache's part of a snapshot.
#[derive(kameo::Reply)]
pub(crate) struct TrieSnapshot(pub(crate) TrieView);

impl Message<AttachPager> for CacheActor {
    type Reply = ();

    async fn handle(
        &mut self,
        AttachPager(pager): AttachPager,
        _ctx: &mut Context<Self, Self::Reply>,
    ) {
        self.pager.attach(pager);
    }
}

impl Message<AwaitFlushed> for CacheActor {
    type Reply = ();

    async fn handle(&mut self, flushed: AwaitFlushed, _ctx: &mut Context<Self, Self::Reply>) {
        let AwaitFlushed { reply, permit } = flushed;
        self.pager.add_flusher(&self.core, reply);
        drop(permit);
    }
}

impl Message<Inspect> for CacheActor {
    type Reply = Inspected;

    async fn handle(
        &mut self,
        inspect: Inspect,
        _ctx: &mut Context<Self, Self::Reply>,
    ) -> Inspected {
        let tree = self.core.tree(&inspect.salt);
        drop(inspect.permit);
        Inspected(tree)
    }
}

impl Message<Follow> for CacheActor {
    type Reply = Result<(), FollowError>;

    async fn handle(
        &mut self,
        Follow { follower, permit }: Follow,
        _ctx: &mut Context<Self, Self::Reply>,
    ) -> Result<(), FollowError> {
        self.followers.add(&mut self.core, follower)?;
        drop(permit);
        Ok(())
    }
}

impl Message<SendAllBlocks> for CacheActor {
    type Reply = ();

    async fn handle(
        &mut self,
        SendAllBlocks(Follow { follower, permit }): SendAllBlocks,
        _ctx: &mut Context<Self, Self::Reply>,
    ) {
        self.followers.send_all(&mut self.core, &follower);
        drop(permit);
    }
}

impl Message<TakeTrieSnapshot> for CacheActor {
    type Reply = TrieSnapshot;

    async fn handle(
        &mut self,
        request: TakeTrieSnapshot,
        _ctx: &mut Context<Self, Self::Reply>,
    ) -> TrieSnapshot {
        let overview = self.core.overview(&request.offloaded_copies);
        drop(request.permit);
        TrieSnapshot(overview)
    }
}
