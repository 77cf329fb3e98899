//! Tokens that are appended to an output without a sample: a grammar on paper that forces some,
//! and the end of a reasoning whose budget is used up.

use std::cell::Cell;
use std::sync::{Arc, Mutex};
use std::task::Waker;

use motet_model::oracle::{OracleConfig, ReferenceRun, ShiftRule};
use motet_model::sampling::{Sampler, SamplingSpec, TokenSampling};
use motet_protocol::TokenId;
use motet_protocol::{
    Attached, ConstraintWalk, ForcedTokens, GrammarError, Next, TokenConstraint, TokenMask,
    TokenSpelling, WalkState,
};
use motet_protocol::{ContextLimit, ReasoningBudget};

use crate::harness::Caller;

/// A grammar that forces some tokens, forbids others, and may be complete. Where that is depends on
/// the output only.
#[derive(Debug)]
pub(crate) struct PaperGrammar {
    seed: u64,
    vocab_size: usize,
    walk: Option<Arc<PaperWalk>>,
}

/// A vocabulary in which two of five tokens are parts of a character of three bytes, and the others
/// are letters, some of them merged.
#[derive(Debug)]
pub(crate) struct PaperSpelling;

/// A walk that computes its position anew each time.
#[derive(Debug)]
pub(crate) struct PaperWalk {
    seed: u64,
    vocab_size: usize,
    state: Mutex<(Attached, Vec<TokenId>)>,
}

thread_local!(static LOOKED_AHEAD: Cell<usize> = const { Cell::new(0) });

/// Returns how many tokens of drafts the walks of this thread have followed since the last call.
pub(crate) fn take_looked_ahead() -> usize {
    LOOKED_AHEAD.take()
}

impl PaperGrammar {
    /// The sampling settings of a sequence that follows the grammar of this seed.
    pub(crate) fn spec(seed: u64, oracle: &OracleConfig) -> Arc<SamplingSpec> {
        let grammar = Self {
            seed,
            vocab_size: oracle.vocab_size,
            walk: None,
        };
        let spec = SamplingSpec {
            end_tokens: oracle.end_tokens.clone(),
            grammar: Some(Arc::new(grammar)),
            ..SamplingSpec::default()
        };
        Arc::new(spec).for_one_sequence()
    }

    fn new_walk(&self, output: &[TokenId]) -> Arc<PaperWalk> {
        Arc::new(PaperWalk {
            seed: self.seed,
            vocab_size: self.vocab_size,
            state: Mutex::new((Attached(0), output.to_vec())),
        })
    }
}

impl TokenConstraint for PaperGrammar {
    fn for_one_sequence(&self) -> Arc<dyn TokenConstraint> {
        Arc::new(Self {
            seed: self.seed,
            vocab_size: self.vocab_size,
            walk: Some(self.new_walk(&[])),
        })
    }

    fn sequence_walk(&self) -> Option<Arc<dyn ConstraintWalk>> {
        Some(self.walk.clone()?)
    }

    fn identity(&self) -> usize {
        self.seed as usize
    }

    fn walk(&self, output: &[TokenId]) -> Arc<dyn ConstraintWalk> {
        self.new_walk(output)
    }
}

impl ConstraintWalk for PaperWalk {
    fn attach(&self, output: &[TokenId]) -> Attached {
        let mut state = self.state.lock().unwrap();
        *state = (Attached(state.0.0 + 1), output.to_vec());
        state.0
    }

    fn accept(&self, attached: Attached, tokens: &[TokenId]) {
        let mut state = self.state.lock().unwrap();
        if state.0 == attached {
            state.1.extend_from_slice(tokens);
        }
    }

    fn next_tokens(&self, attached: Attached) -> Result<Next, GrammarError> {
        let state = self.state.lock().unwrap();
        if state.0 != attached {
            return Err(GrammarError::Unwanted);
        }
        Ok(next_after(self.seed, self.vocab_size, &state.1))
    }

    /// It ends early where a mask allows few tokens, as one that has done much work would.
    fn next_tokens_along(
        &self,
        attached: Attached,
        draft: &[TokenId],
    ) -> Result<Vec<Next>, GrammarError> {
        let mut output = self.state.lock().unwrap().1.clone();
        let mut along = vec![self.next_tokens(attached)?];
        for token in draft {
            let before = along.last().expect("there is one");
            let is_costly = before.mask().is_some_and(|mask| mask.count() == 7);
            output.push(*token);
            let next = next_after(self.seed, self.vocab_size, &output);
            if !before.allows(*token) || is_costly || next == Next::Finished {
                break;
            }
            along.push(next);
        }
        LOOKED_AHEAD.set(LOOKED_AHEAD.get() + along.len() - 1);
        Ok(along)
    }

