//! An answer's events, collected.

use std::sync::Arc;

use motet::request::MeanLogprob;

use super::{AnswerEnd, AnswerEvent, AnswerPiece, Answers, ScoredToken};
use crate::error::ApiError;

/// A complete answer.
#[derive(Debug, Default)]
pub(crate) struct WholeAnswer {
    /// Its parts in the order in which they were generated.
    pub(crate) items: Vec<AnswerItem>,
    /// Log probabilities, where the client asks for them: one for each token.
    pub(crate) logprobs: Arc<Vec<ScoredToken>>,
    /// The mean of the tokens' log probabilities, where they are known.
    pub(crate) mean_logprob: MeanLogprob,
    /// Why it ended; `None` before its end.
    pub(crate) end: Option<AnswerEnd>,
}

/// A part of an answer. Two parts of the same kind of text never follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AnswerItem {
    Reasoning(String),
    Text(String),
    Call {
        id: String,
        name: String,
        /// JSON, unless the call is cut off or malformed: then its beginning.
        arguments: String,
    },
}

impl WholeAnswer {
    /// Adds the next piece.
    fn push(&mut self, piece: AnswerPiece) {
        match (piece, self.items.last_mut()) {
            (AnswerPiece::Reasoning(more), Some(AnswerItem::Reasoning(text)))
            | (AnswerPiece::Text(more), Some(AnswerItem::Text(text)))
            | (
                AnswerPiece::CallArguments { json: more, .. },
                Some(AnswerItem::Call {
                    arguments: text, ..
                }),
            ) => text.push_str(&more),
            (AnswerPiece::Reasoning(text), _) => self.items.push(AnswerItem::Reasoning(text)),
            (AnswerPiece::Text(text), _) => {
                if !text.is_empty() {
                    self.items.push(AnswerItem::Text(text));
                }
            }
            (AnswerPiece::CallStarted { id, name, .. }, _) => self.items.push(AnswerItem::Call {
                id,
                name,
                arguments: String::new(),
            }),
            (AnswerPiece::CallArguments { .. } | AnswerPiece::CallEnded { .. }, _) => {}
        }
    }

    /// All of its text.
    pub(crate) fn text(&self) -> String {
        let texts = self.items.iter().filter_map(|item| match item {
            AnswerItem::Text(text) => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }

    /// All of its reasoning.
    pub(crate) fn reasoning(&self) -> String {
        let texts = self.items.iter().filter_map(|item| match item {
            AnswerItem::Reasoning(text) => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }
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
        let mut kept: Vec<Vec<ScoredToken>> = vec![Vec::new(); self.count()];
        while let Some((number, event)) = self.next().await {
            let answer = &mut answers[number];
            match event {
                AnswerEvent::Prefilled(_) => {}
                AnswerEvent::Piece { piece, logprobs } => {
                    for (_, token) in &logprobs {
                        answer.mean_logprob.add(token.logprob);
                    }
                    let rows = if keeps_logprobs { logprobs.len() } else { 0 };
                    self.kept().add(piece.bytes(), rows)?;
                    if keeps_logprobs {
                        kept[number].extend(logprobs);
                    }
                    answer.push(piece);
                }
                AnswerEvent::Ended { end, .. } => answer.end = Some(end),
                AnswerEvent::Failed(error) => return Err(error),
            }
        }
        self.kept().complete();
        for (answer, logprobs) in answers.iter_mut().zip(kept) {
            answer.logprobs = Arc::new(logprobs);
        }
        Ok(answers)
    }
}
