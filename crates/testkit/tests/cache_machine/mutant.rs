//! The cache core behind a layer that can make one kind of mistake, as a core with that bug
//! would. It shows that each check can fail.

use std::sync::Arc;
use std::time::Duration;

use motet_core::cache::{BlockEvent, CacheError};
use motet_core::cache::{CacheCore, Effect, Message, OpenSlot, PROBES_MAX, ProbePrefix};
use motet_model::{LayerKind, ModelSpec};
use motet_protocol::Edit;
use motet_protocol::{PinId, SegmentId, SequenceId};

use crate::setup::Setup;

/// A bug, made at every other opportunity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Injected {
    /// In the core's effects and answers.
    Core(Bug),
    /// Between the core and the device: only the device's state shows it.
    Device(Bug),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A segment is never sealed.
    LostSeal,
    /// A segment is never cut.
    LostSplit,
    /// Two segments of a path are swapped.
    WrongOrder,
    /// A path has another segment in the place of one of its own.
    WrongSegment,
    /// A path lacks its last segment.
    ShortPath,
    /// One token too few is sealed.
    OffByOne,
    /// The removed range is one token off.
    RemovedOffByOne,
    /// A slot is never closed.
    SlotLeak,
    /// A segment is never dropped.
    SegmentLeak,
    /// Edits come in the wrong order.
    EditsSwapped,
    /// One cached token too many is reported.
    Overcounted,
    /// The sequence never gets the event that its slot is open.
    LostSlotOpened,
    /// Shifted state passes for exact.
    ShiftPublished,
    /// A pin is released early.
    PinReleased,
    /// A removed pin is kept.
    PinLeak,
    /// All sequences have the same key.
    KeyMixed,
    /// Adapters are not a part of the key.
    AdapterMixed,
    /// Segments report too few bytes.
    BytesMiscounted,
    /// Every layer passes for full attention.
    KindMistaken,
    /// An error discards cached state.
    ChangedByError,
    /// A message that cannot be carried out is ignored.
    ErrorSwallowed,
    /// A discarded sequence keeps its slot.
    LostDiscard,
    /// A slot may grow without reserved memory.
    UnreservedGrant,
    /// A slot may not grow, although there is memory.
    DeniedGrant,
    /// Segments without a lease are evicted for a slot that may not grow after all.
    DeniedGrantEvicts,
    /// A probe reports all tokens of a sequence as cached.
    ProbeCountsAll,
    /// A probe counts as a use of the cached prefix.
    ProbeUses,
    /// No event for stored blocks.
    LostStoredEvent,
    /// No event for removed blocks.
    LostRemovedEvent,
    /// A live sequence is not asked to report its progress.
    LostReport,
}

/// The core and its injected bug.
#[derive(Debug)]
pub(crate) struct Mutant {
    core: CacheCore,
    /// Whether the core believes that the model can resume after any token.
    resumes_anywhere: bool,
    injected: Option<Injected>,
    occasions: usize,
    messages: usize,
    pinned: Option<(PinId, usize)>,
    named: Vec<SegmentId>,
}

impl Mutant {
    pub(crate) fn new(setup: &Setup, spec: &ModelSpec) -> Self {
        let mut core_spec = spec.clone();
        for group in &mut core_spec.layer_groups {
            match setup.injected {
                Some(Injected::Core(Bug::BytesMiscounted)) => group.bytes -= 1,
                Some(Injected::Core(Bug::KindMistaken)) => group.kind = LayerKind::Full,
                _ => {}
            }
        }
        let resumes_anywhere = core_spec.resumes_anywhere();
        let mut core = CacheCore::new(core_spec, setup.cache(spec));
        core.follow_blocks();
        Self {
            core,
            resumes_anywhere,
            injected: setup.injected,
            occasions: 0,
            messages: 0,
            pinned: None,
            named: Vec::new(),
        }
    }

    pub(crate) fn core(&self) -> &CacheCore {
        &self.core
    }

    pub(crate) fn handle(
        &mut self,
        now: Duration,
        message: Message,
    ) -> Result<Vec<Effect>, CacheError> {
        self.messages += 1;
        self.release_pin(now);
        let Some(message) = self.alter_message(message) else {
            return Ok(Vec::new());
        };
        if let Message::Pin(pin) = &message {
            self.pinned = Some((pin.pin, self.messages));
        }
        if let Some(effects) = self.fabricated_effects(&message) {
            return Ok(effects);
        }
        if let Message::ProbePrefix { sequences } = &message
            && self.is_injected(Bug::ProbeUses)
        {
            self.use_what_is_cached(now, &sequences[0]);
        }
        match self.core.handle(now, message) {
            Ok(effects) => Ok(self.distorted(now, effects)),
            Err(_) if self.is_injected(Bug::ErrorSwallowed) => Ok(Vec::new()),
            Err(error) => {
                if self.is_injected(Bug::ChangedByError) {
                    let clear = Message::Clear { salt: None };
                    self.core.handle(now, clear).expect("can be cleared");
                }
                Err(error)
            }
        }
    }