    fn await_mask(&self, output: &[TokenId]) {
        self.attach(output);
    }

    fn wake(&self, _waker: Waker) {}

    fn state(&self) -> WalkState {
        WalkState {
            is_slow: false,
            is_ready: true,
            tokens: self.state.lock().unwrap().1.len(),
        }
    }
}

impl TokenSpelling for PaperSpelling {
    fn spelling(&self, token: TokenId) -> &[u8] {
        match token % 5 {
            1 => b"\xe3",
            2 => b"\x81",
            3 => b"ab",
            4 => b"b",
            _ => b"a",
        }
    }
}

/// The tokens that may follow this output: forced ones, or about all, half or some of them.
fn next_after(seed: u64, vocab_size: usize, output: &[TokenId]) -> Next {
    let forced = forced(seed, output);
    if let Some(first) = forced.first() {
        return Next::Forced(ForcedTokens {
            mask: Arc::new(TokenMask::of(&[*first], vocab_size)),
            tokens: forced.into(),
        });
    }
    let mut next = numbers_after(seed + 1, output);
    if !output.is_empty() && next().is_multiple_of(60) {
        return Next::Finished;
    }
    let one_in = [1, 1, 2, 7][next() % 4];
    let (offset, step) = (next() % one_in, one_in);
    let allowed: Vec<TokenId> = (offset as TokenId..vocab_size as TokenId)
        .step_by(step)
        .collect();
    Next::Mask(Arc::new(TokenMask::of(&allowed, vocab_size)))
}

/// The tokens that must follow this output: the rest of a run that has begun, or a whole one. A
/// run of which another token has come is over.
fn forced(seed: u64, output: &[TokenId]) -> Vec<TokenId> {
    let mut at = 0;
    loop {
        let run = run_after(seed, &output[..at]);
        let rest = &output[at..];
        if run.starts_with(rest) {
            return run[rest.len()..].to_vec();
        }
        at += if !run.is_empty() && rest.starts_with(&run) {
            run.len()
        } else {
            1
        };
    }
}

/// The run that begins after these tokens; mostly none.
fn run_after(seed: u64, output: &[TokenId]) -> Vec<TokenId> {
    let mut next = numbers_after(seed, output);
    let length = if next().is_multiple_of(3) {
        next() % 7
    } else {
        0
    };
    (0..length).map(|_| 1 + (next() % 48) as TokenId).collect()
}

/// Numbers that depend on these tokens.
fn numbers_after(seed: u64, output: &[TokenId]) -> impl FnMut() -> usize {
    let mut hash = seed ^ 0x9E37_79B9_7F4A_7C15;
    for token in output {
        hash = (hash ^ u64::from(*token))
            .wrapping_mul(0x0100_0000_01B3)
            .rotate_left(23);
    }
    move || {
        hash = hash.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (hash >> 33) as usize
    }
}

/// The tokens that end the reasoning after this output, if its budget is used up and, in a spelled
/// output, no character waits for its end. They are looked for from the beginning each time.
fn reasoning_end(budget: &ReasoningBudget, output: &[TokenId], is_spelled: bool) -> Vec<TokenId> {
    let paper = |tokens: &[TokenId]| Paper::new(tokens, is_spelled);
    let (text, open, close) = (paper(output), paper(&budget.open), paper(&budget.close));
    let (mut is_inside, mut begin, mut counted) = (budget.is_open, 0, 0);
    let mut may_open = !open.units.is_empty();
    for end in 1..=text.units.len() {
        let mark = if is_inside { &close } else { &open };
        let part = &text.units[begin..end];
        if !part.ends_with(&mark.units) || !(is_inside || may_open) {
            continue;
        }
        let from = end - mark.units.len();
        if is_inside {
            counted += text.tokens_from(begin, from);
            may_open &= !budget.opens_once;
        } else if budget.opens_once && is_spelled && from > 0 {
            // No token of the vocabulary is white space.
            may_open = false;
            continue;
        }
        (is_inside, begin) = (!is_inside, end);
    }
    let tokens = counted + text.tokens_from(begin, text.units.len());
    if !is_inside || tokens < budget.tokens_max {
        return Vec::new();
    }
    let written = (0..budget.close.len()).rev();
    let mut written = written
        .filter(|length| text.units[begin..].ends_with(&paper(&budget.close[..*length]).units));
    let written = written.next().expect("every output ends with no token");
    let may_wait = is_spelled && written == 0 && tokens < budget.tokens_max + 3;
    if may_wait && ends_inside_character(output) {
        return Vec::new();
    }
    budget.close[written..].to_vec()
}

