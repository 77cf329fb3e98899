//! The offsets at which a slot is sealed without another sequence waiting.

use crate::cache::OpenSlot;
use crate::cache::restore_policy::{Point, PointKind, PromptFacts, RestorePolicy};

/// The restore points that a slot has not reached, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::cache) struct RestorePoints {
    ahead: Vec<Point>,
}

impl RestorePoints {
    /// The points of a request that starts with `path_tokens` cached tokens, of `seen_tokens`
    /// that the trie holds. Without a policy they are those that the request names.
    pub(in crate::cache) fn of(
        request: &OpenSlot,
        path_tokens: usize,
        seen_tokens: usize,
        policy: Option<&RestorePolicy>,
    ) -> Self {
        if request.key.is_private() {
            return Self::default();
        }
        let prompt = PromptFacts {
            tokens: request.tokens.len(),
            path_tokens,
            seen_tokens,
            named: &request.restore_points,
            turn_end: request.turn_end,
        };
        let mut ahead = match policy {
            Some(policy) => policy.points(&prompt),
            None => named(&prompt),
        };
        // A prompt usually lies within its first grant. Otherwise the tokens past the grant
        // are sealed when the sequence ends, or when another one waits for them.
        let most = request.tokens.len().min(request.tokens_max);
        ahead.retain(|point| point.at <= most);
        Self { ahead }
    }

    /// The points, ascending.
    pub(in crate::cache) fn iter(&self) -> impl Iterator<Item = &Point> + '_ {
        self.ahead.iter()
    }

    /// Removes the points that a slot with `computed` tokens has reached, and returns them.
    pub(super) fn take_reached(&mut self, computed: usize) -> Vec<Point> {
        let later = self.ahead.partition_point(|point| point.at <= computed);
        self.ahead.drain(..later).collect()
    }

    /// Forgets the points after offset `at`.
    pub(super) fn forget_after(&mut self, at: usize) {
        self.ahead.retain(|point| point.at <= at);
    }

    /// Panics unless the points are in order.
    pub(super) fn check_integrity(&self) {
        assert!(
            self.ahead.is_sorted_by(|one, next| one.at < next.at),
            "restore points ascend"
        );
    }
}

/// The points that a request names, ascending.
fn named(prompt: &PromptFacts<'_>) -> Vec<Point> {
    let point = |at: &usize| Point::exact(*at, PointKind::Named);
    let mut named: Vec<Point> = prompt.named.iter().map(point).collect();
    named.retain(|point| prompt.path_tokens < point.at);
    named.sort_by_key(|point| point.at);
    named.dedup();
    named
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::CacheConfig;
    use motet_protocol::SequenceId;
    use motet_protocol::{LayerKind, ModelSpec};

    fn check(named: &[usize], path_tokens: usize, resumes_anywhere: bool, expected: &[usize]) {
        let config = CacheConfig {
            restore_interval_tokens: 4,
            share_tokens_min: 2,
            ..CacheConfig::default()
        };
        let kind = if resumes_anywhere {
            LayerKind::Full
        } else {
            LayerKind::Recurrent
        };
        let policy = RestorePolicy::new(&ModelSpec::with_layer_kinds(&[kind]), &config);
        let request = OpenSlot {
            restore_points: named.into(),
            turn_end: Some(9),
            ..OpenSlot::new(SequenceId(1), [1; 10], 2)
        };
        let points = RestorePoints::of(&request, path_tokens, 6, policy.as_ref());
        points.check_integrity();
        let offsets: Vec<usize> = points.iter().map(|point| point.at).collect();
        assert_eq!(offsets, expected, "{named:?} after {path_tokens}");
    }

    #[test]
    fn points_lie_between_the_path_and_the_end_of_the_prompt() {
        check(&[], 0, true, &[]);
        check(&[8, 3, 3, 11], 0, true, &[3, 8]);
        check(&[8, 3], 3, true, &[8]);
        // Those of the interval, the branch at 6, and the end of the turn.
        check(&[], 0, false, &[4, 6, 9]);
        check(&[], 5, false, &[9]);
        check(&[8], 0, false, &[4, 6, 8, 9]);
    }

    #[test]
    fn reached_points_are_taken_once() {
        let point = |at| Point::exact(at, PointKind::Interval);
        let mut points = RestorePoints {
            ahead: vec![point(2), point(4), point(6), point(8)],
        };
        assert_eq!(points.take_reached(4), [point(2), point(4)]);
        assert_eq!(points.take_reached(5), []);
        points.forget_after(6);
        assert_eq!(points.take_reached(9), [point(6)]);
    }
}
