//! Steps that do not wait for costly masks.
//!
//! The actor shuts a sequence's gate where its masks take too much work, or where its grammar
//! must read its output again. The sequence then stands still, like one whose caller does not
//! read. It is part of a step again only when its next mask is ready.

use super::mask_gate::MaskGate;
use super::{Effect, SchedulerCore};
use crate::scheduler::sequence::SequenceKey;
use motet_protocol::SequenceId;

impl SchedulerCore {
    pub(super) fn set_mask_gate(&mut self, sequence: SequenceId, gate: MaskGate) {
        if let Some(key) = self.sequences.find(sequence) {
            let sequence = &mut self.sequences[key];
            if gate == MaskGate::Shut && sequence.prompt_tokens_left() > 0 {
                // While the gate is shut, the rest of its prompt holds no other prompt back.
                self.waiting.request_scan();
            }
            sequence.set_mask_gate(gate);
        }
    }

    /// Shuts the gate of a sequence that has a slot again, if its grammar must read its output
    /// first.
    pub(super) fn await_mask(&mut self, key: SequenceKey, effects: &mut Vec<Effect>) {
        let sequence = &mut self.sequences[key];
        if sequence.await_mask() {
            effects.push(Effect::AwaitMask(sequence.id()));
        }
    }
}
