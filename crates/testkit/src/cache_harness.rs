//! The cache's core with a device on paper, and the sequences that use it.
//!
//! The harness sends the cache the messages that a scheduler would send, and carries the cache's
//! effects out. It asserts what every driver would: that each sequence is answered once, that its
//! slot holds its own tokens and stays within its grant, and that the device holds exactly what
//! the cache says.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use motet_core::cache::{CacheCore, CacheError, Effect, Message, OpenSlot};
use motet_core::config::{CacheConfig, PagerConfig};
use motet_core::pager;
use motet_protocol::{Edit, ModelSpec, PrefixKey};
use motet_protocol::{SequenceId, SlotId, TokenId};

use crate::paper_device::{PaperDevice, PaperSegment};
use crate::transfer_queue::PaperState;

/// A sequence that the cache was asked to open a slot for.
#[derive(Debug)]
pub struct PaperSequence {
    key: PrefixKey,
    /// Its prompt, and all tokens that it will generate.
    history: Vec<TokenId>,
    prompt_tokens: usize,
    tokens_max: usize,
    live: Option<Live>,
}

/// A sequence with a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live {
    /// Its slot.
    pub slot: SlotId,
    /// Tokens whose state it holds.
    pub computed: usize,
    /// Tokens that its slot may hold.
    pub granted: usize,
    /// Extensions of its grant without an answer.
    extensions: usize,
    /// Offsets that it must report.
    checkpoints: Vec<usize>,
    /// Some of its tokens were removed: the cache's knowledge of it is no longer tracked.
    is_cut: bool,
}

/// The cache's core, its device, and its sequences.
#[derive(Debug)]
pub struct CacheHarness {
    core: CacheCore,
    now: Duration,
    /// `None` if the driver sends messages that no device could follow.
    device: Option<PaperDevice>,
    sequences: BTreeMap<SequenceId, PaperSequence>,
    /// Numbers of fences that the device has not passed.
    fences: VecDeque<u64>,
    /// Messages on their way to the pager.
    outbox: VecDeque<pager::Message>,
}

impl PaperState for PaperSegment {
    fn check(&self, label: &pager::Label) {
        let spelled = self.spelled();
        assert!(
            label.is_of(self.key.digest(), &spelled) && label.end() == spelled.len(),
            "a copy holds the tokens of its label"
        );
    }
}

impl PaperSequence {
    /// Its slot and progress, once it has one.
    #[must_use]
    pub fn live(&self) -> Option<&Live> {
        self.live.as_ref()
    }

    /// Tokens after its prompt that were computed.
    #[must_use]
    pub fn generated(&self) -> Vec<TokenId> {
        let computed = self.live.as_ref().map_or(0, |live| live.computed);
        self.history[self.prompt_tokens..computed.max(self.prompt_tokens)].to_vec()
    }
}

impl Live {
    /// The next offset that it must report.
    #[must_use]
    pub fn checkpoint(&self) -> Option<usize> {
        self.checkpoints.iter().min().copied()
    }

    /// Whether its scheduler waits for a longer grant.
    #[must_use]
    pub fn is_extending(&self) -> bool {
        self.extensions > 0
    }
}

impl CacheHarness {
    /// An empty cache, with a pager or without.
    #[must_use]
    pub fn new(spec: &ModelSpec, config: CacheConfig, pager: Option<&PagerConfig>) -> Self {
        let core = CacheCore::new(spec.clone(), config);
        Self {
            core: match pager {
                Some(pager) => core.with_pager(pager, false),
                None => core,
            },
            now: Duration::ZERO,
            device: Some(PaperDevice::new(spec)),
            sequences: BTreeMap::new(),
            fences: VecDeque::new(),
            outbox: VecDeque::new(),
        }
    }

    /// The same cache without a device, for messages that a device could not follow.
    #[must_use]
    pub fn without_device(mut self) -> Self {
        self.device = None;
        self
    }

