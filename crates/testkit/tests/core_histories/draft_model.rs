//! A draft model whose drafts are often right.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::harness::HistoryHarness;
use motet_device::{DraftModel, draft_or_drop};
use motet_model::oracle::OracleConfig;
use motet_protocol::{
    DraftForget, DraftModelSpec, DraftOrder, DraftReply, ModelError, SequenceId, Work,
};

/// Duration of a step.
const STEP_TAKES: Duration = Duration::from_micros(100);
/// Duration of a pass of the draft model.
const PASS_TAKES: Duration = Duration::from_micros(5);

/// The draft model of a device, and its replies to the work in flight.
pub(crate) struct Drafts {
    oracle: OracleConfig,
    /// Order at which each draft model fails.
    fails_at: usize,
    draft_model: Option<Box<dyn DraftModel>>,
    /// The replies to each work, and how long it takes.
    replies: VecDeque<Timed>,
    /// Tokens drafted so far.
    pub(crate) tokens: usize,
    /// Draft models that have failed.
    pub(crate) lost: usize,
}

/// The replies to a work, and how long it takes.
type Timed = (Result<Vec<DraftReply>, Box<ModelError>>, Duration);

/// Drafts what the model writes, with mistakes.
struct Mistaken {
    oracle: OracleConfig,
    fails_at: usize,
    orders: usize,
    /// Tokens read of each sequence's text.
    read: BTreeMap<SequenceId, usize>,
}

impl HistoryHarness {
    /// The same harness with a draft model that fails at this order.
    pub(crate) fn with_draft_model(mut self, fails_at: usize) -> Self {
        self.drafts = Some(Drafts::new(&self.oracle, fails_at));
        let scheduler = self.fresh_scheduler();
        self.cores.replace_scheduler(scheduler);
        self
    }
}

impl Drafts {
    pub(crate) fn new(oracle: &OracleConfig, fails_at: usize) -> Self {
        let mut drafts = Self {
            oracle: oracle.clone(),
            fails_at,
            draft_model: None,
            replies: VecDeque::new(),
            tokens: 0,
            lost: 0,
        };
        drafts.renew();
        drafts
    }

    /// The draft model of another device.
    pub(crate) fn renew(&mut self) {
        self.replies.clear();
        self.draft_model = Some(Box::new(Mistaken {
            oracle: self.oracle.clone(),
            fails_at: self.fails_at,
            orders: 0,
            read: BTreeMap::new(),
        }));
    }

    pub(crate) fn spec(&self) -> DraftModelSpec {
        Mistaken::SPEC
    }

    /// Replies to the orders of work that is submitted.
    pub(crate) fn submit(&mut self, work: &Work) {
        let orders = &work.draft_orders;
        assert!(orders.is_empty() || work.spans.is_empty());
        let replies = draft_or_drop(&mut self.draft_model, &work.draft_forgets, orders);
        self.lost += usize::from(replies.is_err());
        let drafted = replies.iter().flatten().map(|reply| reply.tokens.len());
        self.tokens += drafted.sum::<usize>();
        let passes = orders.iter().map(|order| order.draft_tokens.max(1)).max();
        let takes = passes.map_or(STEP_TAKES, |passes| PASS_TAKES * passes as u32);
        self.replies.push_back((replies, takes));
    }

    /// Takes the replies to the oldest work, and how long it took.
    pub(crate) fn finish(&mut self) -> Timed {
        self.replies.pop_front().expect("a work is in flight")
    }
}

impl Mistaken {
    const SPEC: DraftModelSpec = DraftModelSpec {
        text_tokens_max: 50,
        read_tokens_max: 16,
    };
}

impl DraftModel for Mistaken {
    fn spec(&self) -> DraftModelSpec {
        Self::SPEC
    }

    fn draft(&mut self, orders: &[DraftOrder]) -> Result<Vec<DraftReply>, ModelError> {
        assert!(
            self.read.len() <= 64,
            "sequences that have ended are forgotten"
        );
        let replies = orders.iter().map(|order| {
            self.orders += 1;
            if self.orders == self.fails_at {
                return Err(ModelError::Device("it fails then".into()));
            }
            let text: Vec<_> = order.prompt.iter().chain(&order.output).copied().collect();
            assert!(text.len() + order.draft_tokens <= Self::SPEC.text_tokens_max);
            if self.orders.is_multiple_of(20) {
                self.read.clear();
                return Ok(DraftReply::default());
            }
            let read_tokens = self.read.entry(order.sequence).or_default();
            *read_tokens = text.len().min(*read_tokens + order.read_tokens_max);
            let is_read = *read_tokens == text.len();
            let drafted = if is_read { order.draft_tokens } else { 0 };
            let sampling = order.sampling.sampling;
            let mut tokens = self.oracle.reference_tokens(&text, drafted, sampling);
            if self.orders.is_multiple_of(3)
                && let Some(last) = tokens.last_mut()
            {
                *last = 1;
            }
            Ok(DraftReply {
                tokens,
                read_tokens: *read_tokens,
            })
        });
        replies.collect()
    }

    fn forget(&mut self, what: &DraftForget) {
        match what {
            DraftForget::Sequence(sequence) => {
                self.read.remove(sequence);
            }
            DraftForget::Salt(_) | DraftForget::All => self.read.clear(),
        }
    }

    fn trim(&mut self) {}
}
