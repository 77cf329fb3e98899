//! Answers to the scheduler, in order.

use std::collections::VecDeque;

use tokio::sync::mpsc;

use motet_core::cache::{CacheError, CacheStats, Effect};
use motet_protocol::SequenceId;

/// The answer of the cache to one message.
#[derive(Debug)]
pub(crate) struct CacheAnswer {
    pub(crate) result: Result<Vec<Effect>, CacheError>,
    pub(crate) stats: CacheStats,
    /// Whether it answers a message from the scheduler.
    pub(crate) is_reply: bool,
    /// The sequence that the message was about, if any, where the core panicked at the message.
    pub(crate) suspect: Option<SequenceId>,
}

/// The way to the scheduler.
#[derive(Debug)]
pub(super) struct AnswerSender {
    answers: mpsc::Sender<CacheAnswer>,
    /// Answers that did not fit: events from the pager come in addition to replies.
    outbox: VecDeque<CacheAnswer>,
}

impl AnswerSender {
    pub(super) fn new(answers: mpsc::Sender<CacheAnswer>) -> Self {
        Self {
            answers,
            outbox: VecDeque::new(),
        }
    }

    /// Whether answers wait for space.
    pub(super) fn is_waiting(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Sends an answer after those that are still waiting. Returns false when the receiver is
    /// gone.
    pub(super) fn send(&mut self, answer: CacheAnswer) -> bool {
        if self.is_waiting() {
            self.outbox.push_back(answer);
            return true;
        }
        match self.answers.try_send(answer) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Closed(_)) => false,
            Err(mpsc::error::TrySendError::Full(answer)) => {
                self.outbox.push_back(answer);
                true
            }
        }
    }

    /// Waits for space and sends the oldest waiting answer. Returns false when the receiver is
    /// gone. Cancel safe.
    pub(super) async fn send_waiting(&mut self) -> bool {
        let Ok(permit) = self.answers.reserve().await else {
            return false;
        };
        if let Some(answer) = self.outbox.pop_front() {
            permit.send(answer);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_that_do_not_fit_keep_their_order() {
        let (sender, mut answers) = mpsc::channel(1);
        let mut sender = AnswerSender::new(sender);
        let suspects = [1, 2, 3].map(SequenceId);
        for suspect in suspects {
            assert!(sender.send(CacheAnswer {
                result: Ok(Vec::new()),
                stats: CacheStats::default(),
                is_reply: true,
                suspect: Some(suspect),
            }));
        }
        for suspect in suspects {
            let answer = answers.recv().await.expect("an answer");
            assert_eq!(answer.suspect, Some(suspect));
            if sender.is_waiting() {
                assert!(sender.send_waiting().await);
            }
        }
        drop(answers);
        assert!(!sender.send_waiting().await);
    }
}
