//! A sequence with a slot.

use std::time::Duration;

use motet_core::cache::Message;
use motet_protocol::TokenId;

use crate::trace::Outputs;
use crate::worker::{Lost, Prefilled, Sequence};

#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) sequence: Sequence,
    reused: usize,
    loaded: usize,
    /// Tokens whose state the slot holds.
    pub(crate) computed: usize,
    /// Its output so far. The state of the last token is not computed.
    output: Vec<TokenId>,
    /// Ends of chunks at which the cache wants to be told.
    pub(crate) checkpoints: Vec<usize>,
    /// Tokens at which the cache wants to be told of its blocks.
    pub(crate) report_at: Option<usize>,
    /// When its load from the shared tier ends.
    pub(crate) ready_at: Duration,
    /// Tokens of its prompt in the present step.
    pub(crate) chunk: usize,
}

impl Running {
    pub(crate) fn new(
        sequence: Sequence,
        cached: usize,
        loaded: usize,
        ready_at: Duration,
    ) -> Self {
        Self {
            sequence,
            reused: cached + loaded,
            loaded,
            computed: cached + loaded,
            output: Vec::new(),
            checkpoints: Vec::new(),
            report_at: None,
            ready_at,
            chunk: 0,
        }
    }

    pub(crate) fn is_decoding(&self) -> bool {
        !self.output.is_empty()
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.output.len() >= self.sequence.output_tokens
    }

    /// Tokens of its prompt that a step may have: until a checkpoint or the end.
    pub(crate) fn next_chunk(&self, now: Duration) -> usize {
        if self.is_decoding() || self.ready_at > now {
            return 0;
        }
        let checkpoints = self.checkpoints.iter().copied();
        let end = checkpoints.fold(self.sequence.tokens.len(), usize::min);
        end - self.computed
    }

    /// Ends a step. Returns false if it had no part in it.
    pub(crate) fn advance(&mut self, outputs: &mut Outputs) -> bool {
        if self.is_decoding() {
            self.computed += 1;
        } else if self.chunk == 0 {
            return false;
        } else {
            self.computed += self.chunk;
        }
        if self.computed >= self.sequence.tokens.len() {
            self.output.push(outputs.next());
        }
        true
    }

    /// The report that it has reached checkpoints, if it has. Forgets them.
    pub(crate) fn reached(&mut self) -> Option<Message> {
        let before = self.checkpoints.len();
        self.checkpoints.retain(|at| *at > self.computed);
        (self.checkpoints.len() < before).then_some(Message::Reached {
            sequence: self.sequence.id,
            computed: self.computed,
        })
    }

    /// The report of its progress, if the cache has asked for it. Forgets that.
    pub(crate) fn progress(&mut self) -> Option<Message> {
        self.report_at.take_if(|at| *at <= self.computed)?;
        Some(Message::Computed {
            sequence: self.sequence.id,
            computed: self.computed,
        })
    }

    pub(crate) fn prefilled(&self) -> Prefilled {
        Prefilled {
            sequence: self.sequence.clone(),
            reused: self.reused,
            loaded: self.loaded,
        }
    }

    pub(crate) fn close(self) -> Message {
        Message::Close {
            sequence: self.sequence.id,
            computed: self.computed,
            generated: self.output,
        }
    }

    /// The tokens whose state is computed.
    pub(crate) fn computed_tokens(&self) -> Vec<TokenId> {
        let known = self.sequence.tokens.iter().chain(&self.output);
        known.take(self.computed).copied().collect()
    }

    /// The sequence as another worker goes on with it, after all tokens that this one has sent.
    pub(crate) fn rest(&self) -> Sequence {
        let before = self.sequence.lost;
        Sequence {
            tokens: [&self.sequence.tokens[..], &self.output].concat().into(),
            output_tokens: self.sequence.output_tokens - self.output.len(),
            lost: Some(Lost {
                reused: before.map_or(self.reused, |before| before.reused),
                computed: self.computed,
                is_answered: self.is_decoding() || before.is_some_and(|before| before.is_answered),
            }),
            ..self.sequence
        }
    }
}
