//! One sequence's way through a grammar, a step ahead of its draws.

use super::pool::{Arrival, Begin, Pending};
use super::{Grammar, GrammarError, Matcher, Next};
use crate::TokenId;

/// Follows one output through a grammar on the threads of its pool: a token that is
/// accepted is taken in there, and the mask of the next one computed.
#[derive(Debug)]
pub struct GrammarWalk {
    grammar: Grammar,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// At the beginning, whose mask the grammar has.
    Start,
    Waiting(Pending),
    There(Box<Matcher>, Next),
    Failed(GrammarError),
}

impl GrammarWalk {
    /// The walk of an output that has these tokens already. Where it is, and what it
    /// allows next, is what it would be had they been accepted one by one.
    #[must_use]
    pub fn new(grammar: Grammar, output: &[TokenId]) -> Self {
        let place = match output {
            [] => Place::Start,
            _ => Place::Waiting(
                grammar
                    .pool
                    .step(Begin::Start(grammar.compiled.clone()), output.to_vec()),
            ),
        };
        Self { grammar, place }
    }

    /// Takes the next token of the output. Does not wait, unless for a token before
    /// it.
    pub fn accept(&mut self, token: TokenId) {
        self.arrive();
        let from = match std::mem::replace(&mut self.place, Place::Start) {
            Place::Start => Begin::Start(self.grammar.compiled.clone()),
            Place::There(matcher, _) => Begin::Here(matcher),
            failed => {
                self.place = failed;
                return;
            }
        };
        self.place = Place::Waiting(self.grammar.pool.step(from, vec![token]));
    }

    /// What may come next; waits for it.
    ///
    /// # Errors
    ///
    /// [`GrammarError::Failed`] when the output cannot go on, and
    /// [`GrammarError::PoolEnded`]; from then on always.
    pub fn next_tokens(&mut self) -> Result<&Next, GrammarError> {
        self.arrive();
        match &self.place {
            Place::Start => Ok(&self.grammar.compiled.first),
            Place::There(_, next) => Ok(next),
            Place::Failed(error) => Err(error.clone()),
            Place::Waiting(_) => unreachable!("it has arrived"),
        }
    }

    fn arrive(&mut self) {
        if !matches!(self.place, Place::Waiting(_)) {
            return;
        }
        let Place::Waiting(pending) = std::mem::replace(&mut self.place, Place::Start) else {
            unreachable!("it was waiting");
        };
        self.place = match pending.wait() {
            Ok(Arrival {
                matcher,
                next: Ok(next),
            }) => Place::There(matcher, next),
            Ok(Arrival {
                next: Err(error), ..
            })
            | Err(error) => Place::Failed(error),
        };
    }
}
