//! The draft model: when it reads a sequence's text, and when it drafts.
//!
//! The device runs the draft model between two steps, with no other work in flight. A text that the
//! draft model has not read costs it a prefill, which only a long output pays back, and the length of
//! an output is not known. A text is therefore read once the rounds that it would have allowed had
//! saved as much time as reading takes: about twice the better choice's time is then spent at worst
//! (ski rental, Karlin et al., 1988). It is read in chunks, with a step between two of them. Rounds and
//! chunks take no more time before a step than its sequences accept between two tokens.

use std::ops::Range;
use std::time::Duration;

use super::SchedulerCore;
use super::pipeline::{Asked, AskedSequence, PlannedStep};
use super::policy::draft_round::{self, Draftable, ROUND_TOKENS_MAX, Round, RoundCosts};
use super::policy::plan::{self, Budget, Candidate, Share};
use super::policy::row_cost::RowCost;
use super::policy::step_cost::{CostModel, StepCost, StepLoad};
use super::sequence::{ROUND_READ_TOKENS_MAX, SequenceKey};
use motet_protocol::{DraftForget, DraftModelSpec, DraftReply, ModelError};

/// Tokens of the smallest chunk of a text that is read, and of the first one.
const READ_TOKENS_MIN: usize = 32;
/// Steps without the draft model after which the cost of its passes is measured again: so many at
/// first, and twice as many each time.
const STEPS_TO_MEASURE: Range<u32> = 64..4096;
/// Texts that are to be forgotten, at most. If there are more, all are forgotten.
const FORGETS_MAX: usize = 1024;

/// The draft model, as the scheduler knows it.
#[derive(Debug)]
pub(super) struct DraftModel {
    spec: DraftModelSpec,
    /// The cost of its forward passes.
    cost: CostModel,
    /// Whether a pass has run. The first one is not measured: it may take long.
    is_warm: bool,
    /// Whether it has failed. The next device has another one.
    is_lost: bool,
    /// Whether it has read a chunk since the last step.
    has_read_chunk: bool,
    /// Time that it has worked since the last step.
    since_step: Duration,
    /// Steps since its last pass.
    unused_steps: u32,
    /// Such steps after which its cost is measured again.
    steps_to_measure: u32,
    /// Texts to forget with the next work.
    forgets: Vec<DraftForget>,
}

/// An order that is planned: the sequence, most tokens to read, and tokens to draft.
#[derive(Clone, Copy, Debug)]
pub(super) struct DraftModelOrder {
    key: SequenceKey,
    read_tokens: usize,
    draft_tokens: usize,
}

/// A step without the draft model, and the sequences in it that the draft model may draft.
#[derive(Debug)]
struct DraftableStep {
    /// Sequences whose texts it has read.
    read: Vec<Draftable>,
    /// Sequences whose texts it has yet to read.
    unread: Vec<Draftable>,
    load: StepLoad,
    /// Tokens that the step is expected to give.
    tokens: f64,
    draft_rows: usize,
    cost: StepCost,
    row_cost: RowCost,
    /// Longest time for the sake of its sequences, in seconds.
    bound: f64,
}

impl DraftModel {
    pub(super) fn new(spec: DraftModelSpec) -> Self {
        Self {
            spec,
            cost: CostModel::default(),
            is_warm: false,
            is_lost: false,
            has_read_chunk: false,
            since_step: Duration::ZERO,
            unused_steps: 0,
            steps_to_measure: STEPS_TO_MEASURE.start,
            forgets: Vec::new(),
        }
    }

    /// Records that there is another device with another draft model.
    pub(super) fn on_new_device(&mut self) {
        *self = Self::new(self.spec);
    }

    /// Has it forget texts.
    pub(super) fn forget(&mut self, what: DraftForget) {
        if self.forgets.len() == FORGETS_MAX {
            self.forgets = vec![DraftForget::All];
        }
        self.forgets.push(what);
    }

    /// Takes the texts that it is to forget.
    pub(super) fn take_forgets(&mut self) -> Vec<DraftForget> {
        std::mem::take(&mut self.forgets)
    }

    /// Records that a step was submitted.
    pub(super) fn on_step(&mut self) {
        self.has_read_chunk = false;
        self.since_step = Duration::ZERO;
        self.unused_steps += 1;
        if self.unused_steps >= self.steps_to_measure {
            self.unused_steps = 0;
            self.steps_to_measure = (2 * self.steps_to_measure).min(STEPS_TO_MEASURE.end);
            self.cost = CostModel::default();
        }
    }