/// Tokens as bytes, if they are spelled, or as themselves.
struct Paper {
    units: Vec<u32>,
    /// Where each token begins.
    begins: Vec<usize>,
}

impl Paper {
    fn new(tokens: &[TokenId], is_spelled: bool) -> Self {
        let (mut units, mut begins) = (Vec::new(), Vec::new());
        for token in tokens {
            begins.push(units.len());
            if is_spelled {
                units.extend(
                    PaperSpelling
                        .spelling(*token)
                        .iter()
                        .map(|byte| u32::from(*byte)),
                );
            } else {
                units.push(*token);
            }
        }
        Self { units, begins }
    }

    /// The number of tokens that begin within a range.
    fn tokens_from(&self, from: usize, to: usize) -> usize {
        self.begins
            .iter()
            .filter(|at| (from..to).contains(at))
            .count()
    }
}

/// Whether a character of the output's text has begun and may be completed.
fn ends_inside_character(output: &[TokenId]) -> bool {
    let bytes: Vec<u8> = output
        .iter()
        .flat_map(|token| PaperSpelling.spelling(*token))
        .copied()
        .collect();
    bytes.ends_with(b"\xe3") || bytes.ends_with(b"\xe3\x81")
}

/// The output of a reference run of a caller with a grammar, or with a budget for its reasoning: a
/// token at a time, all of them evaluated. An end token says that the grammar is complete.
pub(crate) fn expected_output(oracle: &OracleConfig, caller: &Caller) -> Vec<TokenId> {
    let mut run = ReferenceRun::new(oracle);
    let mut output: Vec<TokenId> = Vec::new();
    for token in &caller.prompt {
        evaluate(&mut run, oracle, caller.at_context_limit, *token);
    }
    while output.len() < caller.output_tokens_max {
        let budget = caller.reasoning.as_ref();
        let end = budget.map_or_else(Vec::new, |budget| {
            reasoning_end(budget, &output, caller.is_spelled)
        });
        let next = caller
            .grammar
            .map(|seed| next_after(seed, oracle.vocab_size, &output));
        let token = match (end.first(), &next) {
            (Some(token), _) => *token,
            (None, Some(Next::Forced(forced))) => forced.tokens[0],
            (None, Some(Next::Finished)) => {
                output.push(oracle.end_tokens[0]);
                break;
            }
            (None, next) => {
                let mask = next.as_ref().and_then(Next::mask);
                sampled(&run, caller, &output, mask.map(|mask| &**mask))
            }
        };
        output.push(token);
        evaluate(&mut run, oracle, caller.at_context_limit, token);
    }
    output
}

fn evaluate(
    run: &mut ReferenceRun,
    oracle: &OracleConfig,
    at_context_limit: ContextLimit,
    token: TokenId,
) {
    if let ContextLimit::Shift { keep } = at_context_limit
        && run.tokens().len() == oracle.context_tokens_max
    {
        run.shift(ShiftRule {
            context_tokens: oracle.context_tokens_max,
            keep,
        });
    }
    run.evaluate(token);
}

fn sampled(
    run: &ReferenceRun,
    caller: &Caller,
    output: &[TokenId],
    mask: Option<&TokenMask>,
) -> TokenId {
    let mut logits = Vec::new();
    run.push_logits(&mut logits);
    if let Some(mask) = mask {
        mask.apply(&mut logits);
    }
    let token_sampling = TokenSampling {
        sampling: caller.sampling,
        position: (caller.prompt.len() + output.len()) as u64,
    };
    // Penalties leave the tokens that a mask forbids where they are.
    let mut sampler = Sampler::new(Arc::default(), caller.sampling, &caller.prompt, output);
    let inputs = sampler.sample_inputs(token_sampling);
    let inputs = inputs.expect("a sampler without a grammar");
    inputs.from_logits(&logits).token
}

#[test]
fn runs_on_paper_continue_themselves() {
    let mut runs = 0;
    for seed in 0..200 {
        let mut output = Vec::new();
        for step in 0..40 {
            let run = forced(seed, &output);
            runs += usize::from(run.len() > 1);
            for taken in 1..run.len() {
                let longer = [&output[..], &run[..taken]].concat();
                assert_eq!(forced(seed, &longer), run[taken..]);
            }
            output.push(run.first().copied().unwrap_or(step % 50));
        }
    }
    assert!(runs > 1_000, "{runs}");
}
