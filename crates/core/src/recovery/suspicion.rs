//! Whom to suspect when a core panics.

use crate::SequenceId;

/// The sequence that all of these are about, if they are about one and no other.
pub fn the_only(concerned: impl IntoIterator<Item = Option<SequenceId>>) -> Option<SequenceId> {
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
        assert_eq!(the_only(named), expected.map(SequenceId), "{concerned:?}");
    }

    #[test]
    fn only_who_is_alone_is_suspected() {
        check(&[], None);
        check(&[0], None);
        check(&[3], Some(3));
        check(&[3, 0, 3], Some(3));
        check(&[3, 4], None);
        check(&[3, 3, 4], None);
    }
}
