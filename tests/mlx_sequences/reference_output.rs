//! Reference outputs of SmolLM2 for single prompts: the model stepped by hand, without engine,
//! scheduler or cache. All tests share one model on its own thread.

use std::collections::BTreeMap;
use std::sync::{OnceLock, mpsc};

use motet::TokenId;
use motet::model::Model;
use motet::model::mlx::MlxModel;
use motet::request::Sampling;
use motet_model::Tail;

use crate::harness::{Slot, sampled, token};
use crate::setup::{files, options};

/// The context size, and how many of its first tokens are kept when it is full.
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
    /// Tokens that are discarded when the context is full: half of those that are not kept.
    pub(crate) fn discarded_tokens(self) -> usize {
        (self.context_tokens - self.keep) / 2
    }
}

/// The greedy output after a prompt.
pub(crate) fn reference_output(prompt: &[TokenId], output_tokens: usize) -> Vec<TokenId> {
    ask(prompt, output_tokens, Sampling::GREEDY, None)
}

/// The output sampled after a prompt.
pub(crate) fn sampled_reference_output(
    prompt: &[TokenId],
    output_tokens: usize,
    sampling: Sampling,
) -> Vec<TokenId> {
    ask(prompt, output_tokens, sampling, None)
}

/// The greedy output after a prompt, where the context becomes full before the end.
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
    questions
        .send(question)
        .expect("the reference thread is running");
    answered.recv().expect("the reference thread answers")
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
        // A failed test no longer waits for its answer.
        question.answer.send(output).ok();
    }
}

fn generate(model: &mut MlxModel, question: &Question) -> Vec<TokenId> {
    let mut slot = Slot::new(model, &[]);
    let mut next = question.prompt.clone();
    let mut output = Vec::new();
    let begin = question.prompt.len() as u64;
    for position in begin..begin + question.output_tokens as u64 {
        if let Some(shift) = question.shift
            && slot.tail.tokens() == shift.context_tokens
        {
            let gone = shift.keep..shift.keep + shift.discarded_tokens();
            let removed = model.remove(&[], 0, &mut slot.tail, gone);
            removed.expect("keys of full attention can be moved");
        }
        let span_output = slot.step(model, &next, sampled(question.sampling, position));
        next = vec![token(span_output)];
        output.extend(&next);
    }
    output
}