    pub(crate) fn follow_blocks(&mut self) -> Vec<BlockEvent> {
        self.core.follow_blocks()
    }

    /// Whether followers know the computed prompts of live sequences.
    pub(crate) fn tells_live_blocks(&self) -> bool {
        self.resumes_anywhere
    }

    pub(crate) fn unfollow_blocks(&mut self) {
        self.core.unfollow_blocks();
    }

    /// Block events since the last call.
    pub(crate) fn block_events(&mut self) -> Vec<BlockEvent> {
        let mut events = self.core.take_block_events();
        events.retain(|event| match event {
            BlockEvent::Stored { .. } => !self.is_injected(Bug::LostStoredEvent),
            BlockEvent::Removed { .. } => !self.is_injected(Bug::LostRemovedEvent),
            _ => true,
        });
        events
    }

    /// Edits on their way to the device.
    pub(crate) fn delivered(&mut self, mut edits: Vec<Edit>) -> Vec<Edit> {
        if let Some(Injected::Device(bug)) = self.injected {
            self.distort(bug, &mut edits);
        }
        edits
    }

    /// Whether the core makes this mistake now.
    fn is_injected(&mut self, bug: Bug) -> bool {
        self.injected == Some(Injected::Core(bug)) && self.occasion()
    }

    fn occasion(&mut self) -> bool {
        self.occasions += 1;
        self.occasions.is_multiple_of(2)
    }

    fn release_pin(&mut self, now: Duration) {
        let due = |&mut (_, at): &mut (PinId, usize)| self.messages > at + 2;
        if self.injected == Some(Injected::Core(Bug::PinReleased))
            && let Some((pin, _)) = self.pinned.take_if(due)
        {
            // It may be removed already.
            self.core.handle(now, Message::Unpin { pin }).ok();
        }
    }

    fn alter_message(&mut self, mut message: Message) -> Option<Message> {
        match &mut message {
            Message::OpenSlot(open_slot)
                if self.injected == Some(Injected::Core(Bug::KeyMixed)) =>
            {
                open_slot.key = Default::default();
            }
            Message::OpenSlot(open_slot)
                if self.injected == Some(Injected::Core(Bug::AdapterMixed)) =>
            {
                open_slot.key.adapter = None;
            }
            Message::Remove {
                computed, removed, ..
            } if removed.start < removed.end
                && removed.end < *computed
                && self.injected == Some(Injected::Core(Bug::ShiftPublished)) =>
            {
                *computed = removed.end;
            }
            Message::Unpin { .. } if self.is_injected(Bug::PinLeak) => return None,
            Message::Discard { .. } if self.is_injected(Bug::LostDiscard) => return None,
            _ => {}
        }
        Some(message)
    }

    /// Effects that answer a message without handling it.
    fn fabricated_effects(&mut self, message: &Message) -> Option<Vec<Effect>> {
        match *message {
            Message::ExtendGrant {
                sequence,
                tokens_max,
            } if self.is_injected(Bug::UnreservedGrant) => Some(vec![Effect::GrantExtended {
                sequence,
                tokens_max,
            }]),
            Message::ExtendGrant { sequence, .. } if self.is_injected(Bug::DeniedGrant) => {
                Some(vec![Effect::GrantDenied { sequence }])
            }
            Message::ProbePrefix { ref sequences } if self.is_injected(Bug::ProbeCountsAll) => {
                let all = sequences.iter().take(PROBES_MAX);
                let all = all.map(|probe| Effect::CachedPrefix {
                    sequence: probe.sequence,
                    tokens: probe.tokens.len(),
                });
                Some(all.collect())
            }
            _ => None,
        }
    }

    /// Opens and discards, as far as the core knows, a sequence that is only probed.
    fn use_what_is_cached(&mut self, now: Duration, probe: &ProbePrefix) {
        let sequence = SequenceId(u64::MAX);
        let open_slot = OpenSlot {
            key: probe.key.clone(),
            ..OpenSlot::new(sequence, Arc::clone(&probe.tokens), 0)
        };
        // A sequence without tokens is no sequence.
        self.core.handle(now, Message::OpenSlot(open_slot)).ok();
        let discard = self.core.handle(now, Message::Discard { sequence });
        discard.expect("any sequence may be discarded");
    }

