//! Checks of state that leaves the device and comes back.

use std::rc::Rc;
use std::thread;

use super::checker::{Checker, Slot};
use super::cuts::cuts;
use crate::{Feed, Model, Packer, Parcel, Segment, Span};
use motet_core::protocol::{Extent, ModelError, Want};

/// How often state is packed and unpacked beside a model that steps.
const ROUNDS: usize = 20;

/// A segment's state and what it packed into.
struct Copied<M: Model> {
    parcel: Parcel<M>,
    bytes: Vec<u8>,
}

impl<M: Model> Checker<'_, M> {
    /// Whole segments, and the parts of cut ones: what comes back is what went.
    pub(super) fn copied(&mut self) {
        for prompt in 0..self.given {
            let segment = self.segment(prompt, self.prompts[prompt].len() - 1);
            let copy = self.travelled(&segment);
            for at in cuts(segment.tokens()) {
                let parts = self.model.split(&segment, at);
                let (upper, lower) = self.done(parts);
                let parts = [self.travelled(&upper), self.travelled(&lower)];
                self.resume(prompt, &parts[..1]);
                self.resume(prompt, &parts);
            }
            for path in [copy, segment] {
                self.resume(prompt, &[path]);
            }
        }
    }

    /// What comes back of a segment.
    fn travelled(&mut self, segment: &M::Segment) -> Rc<M::Segment> {
        let parcel = self.model.hand_over(segment);
        let parcel = self.done(parcel);
        let bytes = self.packed(&parcel, segment.extent());
        let copy = self.taken_in(segment.extent(), &bytes);
        let again = self.model.hand_over(&copy);
        let again = self.done(again);
        let again = self.packed(&again, segment.extent());
        self.expect(again == bytes, "the copy packs into the same bytes");
        copy
    }

    /// A parcel outlives its segment, whatever is computed and freed meanwhile.
    pub(super) fn copied_late(&mut self) {
        let cached = self.prompts[0].len() - 1;
        let segment = self.segment(0, cached);
        let extent = segment.extent();
        let parcel = self.model.hand_over(&segment);
        let parcel = self.done(parcel);
        let bytes = self.packed(&parcel, extent);
        drop(segment);
        for prompt in 0..self.given {
            let mut other = self.cold(prompt);
            self.finish(&mut other);
        }
        let late = self.packed(&parcel, extent);
        self.expect(late == bytes, "a parcel outlives its segment");
        drop(parcel);
        let copy = self.taken_in(extent, &bytes);
        self.resume(0, &[copy]);
    }

    /// Parts of a tail are copied while a step goes on with it, and the tail is sealed before
    /// anybody has looked at them. A model that cannot do so says so.
    pub(super) fn copied_out(&mut self) {
        if !self.model.spec().resumes_anywhere() {
            return;
        }
        for prompt in 0..self.given {
            let at = self.prompts[prompt].len() - 2;
            let mut slot = self.cold(prompt);
            self.advance(&mut slot, at);
            let flight = self.launched_alone(&mut slot, at);
            let parts = [0..at, 1..at].map(|part| {
                let copied = self.model.copy_out(&mut slot.tail, part);
                self.done(copied)
            });
            let landed = self.model.land(flight);
            self.done(landed);
            self.seal(&mut slot, at);
            let [Some(whole), Some(rest)] = parts else {
                return;
            };
            let bytes = self.packed(&whole, Extent::whole(at));
            let sealed = self.model.hand_over(&slot.path[0]);
            let sealed = self.done(sealed);
            let sealed = self.packed(&sealed, slot.path[0].extent());
            self.expect(
                bytes == sealed,
                "a tail's copy is what its segment would be",
            );
            let whole = self.taken_in(Extent::whole(at), &bytes);
            self.resume(prompt, &[whole]);
            let bytes = self.packed(&rest, Extent::whole(at - 1));
            let rest = self.taken_in(Extent::whole(at - 1), &bytes);
            let first = self.segment(prompt, 1);
            self.resume(prompt, &[first, rest]);
        }
    }

    /// Bytes that are too few or too many, and extents that are none.
    pub(super) fn no_copies(&mut self) {
        let segment = self.segment(0, self.prompts[0].len() - 1);
        let extent = segment.extent();
        let parcel = self.model.hand_over(&segment);
        let parcel = self.done(parcel);
        let mut bytes = self.packed(&parcel, extent);
        let whole = bytes.len();
        bytes.push(0);
        let others = |extent: Extent| {
            let Extent { tokens, beyond } = extent;
            [0, usize::MAX]
                .map(|tokens| Extent { tokens, beyond })
                .into_iter()
                .chain([Extent {
                    tokens,
                    beyond: usize::MAX,
                }])
        };
        let lengths = [whole + 1, whole - 1, whole / 2, 9.min(whole - 1), 0];
        let lengths = lengths.map(|length| (extent, length)).into_iter();
        for (extent, length) in lengths.chain(others(extent).map(|other| (other, whole))) {
            let refused = self.model.packer().unpack(extent, &bytes[..length]);
            let refused = matches!(refused, Err(ModelError::Import(_)));
            let what = format!("{length} bytes of {extent:?} are refused as ModelError::Import");
            self.expect(refused, &what);
        }
    }

    /// State is handed over while steps are under way, just sealed or part of them, and
    /// packed and unpacked on another thread meanwhile.
    pub(super) fn copied_meanwhile(&mut self) {
        let half = self.prompts[0].len() / 2;
        let shared = self.segment(0, half);
        let mut other = self.cold(1);
        self.advance(&mut other, 3);
        let mut slot = self.on(0, vec![Rc::clone(&shared)]);
        let flight = self.launched_alone(&mut slot, half);
        self.seal(&mut other, 2);
        let extents = [shared.extent(), other.path[0].extent()];
        let parcels = [&shared, &other.path[0]].map(|segment| self.model.hand_over(segment));
        let parcels = parcels.map(|parcel| self.done(parcel));
        let packer = self.model.packer();
        let copier = thread::spawn(move || {
            let copies = parcels.into_iter().zip(extents);
            let copies = copies.map(|(parcel, extent)| go_round::<M>(&packer, parcel, extent));
            copies.collect::<Result<Vec<_>, _>>()
        });
        let landed = self.model.land(flight);
        self.done(landed);
        while !copier.is_finished() {
            let mut busy = self.cold(1);
            self.advance_raggedly(std::slice::from_mut(&mut busy));
        }
        let copies = copier.join().expect("the copying thread does not panic");
        let copies: Vec<Copied<M>> = self.done(copies);
        let mut back = Vec::new();
        for (copied, extent) in copies.into_iter().zip(extents) {
            let segment = self.model.take_in(copied.parcel);
            let segment = Rc::new(self.done(segment));
            self.expect_extent(&segment, extent);
            let again = self.model.hand_over(&segment);
            let again = self.done(again);
            let same = self.packed(&again, extent) == copied.bytes;
            self.expect(same, "state comes back from another thread as it went");
            back.push(segment);
        }
        self.resume(0, &back[..1]);
        self.resume(1, &back[1..]);
        self.finish(&mut other);
    }

    /// A step of the rest of the slot's prompt, from token `from` on.
    fn launched_alone(&mut self, slot: &mut Slot<M>, from: usize) -> M::Flight {
        let prompts = Rc::clone(&self.prompts);
        let mut spans = [Span {
            tokens: Feed::Known(&prompts[slot.prompt][from..]),
            path: &slot.path,
            tail: &mut slot.tail,
            want: Want::Logits,
        }];
        let flight = self.model.launch(&mut spans);
        let mut flight = self.done(flight);
        let drawn = self.model.draw(&mut flight, Vec::new());
        self.done(drawn);
        flight
    }

    fn packed(&self, parcel: &Parcel<M>, extent: Extent) -> Vec<u8> {
        let packed = packed::<M>(&self.model.packer(), parcel, extent);
        self.done(packed)
    }

    fn taken_in(&mut self, extent: Extent, bytes: &[u8]) -> Rc<M::Segment> {
        let parcel = self.model.packer().unpack(extent, bytes);
        let segment = self.model.take_in(self.done(parcel));
        let segment = self.done(segment);
        self.expect_extent(&segment, extent);
        Rc::new(segment)
    }
}

fn packed<M: Model>(
    packer: &M::Packer,
    parcel: &Parcel<M>,
    extent: Extent,
) -> Result<Vec<u8>, ModelError> {
    let mut bytes = vec![0xa5; packer.packed_bytes(extent)];
    packer.pack(parcel, &mut bytes)?;
    Ok(bytes)
}

/// Packs and unpacks, many times over.
fn go_round<M: Model>(
    packer: &M::Packer,
    mut parcel: Parcel<M>,
    extent: Extent,
) -> Result<Copied<M>, ModelError> {
    let bytes = packed::<M>(packer, &parcel, extent)?;
    for _ in 0..ROUNDS {
        parcel = packer.unpack(extent, &packed::<M>(packer, &parcel, extent)?)?;
    }
    Ok(Copied { parcel, bytes })
}
