//! Steps that do not wait for dear masks.
//!
//! Where a sequence's masks take too much work, or its output must be read again by its
//! grammar, the shell shuts its gate. The sequence stands still then, as one does whose
//! caller does not read, and is part of a step only once its next mask is there.

use super::{Effect, SchedulerCore};
use crate::SequenceId;
use crate::scheduler::entry::EntryKey;

/// Whether a sequence may be part of a step, as far as its masks go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MaskGate {
    /// It may: its masks come in time, or it has none.
    #[default]
    Open,
    /// It may not.
    Shut,
    /// It may while its output has so many tokens, and it is in no other step.
    ReadyAt(usize),
}

impl MaskGate {
    /// Whether it lets a sequence pass that has so many tokens.
    pub(super) fn passes(self, generated: usize, in_flight: bool) -> bool {
        match self {
            Self::Open => true,
            Self::Shut => false,
            Self::ReadyAt(tokens) => tokens == generated && !in_flight,
        }
    }
}

impl SchedulerCore {
    pub(super) fn set_mask_gate(&mut self, sequence: SequenceId, gate: MaskGate) {
        if let Some(key) = self.names.get(&sequence) {
            let entry = &mut self.entries[*key];
            // While the gate is shut, the rest of the prompt holds nothing else back.
            self.may_start |= gate == MaskGate::Shut && entry.prompt_tokens_left() > 0;
            entry.mask_gate = gate;
        }
    }

    /// A sequence has a slot again: its grammar may have to read its output first.
    pub(super) fn await_mask(&mut self, key: EntryKey, effects: &mut Vec<Effect>) {
        let entry = &mut self.entries[key];
        let spec = entry.draw_spec.as_ref();
        let has_grammar = spec.is_some_and(|spec| spec.grammar.is_some());
        if has_grammar && !entry.generated.is_empty() {
            entry.mask_gate = MaskGate::Shut;
            effects.push(Effect::AwaitMask(entry.sequence));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_passes_who_has_a_mask() {
        let check = |gate: MaskGate, passes: [bool; 3]| {
            let asked = [(4, false), (4, true), (5, false)];
            assert_eq!(
                asked.map(|(tokens, flies)| gate.passes(tokens, flies)),
                passes
            );
        };
        check(MaskGate::Open, [true, true, true]);
        check(MaskGate::Shut, [false, false, false]);
        check(MaskGate::ReadyAt(4), [true, false, false]);
    }
}