    fn distorted(&mut self, now: Duration, mut effects: Vec<Effect>) -> Vec<Effect> {
        let Some(Injected::Core(bug)) = self.injected else {
            return effects;
        };
        let is_denied = |effect: &Effect| matches!(effect, Effect::GrantDenied { .. });
        if effects.iter().any(is_denied) && self.is_injected(Bug::DeniedGrantEvicts) {
            let clear = Message::Clear { salt: None };
            let evicted = self.core.handle(now, clear).expect("can be cleared");
            effects.extend(evicted);
        }
        for effect in &mut effects {
            if let Effect::SlotOpened { cached_tokens, .. } = effect
                && self.is_injected(Bug::Overcounted)
            {
                *cached_tokens += 1;
            }
        }
        effects.retain(|effect| match effect {
            Effect::SlotOpened { .. } => !self.is_injected(Bug::LostSlotOpened),
            Effect::ReportAt { .. } => !self.is_injected(Bug::LostReport),
            _ => true,
        });
        // Edits are changed in their places among the other effects.
        let is_edit = |effect: &Effect| matches!(effect, Effect::Edit(_));
        if !effects.iter().any(is_edit) {
            return effects;
        }
        let (edits, others): (Vec<_>, Vec<_>) = effects.into_iter().partition(is_edit);
        let mut edits: Vec<Edit> = edits
            .into_iter()
            .map(|effect| match effect {
                Effect::Edit(edit) => edit,
                other => panic!("{other:?} is not an edit"),
            })
            .collect();
        self.distort(bug, &mut edits);
        // Edits may come before other effects.
        edits.into_iter().map(Effect::Edit).chain(others).collect()
    }

    fn distort(&mut self, bug: Bug, edits: &mut Vec<Edit>) {
        edits.iter().for_each(|edit| self.remember(edit));
        let drops = |edit: &Edit| match edit {
            Edit::Seal { .. } | Edit::SealInPlace { .. } => bug == Bug::LostSeal,
            Edit::Split { .. } => bug == Bug::LostSplit,
            Edit::Close { .. } => bug == Bug::SlotLeak,
            Edit::Drop { .. } => bug == Bug::SegmentLeak,
            _ => false,
        };
        edits.retain(|edit| !(drops(edit) && self.occasion()));
        for edit in edits.iter_mut() {
            self.distort_edit(bug, edit);
        }
        if bug == Bug::EditsSwapped && edits.len() > 1 && self.occasion() {
            edits.swap(0, 1);
        }
    }

    /// Records the segments that have a name.
    fn remember(&mut self, edit: &Edit) {
        let (gone, new): (Vec<SegmentId>, Vec<SegmentId>) = match edit {
            Edit::Seal { segment, .. } | Edit::SealInPlace { segment, .. } => {
                (vec![], vec![*segment])
            }
            Edit::Split {
                segment,
                upper,
                lower,
                ..
            } => (vec![*segment], vec![*upper, *lower]),
            Edit::Merge {
                upper,
                lower,
                segment,
            } => (vec![*upper, *lower], vec![*segment]),
            Edit::Drop { segment } => (vec![*segment], vec![]),
            _ => (vec![], vec![]),
        };
        self.named.retain(|named| !gone.contains(named));
        self.named.extend(new);
    }

    fn distort_edit(&mut self, bug: Bug, edit: &mut Edit) {
        match (bug, edit) {
            (Bug::WrongOrder, Edit::Open { path, .. }) if path.len() > 1 && self.occasion() => {
                path.swap(0, 1);
            }
            (Bug::WrongSegment, Edit::Open { path, .. }) if !path.is_empty() => {
                let other = self.named.iter().rev().find(|other| !path.contains(other));
                if let Some(other) = other.copied()
                    && self.occasion()
                {
                    path[0] = other;
                }
            }
            (Bug::ShortPath, Edit::Open { path, .. }) if !path.is_empty() && self.occasion() => {
                path.pop();
            }
            (Bug::OffByOne, Edit::Seal { tokens, .. }) if *tokens > 1 && self.occasion() => {
                *tokens -= 1;
            }
            (Bug::OffByOne, Edit::SealInPlace { tokens, .. })
                if tokens.len() > 1 && self.occasion() =>
            {
                tokens.end -= 1;
            }
            (Bug::RemovedOffByOne, Edit::Remove { removed, .. })
                if removed.len() > 1 && self.occasion() =>
            {
                removed.end -= 1;
            }
            _ => {}
        }
    }
}
