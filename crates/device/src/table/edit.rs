//! Edits: changes to the slots and segments on the device.

use std::ops::Range;
use std::rc::Rc;

use smallvec::SmallVec;

use super::{DeviceSlot, Table};
use motet_model::{Model, Segment, Tail};
use motet_protocol::{CopyId, SegmentId, SlotId};
use motet_protocol::{Edit, ModelError};

/// The slot and the segments that a failed edit loses.
pub(super) struct EditLosses {
    /// The slot that the edit changes.
    pub(super) slot: Option<SlotId>,
    /// Whether the edit also closes the slot.
    pub(super) closes: bool,
    /// Segments that the edit creates.
    pub(super) made: SmallVec<[SegmentId; 2]>,
    /// Segments that the edit consumes.
    pub(super) used_up: SmallVec<[SegmentId; 2]>,
}

/// Returns what is lost if the edit fails.
pub(super) fn edit_losses(edit: &Edit) -> EditLosses {
    let mut edit_losses = EditLosses {
        slot: changed_slot(edit),
        closes: matches!(edit, Edit::SealInPlace { .. }),
        made: SmallVec::new(),
        used_up: SmallVec::new(),
    };
    match edit {
        Edit::Seal { segment, .. }
        | Edit::SealInPlace { segment, .. }
        | Edit::Import { segment, .. } => edit_losses.made.push(*segment),
        Edit::Split {
            segment,
            upper,
            lower,
            ..
        } => {
            edit_losses.made.extend([*upper, *lower]);
            edit_losses.used_up.push(*segment);
        }
        Edit::Merge {
            upper,
            lower,
            segment,
        } => {
            edit_losses.made.push(*segment);
            edit_losses.used_up.extend([*upper, *lower]);
        }
        Edit::Replace { segment, .. } => edit_losses.used_up.push(*segment),
        Edit::Strip {
            segment, stripped, ..
        } => {
            edit_losses.made.push(*stripped);
            edit_losses.used_up.push(*segment);
        }
        Edit::Open { .. }
        | Edit::ShareExisting { .. }
        | Edit::Remove { .. }
        | Edit::Close { .. }
        | Edit::Drop { .. }
        | Edit::CopyOut { .. }
        | Edit::Export { .. } => {}
    }
    edit_losses
}

/// Returns the slot that the edit changes; an edit that only closes a slot changes none.
pub(super) fn changed_slot(edit: &Edit) -> Option<SlotId> {
    match edit {
        Edit::Open { slot, .. }
        | Edit::Seal { slot, .. }
        | Edit::ShareExisting { slot, .. }
        | Edit::Remove { slot, .. }
        | Edit::SealInPlace { slot, .. } => Some(*slot),
        Edit::Split { .. }
        | Edit::Merge { .. }
        | Edit::Replace { .. }
        | Edit::Strip { .. }
        | Edit::Close { .. }
        | Edit::Drop { .. }
        | Edit::CopyOut { .. }
        | Edit::Export { .. }
        | Edit::Import { .. } => None,
    }
}

/// Returns the segments that the edit needs.
pub(super) fn required_segments(edit: &Edit) -> impl Iterator<Item = SegmentId> + '_ {
    let (path, others): (&[SegmentId], [Option<SegmentId>; 2]) = match edit {
        Edit::Open { path, .. } | Edit::ShareExisting { path, .. } => (path, [None, None]),
        Edit::Split { segment, .. } => (&[], [Some(*segment), None]),
        Edit::Merge { upper, lower, .. } => (&[], [Some(*upper), Some(*lower)]),
        Edit::Replace { segment, by } => (&[], [Some(*segment), Some(*by)]),
        Edit::Strip { segment, below, .. } => (&[], [Some(*segment), Some(*below)]),
        Edit::Seal { .. }
        | Edit::Remove { .. }
        | Edit::SealInPlace { .. }
        | Edit::Close { .. }
        | Edit::Drop { .. }
        | Edit::CopyOut { .. }
        | Edit::Export { .. }
        | Edit::Import { .. } => (&[], [None, None]),
    };
    path.iter().copied().chain(others.into_iter().flatten())
}

