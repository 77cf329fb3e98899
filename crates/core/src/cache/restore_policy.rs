//! The policy of restore points: where state is taken that keys and values cannot replace, and
//! how long it is kept.
//!
//! Layers of full attention can resume after any cached token. A recurrent layer can resume only
//! where its state was taken, and such a snapshot weighs as much as the keys and values of
//! hundreds of tokens. A window layer needs the entries of its last tokens. The policy therefore
//! takes state where a resume is likely, and gives it up where one is not likely any more. All of
//! it is in this file, as functions of plain numbers.
//!
//! State is **taken**
//!
//! 1. where the request names it;
//! 2. at the end of the conversation so far, before the tokens that ask for an answer: a template
//!    may spell the answer in another way in the next turn, or the answer is asked for again;
//! 3. where a prompt branches off from tokens in the trie, and so from the second visit of a
//!    prefix on;
//! 4. at an interval in the rest of the prompt. The interval follows from bytes: over a prompt,
//!    the snapshots weigh no more than the attention state between them;
//! 5. where a sequence ends or is preempted, at no cost: its tail becomes the segment.
//!
//! Points 1 to 3 lie at an exact offset and end a chunk of the prefill there. A point of the
//! interval may lie half an interval later: state is taken at the first end of a chunk in that
//! range, which mostly costs no step.
//!
//! State is **given up** when a later turn has opened its slot behind it, unless
//!
//! * a request has named the offset, or the request that resumes names it or ends its turn there;
//! * two sequences have resumed there, or tokens branch off there: a common prefix;
//! * a live sequence or a pin ends there;
//! * it is as far from the state above it as the interval.
//!
//! A conversation thus keeps the state that its latest turn started from, the two that this turn
//! has left, and a few on the way. The keys and values stay, as paths lead through them. Output
//! that a later turn has spelled in another way is dropped as a whole.

use crate::config::{CacheConfig, RestorePointPolicy};
use motet_protocol::{LayerKind, ModelSpec};

/// The policy for one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RestorePolicy {
    interval_tokens: usize,
    branch_tokens_min: usize,
    /// Whether all state is kept: the baseline.
    keeps_all: bool,
}

/// The facts about a prompt that decide where its state is taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct PromptFacts<'a> {
    /// Tokens of the prompt.
    pub(super) tokens: usize,
    /// Tokens with which it starts cached.
    pub(super) path_tokens: usize,
    /// Tokens that the trie holds, with or without state at their end.
    pub(super) seen_tokens: usize,
    /// Offsets that the request names.
    pub(super) named: &'a [usize],
    /// The end of the conversation so far, if the request knows it.
    pub(super) turn_end: Option<usize>,
}

/// The reason for which state is taken at an offset. If several apply, the first counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PointKind {
    /// The request names it.
    Named,
    /// The conversation so far ends there.
    TurnEnd,
    /// The prompt branches off there from one in the trie.
    Branch,
    /// A point of the interval: state is taken at the next end of a chunk.
    Interval,
}

/// An offset at which state is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    /// The first offset at which state may be taken.
    pub(super) at: usize,
    /// The last such offset.
    pub(super) until: usize,
    pub(super) kind: PointKind,
}

impl Point {
    /// A point at one offset.
    pub(super) fn exact(at: usize, kind: PointKind) -> Self {
        Self {
            at,
            until: at,
            kind,
        }
    }
}

/// The facts about the state at the end of a node above the one at which a sequence resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SnapshotFacts {
    /// Tokens since the end of the next node above that keeps its state.
    pub(super) tokens_since_kept: usize,
    /// Whether the request that resumes names this offset, or ends its turn there.
    pub(super) is_own_point: bool,
    /// Whether a request named it.
    pub(super) is_named: bool,
    /// Nodes below it.
    pub(super) children: usize,
    /// Sequences that resumed there.
    pub(super) resumes: usize,
    /// Whether a live sequence or a pin ends there.
    pub(super) is_path_end: bool,
}

impl RestorePolicy {
    /// The policy for a model; `None` if the model can resume after any token.
    pub(super) fn new(spec: &ModelSpec, config: &CacheConfig) -> Option<Self> {
        (!spec.resumes_anywhere()).then(|| Self {
            interval_tokens: interval_tokens(spec, config.restore_interval_tokens),
            branch_tokens_min: config.share_tokens_min.max(1),
            keeps_all: config.restore_points == RestorePointPolicy::EveryNode,
        })
    }

