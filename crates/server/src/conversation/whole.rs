//! An answer's events, collected.

use std::mem;
use std::sync::Arc;

use motet::chat::{Answer, ChatEvent};
use motet::request::MeanLogprob;

use super::{Answers, ScoredToken};
use crate::error::ApiError;

/// A complete answer.
#[derive(Debug, Default)]
pub(crate) struct WholeAnswer {
    /// The answer, without its log probabilities.
    pub(crate) answer: Answer,
    /// Log probabilities, where the client asks for them: one for each token.
    pub(crate) logprobs: Arc<Vec<ScoredToken>>,
    /// The mean of the tokens' log probabilities, where they are known.
    pub(crate) mean_logprob: MeanLogprob,
}

impl Answers {
    /// Waits for all answers. Their log probabilities are kept only if `keeps_logprobs`.
    ///
    /// # Errors
    ///
    /// The first answer that fails; the others are cancelled when `self` is dropped.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: the answers so far are lost.
    pub(crate) async fn whole(
        &mut self,
        keeps_logprobs: bool,
    ) -> Result<Vec<WholeAnswer>, ApiError> {
        let mut answers: Vec<WholeAnswer> = Vec::new();
        answers.resize_with(self.count(), WholeAnswer::default);
        while let Some((number, event)) = self.next().await {
            let mut event = event?;
            let whole = &mut answers[number];
            if let ChatEvent::Delta { delta, logprobs } = &mut event {
                for (_, token) in logprobs.iter() {
                    whole.mean_logprob.add(token.logprob);
                }
                if !keeps_logprobs {
                    logprobs.clear();
                }
                self.kept().add(delta.bytes(), logprobs.len())?;
            }
            whole.answer.add(event);
        }
        self.kept().complete();
        for whole in &mut answers {
            whole.logprobs = Arc::new(mem::take(&mut whole.answer.logprobs));
        }
        Ok(answers)
    }
}
