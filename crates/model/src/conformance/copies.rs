//! Checks of state that leaves the device and comes back.

use std::rc::Rc;
use std::thread;

use super::checker::{Checker, Slot};
use super::cuts::cuts;
use crate::{DetachedState, Model, Packer, Segment, Span, TokenSource};
use motet_protocol::{ModelError, OutputKind, SegmentSize};

/// Number of times that state is packed and unpacked beside a model that steps.
const ROUNDS: usize = 20;

/// A segment's state and the bytes it packed into.
struct Copied<M: Model> {
    detached_state: DetachedState<M>,
    bytes: Vec<u8>,
}

impl<M: Model> Checker<'_, M> {
    /// Whole segments, and the parts of cut ones, come back as they left.
    pub(super) fn copied(&mut self) {
        for prompt in 0..self.given {
            let segment = self.segment(prompt, self.prompts[prompt].len() - 1);
            let copy = self.round_tripped(&segment);
            for at in cuts(segment.tokens()) {
                let parts = self.model.split(&segment, at);
                let (upper, lower) = self.done(parts);
                let parts = [self.round_tripped(&upper), self.round_tripped(&lower)];
                self.resume(prompt, &parts[..1]);
                self.resume(prompt, &parts);
            }
            for path in [copy, segment] {
                self.resume(prompt, &[path]);
            }
        }
    }

    /// The segment after a round trip through packed bytes.
    fn round_tripped(&mut self, segment: &M::Segment) -> Rc<M::Segment> {
        let detached_state = self.model.export(segment);
        let detached_state = self.done(detached_state);
        let bytes = self.packed(&detached_state, segment.segment_size());
        let copy = self.imported(segment.segment_size(), &bytes);
        let repacked = self.model.export(&copy);
        let repacked = self.done(repacked);
        let repacked = self.packed(&repacked, segment.segment_size());
        self.expect(repacked == bytes, "the copy packs into the same bytes");
        copy
    }

    /// Detached state outlives its segment, whatever is computed and freed meanwhile.
    pub(super) fn copied_after_drop(&mut self) {
        let cached = self.prompts[0].len() - 1;
        let segment = self.segment(0, cached);
        let segment_size = segment.segment_size();
        let detached_state = self.model.export(&segment);
        let detached_state = self.done(detached_state);
        let bytes = self.packed(&detached_state, segment_size);
        drop(segment);
        for prompt in 0..self.given {
            let mut other = self.cold_slot(prompt);
            self.finish_prompt(&mut other);
        }
        let late = self.packed(&detached_state, segment_size);
        self.expect(late == bytes, "detached state outlives its segment");
        drop(detached_state);
        let copy = self.imported(segment_size, &bytes);
        self.resume(0, &[copy]);
    }

    /// Parts of a tail are copied while a step goes on with it. The tail is sealed before the
    /// copies are read. A model without such copies returns `None`.
    pub(super) fn copied_from_tail(&mut self) {
        if !self.model.spec().resumes_anywhere() {
            return;
        }
        for prompt in 0..self.given {
            let at = self.prompts[prompt].len() - 2;
            let mut slot = self.cold_slot(prompt);
            self.advance(&mut slot, at);
            let in_flight = self.submitted_alone(&mut slot, at);
            let parts = [0..at, 1..at].map(|part| {
                let copied = self.model.copy_out(&mut slot.tail, part);
                self.done(copied)
            });
            let finished = self.model.finish(in_flight);
            self.done(finished);
            self.seal(&mut slot, at);
            let [Some(whole), Some(rest)] = parts else {
                return;
            };
            let bytes = self.packed(&whole, SegmentSize::whole(at));
            let sealed = self.model.export(&slot.path[0]);
            let sealed = self.done(sealed);
            let sealed = self.packed(&sealed, slot.path[0].segment_size());
            self.expect(
                bytes == sealed,
                "a tail's copy is what its segment would be",
            );
            let whole = self.imported(SegmentSize::whole(at), &bytes);
            self.resume(prompt, &[whole]);
            let bytes = self.packed(&rest, SegmentSize::whole(at - 1));
            let rest = self.imported(SegmentSize::whole(at - 1), &bytes);
            let first = self.segment(prompt, 1);
            self.resume(prompt, &[first, rest]);
        }
    }

    /// Rejects too few or too many bytes, and invalid segment sizes.
    pub(super) fn invalid_copies(&mut self) {
        let segment = self.segment(0, self.prompts[0].len() - 1);
        let segment_size = segment.segment_size();
        let detached_state = self.model.export(&segment);
        let detached_state = self.done(detached_state);
        let mut bytes = self.packed(&detached_state, segment_size);
        let whole = bytes.len();
        bytes.push(0);
        let others = |segment_size: SegmentSize| {
            let SegmentSize { tokens, state_lag } = segment_size;
            [0, usize::MAX]
                .map(|tokens| SegmentSize { tokens, state_lag })
                .into_iter()
                .chain([SegmentSize {
                    tokens,
                    state_lag: usize::MAX,
                }])
        };
        let lengths = [whole + 1, whole - 1, whole / 2, 9.min(whole - 1), 0];
        let lengths = lengths.map(|length| (segment_size, length)).into_iter();
        for (segment_size, length) in
            lengths.chain(others(segment_size).map(|other| (other, whole)))
        {
            let rejected = self.model.packer().unpack(segment_size, &bytes[..length]);
            let rejected = matches!(rejected, Err(ModelError::Import(_)));
            let what =
                format!("{length} bytes of {segment_size:?} are rejected as ModelError::Import");
            self.expect(rejected, &what);
        }
    }

    /// State is exported while steps are in flight. It was sealed just before, or is part of
    /// those steps. Another thread packs and unpacks it meanwhile.
    pub(super) fn copied_during_a_step(&mut self) {
        let half = self.prompts[0].len() / 2;
        let shared = self.segment(0, half);
        let mut other = self.cold_slot(1);
        self.advance(&mut other, 3);
        let mut slot = self.slot_on(0, vec![Rc::clone(&shared)]);
        let in_flight = self.submitted_alone(&mut slot, half);
        self.seal(&mut other, 2);
        let segment_sizes = [shared.segment_size(), other.path[0].segment_size()];
        let detached_states = [&shared, &other.path[0]].map(|segment| self.model.export(segment));
        let detached_states = detached_states.map(|detached_state| self.done(detached_state));
        let packer = self.model.packer();
        let copier = thread::spawn(move || {
            let copies = detached_states.into_iter().zip(segment_sizes);
            let copies = copies.map(|(detached_state, segment_size)| {
                round_trip::<M>(&packer, detached_state, segment_size)
            });
            copies.collect::<Result<Vec<_>, _>>()
        });
        let finished = self.model.finish(in_flight);
        self.done(finished);
        while !copier.is_finished() {
            let mut busy = self.cold_slot(1);
            self.advance_raggedly(std::slice::from_mut(&mut busy));
        }
        let copies = copier.join().expect("the copying thread does not panic");
        let copies: Vec<Copied<M>> = self.done(copies);
        let mut imported_segments = Vec::new();
        for (copied, segment_size) in copies.into_iter().zip(segment_sizes) {
            let segment = self.model.import(copied.detached_state);
            let segment = Rc::new(self.done(segment));
            self.expect_segment_size(&segment, segment_size);
            let repacked = self.model.export(&segment);
            let repacked = self.done(repacked);
            let same = self.packed(&repacked, segment_size) == copied.bytes;
            self.expect(same, "state comes back from another thread as it went");
            imported_segments.push(segment);
        }
        self.resume(0, &imported_segments[..1]);
        self.resume(1, &imported_segments[1..]);
        self.finish_prompt(&mut other);
    }

    /// Submits a step of the rest of the slot's prompt, from token `from` on.
    fn submitted_alone(&mut self, slot: &mut Slot<M>, from: usize) -> M::InFlightStep {
        let prompts = Rc::clone(&self.prompts);
        let mut spans = [Span {
            tokens: TokenSource::Known(&prompts[slot.prompt][from..]),
            path: &slot.path,
            tail: &mut slot.tail,
            output_kind: OutputKind::Logits,
        }];
        let in_flight = self.model.submit(&mut spans);
        let mut in_flight = self.done(in_flight);
        let sampled = self.model.sample(&mut in_flight, Vec::new());
        self.done(sampled);
        in_flight
    }

    fn packed(&self, detached_state: &DetachedState<M>, segment_size: SegmentSize) -> Vec<u8> {
        let packed = packed::<M>(&self.model.packer(), detached_state, segment_size);
        self.done(packed)
    }

    fn imported(&mut self, segment_size: SegmentSize, bytes: &[u8]) -> Rc<M::Segment> {
        let detached_state = self.model.packer().unpack(segment_size, bytes);
        let segment = self.model.import(self.done(detached_state));
        let segment = self.done(segment);
        self.expect_segment_size(&segment, segment_size);
        Rc::new(segment)
    }
}

fn packed<M: Model>(
    packer: &M::Packer,
    detached_state: &DetachedState<M>,
    segment_size: SegmentSize,
) -> Result<Vec<u8>, ModelError> {
    let mut bytes = vec![0xa5; packer.packed_bytes(segment_size)];
    packer.pack(detached_state, &mut bytes)?;
    Ok(bytes)
}

/// Packs and unpacks, many times over.
fn round_trip<M: Model>(
    packer: &M::Packer,
    mut detached_state: DetachedState<M>,
    segment_size: SegmentSize,
) -> Result<Copied<M>, ModelError> {
    let bytes = packed::<M>(packer, &detached_state, segment_size)?;
    for _ in 0..ROUNDS {
        detached_state = packer.unpack(
            segment_size,
            &packed::<M>(packer, &detached_state, segment_size)?,
        )?;
    }
    Ok(Copied {
        detached_state,
        bytes,
    })
}