    /// Records the replies to these orders, and how long they took.
    fn on_replies(&mut self, asked: &Asked, replies: &[DraftReply], took: Duration) {
        self.unused_steps = 0;
        self.since_step = self.since_step.saturating_add(took);
        self.has_read_chunk |= asked.sequences.iter().all(|asked| asked.draft_tokens == 0);
        let pairs = asked.sequences.iter().zip(replies);
        let is_expected = pairs.into_iter().all(|(asked, reply)| {
            reply.read_tokens == asked.read_until
                && reply.tokens.is_empty() == (asked.draft_tokens == 0)
        });
        if std::mem::replace(&mut self.is_warm, true)
            && is_expected
            && let Some(pass_took) = took.checked_div(asked.passes)
        {
            self.cost.observe(asked.load, pass_took);
        }
    }
}

impl DraftableStep {
    /// Returns the round that pays best for some of its sequences, and sorts these by their gain.
    fn round(&self, draftable: &mut [Draftable], pass: StepCost) -> Option<Round> {
        let rows = self.load.tokens as f64;
        let attended = self.load.attended / rows;
        let costs = RoundCosts {
            step: |more: i64| {
                let load = StepLoad {
                    tokens: self.load.tokens.saturating_add_signed(more as isize),
                    attended: self.load.attended + attended * more as f64,
                };
                let verifies = self.draft_rows as i64 + more > 0;
                let idle = if verifies {
                    self.row_cost.idle_after_drafts
                } else {
                    0.0
                };
                self.row_cost.of(load, &self.cost) + idle
            },
            pass: |sequences: usize| {
                pass.of(StepLoad {
                    tokens: sequences,
                    attended: attended * sequences as f64,
                })
            },
            bound: self.bound,
        };
        draft_round::round_that_pays(draftable, self.tokens, &costs)
    }
}

