//! Callers, and the times of their tokens.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use motet::request::Priority;
use motet::{SequenceId, TokenId, UserId};
use motet_core::scheduler::{Effect, Submission};

use super::index;
use crate::measured::percentile;
use crate::programs::arrivals::Arrival;

/// One request and its outcome.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) user: UserId,
    pub(crate) priority: Priority,
    pub(crate) prompt: Arc<[TokenId]>,
    pub(crate) output_tokens: usize,
    pub(crate) came_at: Duration,
    /// Times of its tokens.
    pub(crate) token_times: Vec<Duration>,
    pub(crate) ended_at: Option<Duration>,
    pub(crate) received: Vec<TokenId>,
    pub(crate) error: Option<String>,
    started_at: Option<Duration>,
}

/// How long callers wait, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitSeconds {
    /// For their first token.
    pub(crate) token: f64,
    /// For their slot.
    pub(crate) slot: f64,
}

/// All of them, in the order of their arrival.
#[derive(Debug, Default)]
pub(crate) struct Callers {
    pub(crate) all: Vec<Caller>,
    /// Requests of each user that wait for their first slot.
    pub(crate) waiting: BTreeMap<UserId, usize>,
}

impl Caller {
    /// Seconds until its first token.
    fn first_token_seconds(&self) -> Option<f64> {
        Some((*self.token_times.first()? - self.came_at).as_secs_f64())
    }

    /// Seconds from its arrival until it had a slot.
    fn slot_seconds(&self) -> Option<f64> {
        Some((self.started_at? - self.came_at).as_secs_f64())
    }

    /// Prompt and output tokens, as far as it has them.
    pub(crate) fn tokens(&self) -> usize {
        self.prompt.len() + self.received.len()
    }
}

impl std::fmt::Display for WaitSeconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.3} s ({:.3} for a slot)", self.token, self.slot)
    }
}

impl Callers {
    pub(super) fn admit(&mut self, arrival: Arrival, now: Duration) -> Submission {
        let prompt: Arc<[TokenId]> = arrival.prompt.into();
        self.all.push(Caller {
            user: arrival.user,
            priority: arrival.priority,
            prompt: Arc::clone(&prompt),
            output_tokens: arrival.output_tokens,
            // It may have arrived while a step was submitted.
            came_at: arrival.at.min(now),
            token_times: Vec::new(),
            ended_at: None,
            received: Vec::new(),
            error: None,
            started_at: None,
        });
        *self.waiting.entry(arrival.user).or_default() += 1;
        let sequence = SequenceId(self.all.len() as u64);
        Submission {
            user: arrival.user,
            priority: arrival.priority,
            ..Submission::new(sequence, prompt, arrival.output_tokens)
        }
    }

    pub(super) fn deliver(&mut self, effect: Effect, now: Duration) {
        match effect {
            Effect::Started { sequence, .. } => self.left_queue(sequence, now),
            Effect::Token(sequence, token, _) => {
                let caller = &mut self.all[index(sequence)];
                caller.token_times.push(now);
                caller.received.push(token);
            }
            Effect::Finished(sequence, _) => {
                self.left_queue(sequence, now);
                self.all[index(sequence)].ended_at = Some(now);
            }
            Effect::Failed(sequence, error) => {
                self.left_queue(sequence, now);
                let caller = &mut self.all[index(sequence)];
                caller.ended_at = Some(now);
                caller.error = Some(error.to_string());
            }
            _ => {}
        }
    }

    fn left_queue(&mut self, sequence: SequenceId, now: Duration) {
        let caller = &mut self.all[index(sequence)];
        if caller.started_at.is_none() {
            caller.started_at = Some(now);
            let waiting = self.waiting.get_mut(&caller.user);
            *waiting.expect("it was counted when it came") -= 1;
        }
    }

    /// The p99 of the seconds until the first token of the `selected` callers, and of the
    /// seconds until they had a slot.
    pub(crate) fn waits(&self, selected: impl Fn(&Caller) -> bool) -> WaitSeconds {
        let selected: Vec<&Caller> = self.all.iter().filter(|caller| selected(caller)).collect();
        let p99 = |of: fn(&Caller) -> Option<f64>| {
            let all: Vec<f64> = selected.iter().filter_map(|caller| of(caller)).collect();
            percentile(&all, 0.99)
        };
        WaitSeconds {
            token: p99(Caller::first_token_seconds),
            slot: p99(Caller::slot_seconds),
        }
    }

    /// Tokens of all, prompt and output.
    pub(crate) fn tokens(&self) -> usize {
        self.all.iter().map(Caller::tokens).sum()
    }

    /// The error of the first caller that failed.
    pub(crate) fn failed(&self) -> Option<&str> {
        self.all.iter().find_map(|caller| caller.error.as_deref())
    }
}