    /// The core.
    #[must_use]
    pub fn core(&self) -> &CacheCore {
        &self.core
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &PaperDevice {
        self.device.as_ref().expect("this cache has a device")
    }

    /// The device, for the copy machine at the other end of its transfer queue.
    pub fn device_mut(&mut self) -> &mut PaperDevice {
        self.device.as_mut().expect("this cache has a device")
    }

    /// A sequence that waits for a slot, or has one.
    #[must_use]
    pub fn sequence(&self, sequence: SequenceId) -> Option<&PaperSequence> {
        self.sequences.get(&sequence)
    }

    /// All sequences that wait for a slot, or have one.
    pub fn sequences(&self) -> impl Iterator<Item = SequenceId> {
        self.sequences.keys().copied()
    }

    /// A sequence's slot and progress, if it has a slot.
    #[must_use]
    pub fn live(&self, sequence: SequenceId) -> Option<&Live> {
        self.sequences.get(&sequence)?.live()
    }

    /// Takes the oldest message to the pager.
    pub fn take_message(&mut self) -> Option<pager::Message> {
        self.outbox.pop_front()
    }

    /// Whether a message to the pager is on its way.
    #[must_use]
    pub fn has_messages(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Whether the device has a fence to pass.
    #[must_use]
    pub fn has_fences(&self) -> bool {
        !self.fences.is_empty()
    }

    /// Time passes.
    pub fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// Sends the cache a message, carries its effects out, and returns them. A message that
    /// fails changes nothing.
    ///
    /// # Errors
    ///
    /// The cache's error.
    pub fn send(&mut self, message: Message) -> Result<Vec<Effect>, CacheError> {
        if let Message::ExtendGrant { sequence, .. } = &message
            && let Some(live) = self.live_mut(*sequence)
        {
            live.extensions += 1;
        }
        let may_lose = matches!(message, Message::Lost { .. } | Message::Rewind(_));
        let is_probe = matches!(message, Message::ProbePrefix { .. });
        let handled = self.core.handle(self.now, message);
        let effects = handled.as_deref().unwrap_or_default();
        for effect in effects {
            assert!(
                may_lose || !matches!(effect, Effect::Lost { .. }),
                "nothing was lost"
            );
            let is_cached = matches!(effect, Effect::CachedPrefix { .. });
            assert!(is_probe || !is_cached, "no prefix was probed");
        }
        let keys = self.keys_of_new_slots(effects);
        for effect in effects {
            self.follow(effect, &keys);
        }
        self.outbox.extend(self.core.take_outbox());
        handled
    }

    /// Opens a slot for a sequence, which will generate `output` after its prompt.
    ///
    /// # Errors
    ///
    /// The cache's error. The sequence stays known.
    pub fn open_slot(
        &mut self,
        open_slot: OpenSlot,
        output: &[TokenId],
    ) -> Result<Vec<Effect>, CacheError> {
        let pending = PaperSequence {
            key: open_slot.key.clone(),
            history: [&open_slot.tokens[..], output].concat(),
            prompt_tokens: open_slot.tokens.len(),
            tokens_max: open_slot.tokens_max,
            live: None,
        };
        let before = self.sequences.insert(open_slot.sequence, pending);
        assert!(before.is_none(), "a sequence asks for one slot");
        self.send(Message::OpenSlot(open_slot))
    }

    /// The sequence computes so many tokens.
    pub fn compute(&mut self, sequence: SequenceId, tokens: usize) {
        let of = self.sequences.get_mut(&sequence).expect("it is known");
        let live = of.live.as_mut().expect("it has a slot");
        let computed = live.computed + tokens;
        if let Some(device) = &mut self.device {
            device.evaluate(live.slot, &of.history[live.computed..computed]);
        }
        live.computed = computed;
    }

    /// The message that reports how far a sequence is. `None` if it has reached no checkpoint.
    #[must_use]
    pub fn reach(&mut self, sequence: SequenceId) -> Option<Message> {
        let live = self.live_mut(sequence)?;
        let computed = live.computed;
        let before = live.checkpoints.len();
        live.checkpoints.retain(|at| *at > computed);
        let has_reached = live.checkpoints.len() < before;
        has_reached.then_some(Message::Reached { sequence, computed })
    }

    /// The message that shares a sequence's computed tokens up to `at`. `None` if it has no
    /// slot, or if its tokens are not tracked.
    #[must_use]
    pub fn share(&self, sequence: SequenceId, at: usize) -> Option<Message> {
        let (computed, generated) = self.known(sequence)?;
        Some(Message::Share {
            sequence,
            computed,
            generated,
            at,
        })
    }

    /// The message that removes tokens of a sequence, which is not tracked further.
    #[must_use]
    pub fn remove(&mut self, sequence: SequenceId, removed: Range<usize>) -> Option<Message> {
        let (computed, generated) = self.known(sequence)?;
        let live = self.live_mut(sequence)?;
        live.is_cut |= !removed.is_empty() && removed.end <= computed;
        Some(Message::Remove {
            sequence,
            computed,
            generated,
            removed,
        })
    }

    /// The message that ends a sequence and publishes its tokens.
    #[must_use]
    pub fn close(&self, sequence: SequenceId) -> Option<Message> {
        let (computed, generated) = self.known(sequence)?;
        Some(Message::Close {
            sequence,
            computed,
            generated,
        })
    }

    /// Ends a sequence, with its tokens or without.
    ///
    /// # Errors
    ///
    /// The cache's error.
    pub fn end(&mut self, ending: Message) -> Result<Vec<Effect>, CacheError> {
        let (Message::Close { sequence, .. } | Message::Discard { sequence }) = &ending else {
            panic!("{ending:?} ends no sequence");
        };
        let sequence = *sequence;
        let handled = self.send(ending);
        self.sequences.remove(&sequence);
        handled
    }

    /// Loses the state of the device, and all sequences with it.
    pub fn reset(&mut self) -> Vec<Effect> {
        self.sequences.clear();
        if let Some(device) = &mut self.device {
            device.reset();
        }
        self.expect(Message::Reset)
    }

    /// The device passes the oldest fence.
    pub fn pass_fence(&mut self) -> Vec<Effect> {
        let number = self.fences.pop_front().expect("the cache waits for it");
        self.expect(Message::FencePassed { number })
    }

    /// Sends a message that is valid.
    pub fn expect(&mut self, message: Message) -> Vec<Effect> {
        self.send(message).expect("the message is valid")
    }

    /// Checks the core's integrity, and that the device and each slot agree with it.
    pub fn check(&self) {
        self.core.check_integrity();
        let Some(device) = &self.device else { return };
        let stats = self.core.stats();
        let live = self.sequences.values().filter_map(PaperSequence::live);
        assert_eq!(device.held(), (stats.segments, live.count()));
        let (_, sealed_bytes) = device.sealed();
        assert_eq!(
            sealed_bytes, stats.sealed_bytes,
            "the cache and the device agree on the sealed bytes"
        );
        for sequence in self.sequences.values() {
            let Some(live) = &sequence.live else { continue };
            let slot = device.slot(live.slot).expect("a live sequence has a slot");
            assert_eq!(slot.key(), &sequence.key, "keys never mix");
            assert_eq!(
                slot.held(),
                sequence.history[..live.computed],
                "a slot holds the computed tokens of its sequence"
            );
            assert!(live.computed <= live.granted, "and stays within its grant");
        }
    }

    /// Checks that no state is left, in the cache or on the device.
    pub fn check_empty(&self) {
        let stats = self.core.stats();
        assert_eq!(
            (stats.segments, stats.reserved_bytes),
            (0, 0),
            "nothing is held: {stats:?}"
        );
        if let Some(device) = &self.device {
            assert_eq!(device.held(), (0, 0), "no state is left on the device");
        }
    }

    /// Number of tokens whose state a sequence has, and those that the cache does not know.
    fn known(&self, sequence: SequenceId) -> Option<(usize, Vec<TokenId>)> {
        let sequence = self.sequences.get(&sequence)?;
        let live = sequence.live.as_ref().filter(|live| !live.is_cut)?;
        Some((live.computed, sequence.generated()))
    }

    fn live_mut(&mut self, sequence: SequenceId) -> Option<&mut Live> {
        self.sequences.get_mut(&sequence)?.live.as_mut()
    }

    /// A slot is opened on the device before its sequence learns of it.
    fn keys_of_new_slots(&self, effects: &[Effect]) -> BTreeMap<SlotId, PrefixKey> {
        let opened = effects.iter().filter_map(|effect| match effect {
            Effect::SlotOpened { sequence, slot, .. } => Some((sequence, *slot)),
            _ => None,
        });
        let key = |sequence| self.sequences.get(sequence).map(|of| of.key.clone());
        opened
            .filter_map(|(sequence, slot)| Some((slot, key(sequence)?)))
            .collect()
    }

    fn follow(&mut self, effect: &Effect, keys: &BTreeMap<SlotId, PrefixKey>) {
        match effect {
            Effect::SlotOpened {
                sequence,
                slot,
                cached_tokens,
                ..
            } => self.slot_opened(*sequence, *slot, *cached_tokens),
            Effect::Deferred { sequence, .. } => drop(self.pending(*sequence)),
            Effect::OutOfMemory { sequence } => {
                self.pending(*sequence);
                self.sequences.remove(sequence);
            }
            Effect::Lost { sequence, .. } => drop(self.sequences.remove(sequence)),
            Effect::GrantExtended {
                sequence,
                tokens_max,
            } => {
                let live = self.extended(*sequence);
                live.granted = live.granted.max(*tokens_max);
            }
            Effect::GrantDenied { sequence } => drop(self.extended(*sequence)),
            Effect::Checkpoint { sequence, at, .. } => {
                let live = self.live_mut(*sequence).expect("a leader has a slot");
                live.checkpoints.push(*at);
            }
            Effect::Edit(edit) => {
                if let Some(device) = &mut self.device {
                    let key = match edit {
                        Edit::Open { slot, .. } => keys.get(slot),
                        _ => None,
                    };
                    device.edit(edit, key);
                    if let Edit::Drop { segment } = edit {
                        let is_held = device.is_in_path(*segment);
                        assert!(!is_held, "a leased segment is not evicted");
                    }
                }
            }
            Effect::Fence { number } => self.fences.push_back(*number),
            Effect::CachedPrefix { .. } | Effect::ReportAt { .. } => {}
        }
    }

    fn slot_opened(&mut self, sequence: SequenceId, slot: SlotId, cached_tokens: usize) {
        let pending = self.pending(sequence);
        assert!(
            cached_tokens < pending.prompt_tokens,
            "one token is left to compute"
        );
        pending.live = Some(Live {
            slot,
            computed: cached_tokens,
            granted: pending.tokens_max,
            extensions: 0,
            checkpoints: Vec::new(),
            is_cut: false,
        });
    }

    /// A sequence that has asked for a slot.
    fn pending(&mut self, sequence: SequenceId) -> &mut PaperSequence {
        let pending = self.sequences.get_mut(&sequence);
        let pending = pending.expect("the cache answers for known sequences");
        assert!(
            pending.live.is_none(),
            "a sequence that asked is answered once"
        );
        pending
    }

    /// A sequence that has asked for a longer grant.
    fn extended(&mut self, sequence: SequenceId) -> &mut Live {
        let live = self.live_mut(sequence).expect("it has a slot");
        assert!(
            live.extensions > 0,
            "a sequence that asked is answered once"
        );
        live.extensions -= 1;
        live
    }
}
