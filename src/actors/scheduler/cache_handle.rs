//! The scheduler's handle of the cache: messages in order, and as many as answers fit.

use std::collections::VecDeque;

use kameo::actor::ActorRef;
use kameo::error::SendError;
use tokio::sync::mpsc;

use crate::actors::cache::{CacheActor, CacheAnswer};
use motet_core::cache;

/// Messages that the cache may have to answer at once. Further messages wait in the handle.
pub(crate) const PENDING_ANSWERS_MAX: usize = 256;

/// The cache, and the messages that it has not answered.
pub(crate) struct CacheHandle {
    cache: ActorRef<CacheActor>,
    answers: mpsc::Receiver<CacheAnswer>,
    pending_answers: usize,
    /// Messages beyond [`PENDING_ANSWERS_MAX`]; at most as many as sequences can cause.
    outbox: VecDeque<cache::Message>,
}

impl CacheHandle {
    pub(crate) fn new(cache: ActorRef<CacheActor>, answers: mpsc::Receiver<CacheAnswer>) -> Self {
        Self {
            cache,
            answers,
            pending_answers: 0,
            outbox: VecDeque::new(),
        }
    }

    /// Waits for the next answer; `None` when the cache is gone. Cancel safe.
    pub(super) async fn next_answer(&mut self) -> Option<CacheAnswer> {
        self.answers.recv().await
    }

    /// Counts a message as answered.
    pub(super) fn message_answered(&mut self) {
        self.pending_answers -= 1;
    }

    /// Messages that the cache has not answered.
    pub(super) fn pending_answers(&self) -> usize {
        self.pending_answers
    }

    /// Queues a message. [`send_queued`](Self::send_queued) sends it.
    pub(super) fn queue(&mut self, message: cache::Message) {
        self.outbox.push_back(message);
    }

    /// Forgets the messages that were not sent.
    pub(super) fn forget_queued(&mut self) {
        self.outbox.clear();
    }

    /// Sends queued messages, as far as their answers fit.
    pub(super) fn send_queued(&mut self) {
        while self.pending_answers < PENDING_ANSWERS_MAX
            && let Some(message) = self.outbox.pop_front()
        {
            match self.cache.tell(message).try_send() {
                Ok(()) => self.pending_answers += 1,
                Err(SendError::MailboxFull(message)) => {
                    // The mailbox also holds kameo's own signals. An answer is due, and the
                    // message is sent then.
                    self.outbox.push_front(message);
                    return;
                }
                Err(_) => return,
            }
        }
    }
}