impl<M: Model> Table<M> {
    pub(super) fn edit(&mut self, model: &mut M, edit: Edit) -> Result<(), ModelError> {
        match edit {
            Edit::Open {
                slot,
                path,
                expected_tokens,
            } => {
                let path: Vec<_> = path
                    .iter()
                    .map(|id| Rc::clone(&self.segments[id]))
                    .collect();
                let tail = model.tail(&path, expected_tokens)?;
                self.slots.insert(slot, DeviceSlot::new(path, tail));
            }
            Edit::Seal {
                slot,
                tokens,
                segment,
            } => {
                let slot = self.slots.get_mut(&slot).expect("an open slot is sealed");
                let sealed = Rc::new(model.seal(&mut slot.tail, tokens)?);
                slot.path.push(Rc::clone(&sealed));
                self.segments.insert(segment, sealed);
            }
            Edit::Split {
                segment,
                at,
                upper,
                lower,
            } => {
                let merged = self.take_segment(segment);
                let (first, second) = model.split(&merged, at)?;
                let halves = [Rc::new(first), Rc::new(second)];
                self.replace(&[merged], &halves);
                let [first, second] = halves;
                self.segments.insert(upper, first);
                self.segments.insert(lower, second);
            }
            Edit::ShareExisting { slot, tokens, path } => {
                let slot = self
                    .slots
                    .get_mut(&slot)
                    .expect("existing segments are shared with an open slot");
                drop(model.seal(&mut slot.tail, tokens)?);
                let held = path.iter().map(|id| Rc::clone(&self.segments[id]));
                slot.path.extend(held);
            }
            Edit::Merge {
                upper,
                lower,
                segment,
            } => {
                let halves = [self.take_segment(upper), self.take_segment(lower)];
                let merged = Rc::new(model.merge(&halves[0], &halves[1])?);
                self.replace(&halves, &[Rc::clone(&merged)]);
                self.segments.insert(segment, merged);
            }
            Edit::Replace { segment, by } => {
                let old = self.take_segment(segment);
                let new = Rc::clone(&self.segments[&by]);
                self.replace(&[old], &[new]);
            }
            Edit::Strip {
                segment,
                below,
                stripped,
            } => {
                let old = self.take_segment(segment);
                let new = Rc::new(model.strip(&old, &self.segments[&below])?);
                self.replace(&[old], &[Rc::clone(&new)]);
                self.segments.insert(stripped, new);
            }
            Edit::Remove {
                slot,
                retained,
                removed,
            } => self.remove(model, slot, retained, removed)?,
            Edit::SealInPlace {
                slot,
                tokens,
                segment,
            } => {
                let slot = self
                    .slots
                    .remove(&slot)
                    .expect("an open slot is sealed in place");
                let sealed = model.seal_in_place(slot.tail, tokens)?;
                self.segments.insert(segment, Rc::new(sealed));
            }
            Edit::Close { slot } => {
                // A slot that was part of a failed step is gone already.
                self.slots.remove(&slot);
                self.absent.slots.remove(&slot);
            }
            Edit::Drop { segment } => {
                self.segments.remove(&segment);
                self.absent.segments.remove(&segment);
            }
            Edit::Export { segment, copy } => {
                // If the export fails, the segment stays, without a copy.
                let gone = || ModelError::Device(format!("{segment} is gone"));
                let held = self.segments.get(&segment).ok_or_else(gone);
                let detached_state = held.and_then(|held| model.export(held));
                self.transfer_queue.export(copy, detached_state)?;
            }
            Edit::CopyOut { slot, tokens, copy } => {
                let detached_state = match self.slots.get_mut(&slot) {
                    Some(slot) => model.copy_out(&mut slot.tail, tokens),
                    // The slot was lost with a step.
                    None => Err(ModelError::Device(format!("{slot} is gone"))),
                };
                let none = || ModelError::Device("no copy of a tail can be made".into());
                let detached_state =
                    detached_state.and_then(|detached_state| detached_state.ok_or_else(none));
                self.export_when_finished(copy, detached_state)?;
            }
            Edit::Import {
                copy,
                range,
                segment,
            } => {
                let imported = self.import(model, copy, range)?;
                self.segments.insert(segment, Rc::new(imported));
            }
        }
        Ok(())
    }

    /// Imports a token range of a detached state in the transfer queue.
    fn import(
        &mut self,
        model: &mut M,
        copy: CopyId,
        range: Range<usize>,
    ) -> Result<M::Segment, ModelError> {
        let detached_state = self.transfer_queue.take(copy);
        let detached_state = detached_state
            .ok_or_else(|| ModelError::Import(format!("{copy} is not in the transfer queue")))?;
        let mut imported = model.import(detached_state)?;
        if range.end < imported.tokens() {
            imported = model.split(&imported, range.end)?.0;
        }
        if range.start > 0 {
            imported = model.split(&imported, range.start)?.1;
        }
        Ok(imported)
    }

    fn remove(
        &mut self,
        model: &mut M,
        id: SlotId,
        retained: usize,
        removed: Range<usize>,
    ) -> Result<(), ModelError> {
        let slot = self.slots.remove(&id);
        let mut slot = slot.expect("tokens are removed from an open slot");
        let tokens = |path: &[Rc<M::Segment>]| path.iter().map(|held| held.tokens()).sum();
        let retained_tokens: usize = tokens(&slot.path[..retained]);
        let all: usize = tokens(&slot.path) + slot.tail.tokens();
        if removed == (retained_tokens..all) {
            // The cut is at the end of a segment, which every layer kind supports.
            drop(slot.tail);
            slot.path.truncate(retained);
            slot.tail = model.tail(&slot.path, 0)?;
        } else {
            model.remove(&slot.path, retained, &mut slot.tail, removed)?;
            slot.path.truncate(retained);
        }
        self.slots.insert(id, slot);
        Ok(())
    }

    fn take_segment(&mut self, segment: SegmentId) -> Rc<M::Segment> {
        let held = self.segments.remove(&segment);
        held.expect("a segment is split or merged while it is on the device")
    }

    /// Replaces `old` by `new` in all paths that hold the segments of `old` in a row.
    fn replace(&mut self, old: &[Rc<M::Segment>], new: &[Rc<M::Segment>]) {
        for slot in self.slots.values_mut() {
            let same = |held: &[Rc<M::Segment>]| {
                let mut pairs = held.iter().zip(old);
                pairs.all(|(held, old)| Rc::ptr_eq(held, old))
            };
            if let Some(at) = slot.path.windows(old.len()).position(same) {
                slot.path.splice(at..at + old.len(), new.iter().cloned());
            }
        }
    }
}