impl SchedulerCore {
    /// Plans the draft model's work before the step of these shares; `None` if the step comes first.
    pub(super) fn plan_drafts(
        &mut self,
        keys: &[SequenceKey],
        candidates: &[Candidate<'_>],
        shares: &[Share],
        budget: &Budget,
    ) -> Option<Vec<DraftModelOrder>> {
        let model = self.drafting.model.as_ref();
        let model = model.filter(|model| !model.is_lost)?;
        let (spec, pass) = (model.spec, model.cost.cost());
        let (has_read_chunk, since_step) = (model.has_read_chunk, model.since_step.as_secs_f64());
        let mut step = self.draftable_step(spec, keys, candidates, shares, budget)?;
        step.bound -= since_step;
        let mut read = std::mem::take(&mut step.read);
        let mut unread = std::mem::take(&mut step.unread);
        let key_of = |draftable: &Draftable| keys[shares[draftable.share].candidate];
        let read_order = |key, tokens: usize| DraftModelOrder {
            key,
            read_tokens: tokens.min(spec.read_tokens_max),
            draft_tokens: 0,
        };
        let Some(pass) = pass else {
            // Chunks measure what a pass costs.
            let first = unread.first().or(read.first());
            let first = first.filter(|_| !has_read_chunk)?;
            return Some(vec![read_order(key_of(first), READ_TOKENS_MIN)]);
        };
        if let Some(round) = step.round(&mut read, pass) {
            let orders = read[..round.sequences]
                .iter()
                .map(|draftable| DraftModelOrder {
                    key: key_of(draftable),
                    read_tokens: ROUND_READ_TOKENS_MAX,
                    draft_tokens: draftable.survival.len().min(round.tokens),
                });
            return Some(orders.collect());
        }
        if has_read_chunk {
            return None;
        }
        let round = step.round(&mut unread, pass)?;
        let keys: Vec<SequenceKey> = unread[..round.sequences].iter().map(key_of).collect();
        let (key, tokens) = self.chunk_that_pays(&keys, round, &step, pass)?;
        Some(vec![read_order(key, tokens)])
    }

    /// Returns which of these sequences' texts is to be read, and how far: one without which rounds
    /// have cost as much as reading takes. `None` if there is none yet, and their step forgoes this
    /// round as well.
    fn chunk_that_pays(
        &mut self,
        keys: &[SequenceKey],
        round: Round,
        step: &DraftableStep,
        pass: StepCost,
    ) -> Option<(SequenceKey, usize)> {
        let step_seconds = step.row_cost.of(step.load, &step.cost);
        let chunk_seconds = step.bound - step_seconds - pass.base;
        let forgone_seconds = round.saved_seconds / round.sequences as f64;
        for key in keys {
            let (read_tokens, left) = self.sequences[*key].unread_tokens()?;
            let chunk = pass.tokens_within(chunk_seconds, read_tokens);
            let chunks = left.div_ceil(chunk.max(READ_TOKENS_MIN));
            let read_seconds =
                pass.base * chunks as f64 + pass.marginal(StepLoad::span(left, read_tokens));
            let forgone_seconds = self.sequences[*key].forgone_seconds() + forgone_seconds;
            if forgone_seconds >= read_seconds && chunk >= READ_TOKENS_MIN.min(left) {
                return Some((*key, chunk));
            }
        }
        for key in keys {
            self.sequences[*key].forgo_round(forgone_seconds);
        }
        None
    }

    /// Returns what the draft model could draft for the step of these shares. `None` unless all of
    /// its sequences decode: a prompt's chunk takes long anyway, and its caller waits for it.
    fn draftable_step(
        &mut self,
        spec: DraftModelSpec,
        keys: &[SequenceKey],
        candidates: &[Candidate<'_>],
        shares: &[Share],
        budget: &Budget,
    ) -> Option<DraftableStep> {
        let mut step = DraftableStep {
            read: Vec::new(),
            unread: Vec::new(),
            load: StepLoad::default(),
            tokens: 0.0,
            draft_rows: 0,
            cost: budget.cost?,
            row_cost: self.drafting.row_costs.now(),
            bound: f64::INFINITY,
        };
        for (index, share) in shares.iter().enumerate() {
            let candidate = &candidates[share.candidate];
            if !candidate.decoding || share.tokens != 1 || candidate.suspect {
                return None;
            }
            let own_tokens = candidate.survival.iter().take(share.draft_tokens);
            let own_tokens: f64 = own_tokens.map(|chance| f64::from(*chance)).sum();
            step.tokens += 1.0 + own_tokens;
            step.draft_rows += share.draft_tokens;
            step.load = step
                .load
                .and(StepLoad::span(1 + share.draft_tokens, candidate.cached));
            let tokens_max = candidate.stop_after.map_or(usize::MAX, |tokens| tokens - 1);
            let key = keys[share.candidate];
            let Some((survival, is_read)) = self.drafting.model_survival(
                &mut self.sequences[key],
                tokens_max.min(ROUND_TOKENS_MAX),
                spec.text_tokens_max,
            ) else {
                continue;
            };
            let draftable = Draftable {
                share: index,
                survival,
                own_rows: share.draft_tokens,
                own_tokens,
            };
            let draftables = if is_read {
                &mut step.read
            } else {
                &mut step.unread
            };
            draftables.push(draftable);
        }
        let bound = plan::inter_token_bound(budget, step.load, shares.len());
        step.bound = bound.unwrap_or(f64::INFINITY);
        (step.load.tokens > 0).then_some(step)
    }

    /// Makes work of these orders.
    pub(super) fn order_drafts(&mut self, orders: &[DraftModelOrder]) -> PlannedStep {
        let mut asked = Asked::default();
        let mut draft_orders = Vec::with_capacity(orders.len());
        for order in orders {
            let sequence = &mut self.sequences[order.key];
            let Some((read_tokens, left)) = sequence.unread_tokens() else {
                continue;
            };
            let is_round = order.draft_tokens > 0;
            let new_tokens = left.min(order.read_tokens);
            let pass_tokens = if is_round { 1 } else { new_tokens };
            asked.load = asked.load.and(StepLoad::span(pass_tokens, read_tokens));
            asked.passes = asked.passes.max(order.draft_tokens.max(1) as u32);
            let draft_order = sequence.ask_draft(order.read_tokens, order.draft_tokens);
            asked.sequences.push(AskedSequence {
                key: order.key,
                id: draft_order.sequence,
                text_tokens: read_tokens + left,
                read_until: read_tokens + new_tokens,
                draft_tokens: order.draft_tokens,
            });
            draft_orders.push(draft_order);
        }
        PlannedStep::of_orders(draft_orders, asked)
    }

    /// Handles what the draft model has done.
    pub(super) fn on_drafts(
        &mut self,
        asked: &Asked,
        drafts: Result<Vec<DraftReply>, Box<ModelError>>,
        took: Duration,
    ) {
        let Some(model) = &mut self.drafting.model else {
            return;
        };
        let Ok(replies) = drafts else {
            model.is_lost = true;
            return;
        };
        if replies.is_empty() {
            return;
        }
        model.on_replies(asked, &replies, took);
        for (asked, reply) in asked.sequences.iter().zip(replies) {
            let sequence = self.sequences.get_mut(asked.key);
            if let Some(sequence) = sequence.filter(|sequence| sequence.id() == asked.id) {
                sequence.take_draft_reply(asked.text_tokens, reply);
            }
        }
    }
}