    /// The offsets at which state is taken while the prompt is computed, ascending.
    pub(super) fn points(&self, prompt: &PromptFacts<'_>) -> Vec<Point> {
        let of_kind = |kind| move |at: usize| Point::exact(at, kind);
        let named = prompt.named.iter().copied().map(of_kind(PointKind::Named));
        let turn_end = prompt.turn_end.into_iter().map(of_kind(PointKind::TurnEnd));
        let shared_tokens = prompt.seen_tokens.saturating_sub(prompt.path_tokens);
        let branches = shared_tokens >= self.branch_tokens_min;
        let branch = branches.then_some(prompt.seen_tokens);
        let branch = branch.into_iter().map(of_kind(PointKind::Branch));
        let last = self.keeps_all.then(|| prompt.tokens.saturating_sub(1));
        let last = last.into_iter().map(of_kind(PointKind::Interval));
        let mut points: Vec<Point> = named.chain(turn_end).chain(branch).chain(last).collect();
        points.retain(|point| prompt.path_tokens < point.at && point.at <= prompt.tokens);
        points.sort_by_key(|point| (point.at, point.kind));
        points.dedup_by_key(|point| point.at);
        let interval = self.interval_points(prompt, &points);
        points.extend(interval);
        points.sort_by_key(|point| point.at);
        points
    }

    /// The points of the interval between the others.
    fn interval_points(&self, prompt: &PromptFacts<'_>, others: &[Point]) -> Vec<Point> {
        let ends = others.iter().map(|point| point.at).chain([prompt.tokens]);
        let mut from = prompt.path_tokens;
        let slack = self.interval_tokens / 2;
        let mut interval_points = Vec::new();
        for end in ends {
            let offsets = (from..end).step_by(self.interval_tokens).skip(1);
            let points = offsets.map(|at| Point {
                at,
                until: at.saturating_add(slack),
                kind: PointKind::Interval,
            });
            // The next point, or the end of the prompt, is near enough for the last one.
            interval_points.extend(points.filter(|point| point.until <= end));
            from = end;
        }
        interval_points
    }

    /// Whether output is dropped that a later turn spells in another way.
    pub(super) fn drops_respelled(&self) -> bool {
        !self.keeps_all
    }

    /// Whether the state at the end of a node is kept although a later turn resumed below it.
    pub(super) fn keeps(&self, snapshot: &SnapshotFacts) -> bool {
        self.keeps_all
            || snapshot.is_own_point
            || snapshot.is_named
            || snapshot.is_path_end
            || snapshot.children > 1
            || snapshot.resumes > 1
            || snapshot.tokens_since_kept >= self.interval_tokens
    }
}

