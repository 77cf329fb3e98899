//! Whether a sequence may be part of a step, by its masks.

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
