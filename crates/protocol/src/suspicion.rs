//! Finds the sequence to suspect when a core panics.

use crate::SequenceId;

/// Returns the one sequence among these; `None` if there is none or more than one.
pub fn only_sequence(
    concerned: impl IntoIterator<Item = Option<SequenceId>>,
) -> Option<SequenceId> {
    let mut concerned = concerned.into_iter().flatten();
    let first = concerned.next()?;
    concerned.all(|other| other == first).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(concerned: &[u64], expected: Option<u64>) {
        let named = concerned
            .iter()
            .map(|name| (*name > 0).then_some(SequenceId(*name)));
        assert_eq!(
            only_sequence(named),
            expected.map(SequenceId),
            "{concerned:?}"
        );
    }

    #[test]
    fn only_a_single_concerned_sequence_is_suspected() {
        check(&[], None);
        check(&[0], None);
        check(&[3], Some(3));
        check(&[3, 0, 3], Some(3));
        check(&[3, 4], None);
        check(&[3, 3, 4], None);
    }
}
