//! What SmolLM2 says of a prompt alone: the model driven by hand, without engine, scheduler or
//! cache. One model for all tests, on a thread of its own.

use std::collections::BTreeMap;
use std::sync::{OnceLock, mpsc};

use motet::TokenId;
use motet::model::mlx::MlxModel;
use motet::model::sampling::Sampling;
use motet::model::{Model, Tail};

use crate::harness::{Slot, sampled, token};
use crate::setup::{files, options};

/// When a context is full, and what stays of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shift {
    pub(crate) context_tokens: usize,
    pub(crate) keep: usize,
}

struct Question {
    prompt: Vec<TokenId>,
    output_tokens: usize,
    sampling: Sampling,
    shift: Option<Shift>,
    answer: mpsc::Sender<Vec<TokenId>>,
}

impl Shift {
    /// Tokens that go when the context is full: half of what is not kept.
    pub(crate) fn discarded_tokens(self) -> usize {
        (self.context_tokens - self.keep) / 2
    }
}

/// The likeliest tokens after a prompt.
pub(crate) fn reference_output(prompt: &[TokenId], output_tokens: usize) -> Vec<TokenId> {
    ask(prompt, output_tokens, Sampling::GREEDY, None)
}

/// Tokens drawn after a prompt.
pub(crate) fn sampled_reference_output(
    prompt: &[TokenId],
    output_tokens: usize,
    sampling: Sampling,
) -> Vec<TokenId> {
    ask(prompt, output_tokens, sampling, None)
}

/// The likeliest tokens after a prompt, where the context is full before the end.
pub(crate) fn shifted_reference_output(
    prompt: &[TokenId],
    output_tokens: usize,
    shift: Shift,
) -> Vec<TokenId> {
    ask(prompt, output_tokens, Sampling::GREEDY, Some(shift))
}

fn ask(
    prompt: &[TokenId],
    output_tokens: usize,
    sampling: Sampling,
    shift: Option<Shift>,
) -> Vec<TokenId> {
    static QUESTIONS: OnceLock<mpsc::Sender<Question>> = OnceLock::new();
    let questions = QUESTIONS.get_or_init(|| {
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || answer_all(receiver));
        sender
    });
    let (answer, answered) = mpsc::channel();
    let question = Question {
        prompt: prompt.to_vec(),
        output_tokens,
        sampling,
        shift,
        answer,
    };
    questions.send(question).expect("the thread is there");
    answered.recv().expect("the thread answers")
}

fn answer_all(questions: mpsc::Receiver<Question>) {
    let mut model = MlxModel::load(files(), options()).expect("a model");
    let mut known: BTreeMap<(Vec<TokenId>, Option<Shift>), Vec<TokenId>> = BTreeMap::new();
    for question in questions {
        let key = (question.prompt.clone(), question.shift);
        let found = known.get(&key).filter(|output| {
            question.sampling == Sampling::GREEDY && output.len() >= question.output_tokens
        });
        let mut output = match found {
            Some(output) => output.clone(),
            None => generate(&mut model, &question),
        };
        if question.sampling == Sampling::GREEDY {
            known.insert(key, output.clone());
        }
        output.truncate(question.output_tokens);
        // A test that has failed does not wait for its answer.
        question.answer.send(output).ok();
    }
}

fn generate(model: &mut MlxModel, question: &Question) -> Vec<TokenId> {
    let mut slot = Slot::new(model, &[]);
    let mut next = question.prompt.clone();
    let mut output = Vec::new();
    for index in 0..question.output_tokens as u64 {
        if let Some(shift) = question.shift
            && slot.tail.tokens() == shift.context_tokens
        {
            let gone = shift.keep..shift.keep + shift.discarded_tokens();
            let removed = model.remove(&[], 0, &mut slot.tail, gone);
            removed.expect("keys of full attention can be moved");
        }
        let span_output = slot.step(model, &next, sampled(question.sampling, index));
        next = vec![token(span_output)];
        output.extend(&next);
    }
    output
}
