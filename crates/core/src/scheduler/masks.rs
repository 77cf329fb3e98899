//! Steps that do not wait for costly masks.
//!
//! The actor shuts a sequence's gate where its masks take too much work, or where its grammar
//! must read its output again. The sequence then stands still, like one whose caller does not
//! read. It is part of a step again only when its next mask is ready.

use super::{Effect, SchedulerCore};
use crate::scheduler::sequence::SequenceKey;
use motet_protocol::SequenceId;

/// Whether a sequence's masks let it be part of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MaskGate {
    /// It may: its masks are ready in time, or it has none.
    #[default]
    Open,
    /// It may not.
    Shut,
    /// It may while its output has this many tokens and it is in no other step.
    ReadyAt(usize),
}

impl MaskGate {
    /// Whether a sequence with this many generated tokens may be part of a step.
    pub(super) fn allows(self, generated: usize, in_flight: bool) -> bool {
        match self {
            Self::Open => true,
            Self::Shut => false,
            Self::ReadyAt(tokens) => tokens == generated && !in_flight,
        }
    }
}

impl SchedulerCore {
    pub(super) fn set_mask_gate(&mut self, sequence: SequenceId, gate: MaskGate) {
        if let Some(key) = self.sequences.find(sequence) {
            let entry = &mut self.sequences[key];
            if gate == MaskGate::Shut && entry.prompt_tokens_left() > 0 {
                // While the gate is shut, the rest of its prompt holds no other prompt back.
                self.waiting.request_scan();
            }
            entry.set_mask_gate(gate);
        }
    }

    /// Shuts the gate of a sequence that has a slot again, if its grammar must read its output
    /// first.
    pub(super) fn await_mask(&mut self, key: SequenceKey, effects: &mut Vec<Effect>) {
        let entry = &mut self.sequences[key];
        if entry.await_mask() {
            effects.push(Effect::AwaitMask(entry.id()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gate_opens_for_a_ready_mask() {
        let check = |gate: MaskGate, allows: [bool; 3]| {
            let asked = [(4, false), (4, true), (5, false)];
            assert_eq!(
                asked.map(|(tokens, flies)| gate.allows(tokens, flies)),
                allows
            );
        };
        check(MaskGate::Open, [true, true, true]);
        check(MaskGate::Shut, [false, false, false]);
        check(MaskGate::ReadyAt(4), [true, false, false]);
    }
}