/// Tokens between two points of the interval: at least `tokens_min`, and at least as many tokens
/// as have attention state of the weight of a snapshot.
fn interval_tokens(spec: &ModelSpec, tokens_min: usize) -> usize {
    let (mut snapshot_bytes, mut token_bytes) = (0_usize, 0_usize);
    for group in &spec.layer_groups {
        match group.kind {
            LayerKind::Full => token_bytes = token_bytes.saturating_add(group.bytes),
            LayerKind::Window { tokens } => {
                let bytes = group.bytes.saturating_mul(tokens);
                snapshot_bytes = snapshot_bytes.saturating_add(bytes);
            }
            LayerKind::Recurrent => snapshot_bytes = snapshot_bytes.saturating_add(group.bytes),
        }
    }
    // Without full attention nothing else limits the interval.
    let from_bytes = match token_bytes {
        0 => 1,
        bytes => snapshot_bytes.div_ceil(bytes),
    };
    from_bytes.max(tokens_min).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use motet_protocol::LayerGroup;

    fn spec(groups: &[(LayerKind, usize)]) -> ModelSpec {
        let group = |(kind, bytes): &(LayerKind, usize)| LayerGroup {
            kind: *kind,
            layers: 1,
            bytes: *bytes,
        };
        ModelSpec {
            layer_groups: groups.iter().map(group).collect(),
            ..ModelSpec::with_layer_kinds(&[])
        }
    }

    #[test]
    fn interval_follows_from_bytes() {
        let window = LayerKind::Window { tokens: 512 };
        let check = |groups: &[(LayerKind, usize)], tokens_min, expected| {
            let found = interval_tokens(&spec(groups), tokens_min);
            assert_eq!(found, expected, "{groups:?}");
        };
        let delta_net = [(LayerKind::Full, 25), (LayerKind::Recurrent, 20_000)];
        check(&delta_net, 512, 800);
        check(&delta_net, 1000, 1000);
        check(
            &[(LayerKind::Full, 25), (LayerKind::Recurrent, 20_001)],
            1,
            801,
        );
        check(&[(LayerKind::Full, 2), (window, 10)], 512, 2560);
        check(&[(LayerKind::Recurrent, 20_000)], 512, 512);
        check(&[(window, 10)], 0, 1);
        let huge = [(LayerKind::Full, 1), (LayerKind::Recurrent, usize::MAX)];
        check(&[huge[0], huge[1], huge[1]], 1, usize::MAX);
    }

    fn policy(interval_tokens: usize) -> RestorePolicy {
        RestorePolicy {
            interval_tokens,
            branch_tokens_min: 2,
            keeps_all: false,
        }
    }

    #[test]
    fn model_that_resumes_anywhere_has_no_policy() {
        let config = CacheConfig::default();
        assert_eq!(
            RestorePolicy::new(&spec(&[(LayerKind::Full, 8)]), &config),
            None
        );
        assert!(RestorePolicy::new(&spec(&[(LayerKind::Recurrent, 8)]), &config).is_some());
    }

    #[test]
    fn points_lie_where_a_resume_is_likely() {
        let check = |prompt: &PromptFacts<'_>, expected: &[(usize, PointKind)]| {
            let points = policy(10).points(prompt);
            let found: Vec<_> = points.iter().map(|point| (point.at, point.kind)).collect();
            assert_eq!(found, expected, "{prompt:?}");
        };
        use PointKind::{Branch, Interval, Named, TurnEnd};
        let prompt = PromptFacts {
            tokens: 9,
            path_tokens: 0,
            seen_tokens: 0,
            named: &[],
            turn_end: None,
        };
        check(&prompt, &[]);
        check(
            &PromptFacts {
                tokens: 31,
                ..prompt
            },
            &[(10, Interval), (20, Interval)],
        );
        check(
            &PromptFacts {
                tokens: 24,
                ..prompt
            },
            &[(10, Interval)],
        );
        let later = PromptFacts {
            tokens: 40,
            path_tokens: 7,
            seen_tokens: 8,
            named: &[5, 7, 12, 41],
            turn_end: Some(35),
        };
        check(&later, &[(12, Named), (22, Interval), (35, TurnEnd)]);
        let branch = PromptFacts {
            seen_tokens: 9,
            named: &[],
            ..later
        };
        check(
            &branch,
            &[(9, Branch), (19, Interval), (29, Interval), (35, TurnEnd)],
        );
        let never_shared = RestorePolicy {
            branch_tokens_min: usize::MAX,
            ..policy(100)
        };
        assert_eq!(
            never_shared.points(&PromptFacts {
                seen_tokens: 39,
                turn_end: None,
                ..branch
            }),
            []
        );
        // The first reason counts.
        let same = PromptFacts {
            seen_tokens: 12,
            turn_end: Some(12),
            ..later
        };
        check(&same, &[(12, Named), (22, Interval), (32, Interval)]);
    }

    #[test]
    fn baseline_keeps_all_state() {
        let baseline = RestorePolicy {
            keeps_all: true,
            ..policy(10)
        };
        let prompt = PromptFacts {
            tokens: 9,
            path_tokens: 0,
            seen_tokens: 0,
            named: &[],
            turn_end: Some(5),
        };
        let offsets: Vec<usize> = baseline
            .points(&prompt)
            .iter()
            .map(|point| point.at)
            .collect();
        assert_eq!(offsets, [5, 8]);
        assert!(!baseline.drops_respelled());
    }

    #[test]
    fn superseded_state_is_kept_for_a_reason() {
        let superseded = SnapshotFacts {
            tokens_since_kept: 9,
            is_own_point: false,
            is_named: false,
            children: 1,
            resumes: 1,
            is_path_end: false,
        };
        assert!(!policy(10).keeps(&superseded));
        let reasons = [
            SnapshotFacts {
                tokens_since_kept: 10,
                ..superseded
            },
            SnapshotFacts {
                is_own_point: true,
                ..superseded
            },
            SnapshotFacts {
                is_named: true,
                ..superseded
            },
            SnapshotFacts {
                children: 2,
                ..superseded
            },
            SnapshotFacts {
                resumes: 2,
                ..superseded
            },
            SnapshotFacts {
                is_path_end: true,
                ..superseded
            },
        ];
        for reason in reasons {
            assert!(policy(10).keeps(&reason), "{reason:?}");
        }
    }
}
