//! The cache's handle of the pager, where there is one.

use std::collections::VecDeque;

use kameo::actor::ActorRef;
use kameo::error::SendError;
use tokio::sync::oneshot;

use crate::actors::pager::{AwaitWritten, PagerActor};
use crate::runtime::{EngineRuntime, Part, Runtime};
use motet_core::cache::CacheCore;
use motet_core::pager;

/// The pager, and what waits for it.
#[derive(Default)]
pub(super) struct PagerHandle {
    pager: Option<ActorRef<PagerActor>>,
    /// Messages that found the pager's mailbox full; at most as many as sequences can cause.
    outbox: VecDeque<pager::Message>,
    /// Callers that wait until no flush is in progress.
    flushers: VecDeque<AwaitWritten>,
}

impl PagerHandle {
    /// Connects the cache to its pager.
    pub(super) fn attach(&mut self, pager: ActorRef<PagerActor>) {
        self.pager = Some(pager);
    }

    /// Whether anything is to be sent again after a while: the pager may send nothing that wakes
    /// the cache.
    pub(super) fn is_behind(&self, core: &CacheCore) -> bool {
        let flushed = !self.flushers.is_empty() && !core.is_flushing();
        self.pager.is_some() && (flushed || !self.outbox.is_empty())
    }

    /// Adds a caller that waits until no flush is in progress.
    pub(super) fn add_flusher(&mut self, core: &CacheCore, reply: oneshot::Sender<bool>) {
        self.flushers.retain(|flusher| !flusher.reply.is_closed());
        self.flushers.push_back(AwaitWritten {
            reply,
            has_more: false,
        });
        self.forward_flushers(core);
    }

    /// Sends pending messages to the pager. Returns false when the pager is gone.
    pub(super) fn send(&mut self, core: &mut CacheCore, runtime: &EngineRuntime) -> bool {
        self.outbox.extend(core.take_outbox());
        let Some(pager) = &self.pager else {
            return true;
        };
        while let Some(message) = self.outbox.pop_front() {
            match pager.tell(message).try_send() {
                Ok(()) => {}
                // Sent again with the next message, or after a while.
                Err(SendError::MailboxFull(message)) => {
                    runtime.on_full_mailbox(Part::Pager);
                    self.outbox.push_front(message);
                    return true;
                }
                Err(_) => return false,
            }
        }
        self.forward_flushers(core);
        true
    }

    /// Forgets a pager that is gone, and all that waits for it.
    pub(super) fn forget(&mut self) {
        self.outbox.clear();
        self.flushers.clear();
        self.pager = None;
    }

    /// Passes flush requests on to the pager once no flush is in progress: then the pager has
    /// received every offload candidate.
    fn forward_flushers(&mut self, core: &CacheCore) {
        if self.flushers.is_empty() || core.is_flushing() || !self.outbox.is_empty() {
            return;
        }
        let Some(pager) = &self.pager else {
            // Without a pager no write happens: the waiting callers see their channel closed.
            return self.flushers.clear();
        };
        let has_more = core.has_not_offloaded();
        while let Some(flusher) = self.flushers.pop_front() {
            let flusher = AwaitWritten {
                has_more,
                ..flusher
            };
            // Sent again with the next message, or after a while.
            if let Err(SendError::MailboxFull(flusher)) = pager.tell(flusher).try_send() {
                return self.flushers.push_front(flusher);
            }
        }
    }
}
