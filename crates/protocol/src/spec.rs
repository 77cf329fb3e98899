//! The numbers that describe a model to the scheduler and the cache.

use crate::TokenId;

/// The kind of state that a layer keeps of past tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerKind {
    /// Full attention: keys and values of every token; can be split after any token.
    Full,
    /// Sliding window: the last `tokens` tokens, the present one included.
    Window {
        /// Width of the window; at least 1.
        tokens: usize,
    },
    /// Recurrent: one state, which can be restored only at the offset where it was taken.
    Recurrent,
}

/// Layers of one kind, and the bytes of their state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerGroup {
    /// The kind of all layers in this group.
    pub kind: LayerKind,
    /// Number of layers.
    pub layers: usize,
    /// Device bytes of the whole group: per cached token for attention, per
    /// state for recurrent layers.
    pub bytes: usize,
}

/// The size of a segment, and how much past state it holds.
///
/// Keys and values of full attention can be split after any token. Window and recurrent layers
/// have state for one offset only, the one at which it was taken. When a segment is split, the
/// lower part keeps that state. The upper part keeps the window state that lies in its own
/// range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SegmentSize {
    /// Tokens in its range.
    pub tokens: usize,
    /// Tokens between its end and the offset at which its state was taken: 0 unless it is the
    /// upper part of a split.
    pub state_lag: usize,
}

/// The description of a model: its vocabulary, its context, its layers.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// Display name, for example `SmolLM2 135M Instruct`.
    pub name: String,
    /// Token ids are `0..vocab_size`.
    pub vocab_size: usize,
    /// Numbers in a token's hidden state; 0 if the model returns no hidden states, and so cannot
    /// embed texts.
    pub hidden_size: usize,
    /// Longest sequence, prompt and output together, in tokens.
    pub context_tokens_max: usize,
    /// Tokens that end a sequence unless the request ignores them.
    pub end_tokens: Vec<TokenId>,
    /// The layers, grouped by kind.
    pub layer_groups: Vec<LayerGroup>,
    /// Tails grow by whole blocks of this many tokens; see [`tail_capacity`].
    pub tail_block_tokens: usize,
    /// Whether the state of full attention can be moved to other positions.
    pub can_shift: bool,
    /// Upper bound on the device bytes that a step needs for each of its tokens, beside weights
    /// and cached state.
    pub scratch_bytes_per_token: usize,
    /// Tokens of the largest step that is submitted before the step ahead of it has finished. A
    /// larger step is submitted only afterwards, so that it does not delay tokens of the step
    /// ahead.
    pub overlap_tokens_max: usize,
    /// Most draft tokens that a span verifies; 0 if the model verifies no drafts.
    pub draft_tokens_max: usize,
}

/// Bytes in use on the device, as the device counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Bytes in use now.
    pub active_bytes: usize,
    /// Largest number of bytes in use so far.
    pub peak_bytes: usize,
}

impl LayerGroup {
    /// Returns the device bytes of this group in a sealed segment.
    #[must_use]
    pub fn segment_bytes(&self, segment_size: SegmentSize) -> usize {
        match self.kind {
            LayerKind::Full => self.bytes * segment_size.tokens,
            LayerKind::Window { tokens: window } => self.bytes * segment_size.window_tokens(window),
            LayerKind::Recurrent => self.bytes * usize::from(segment_size.has_recurrent_state()),
        }
    }
}

impl SegmentSize {
    /// Creates the size of a segment whose state was taken at its end.
    #[must_use]
    pub fn whole(tokens: usize) -> Self {
        Self {
            tokens,
            state_lag: 0,
        }
    }

    /// Returns the sizes of the two parts of a segment that is split after `at` tokens.
    ///
    /// # Panics
    ///
    /// Unless `0 < at < self.tokens`.
    #[must_use]
    pub fn cut(self, at: usize) -> (Self, Self) {
        assert!(
            0 < at && at < self.tokens,
            "a segment is split inside its range"
        );
        let rest = self.tokens - at;
        let upper = Self {
            tokens: at,
            state_lag: self.state_lag + rest,
        };
        let lower = Self {
            tokens: rest,
            state_lag: self.state_lag,
        };
        (upper, lower)
    }

    /// Returns the size of this segment merged with `lower`, which follows it. Inverse of
    /// [`cut`](Self::cut) if both come from the same segment.
    #[must_use]
    pub fn merged(self, lower: Self) -> Self {
        Self {
            tokens: self.tokens + lower.tokens,
            state_lag: lower.state_lag,
        }
    }

    /// Returns how many tokens of a window of `window` tokens it holds: its last ones.
    #[must_use]
    pub fn window_tokens(self, window: usize) -> usize {
        self.tokens.min(window.saturating_sub(self.state_lag))
    }

    /// Returns the size of this segment without the state at its end that only a resume there
    /// needs. `lower` follows it: the two are then like the parts of a cut.
    #[must_use]
    pub fn stripped(self, lower: Self) -> Self {
        Self {
            tokens: self.tokens,
            state_lag: lower.tokens + lower.state_lag,
        }
    }

    /// Whether it holds the state of recurrent layers at its end.
    #[must_use]
    pub fn has_recurrent_state(self) -> bool {
        self.state_lag == 0
    }
}

impl ModelSpec {
    /// Whether a sequence can resume after any cached token: true when every layer
    /// uses full attention.
    #[must_use]
    pub fn resumes_anywhere(&self) -> bool {
        self.layer_groups
            .iter()
            .all(|group| group.kind == LayerKind::Full)
    }

    /// Whether a new tail on a path of such segments, oldest first, finds all past state that
    /// it needs. Each window layer needs the last W tokens, or all if there are fewer. The
    /// segments at the path's end must hold them; all of these but the uppermost must hold all
    /// their tokens. Each recurrent layer needs its state in the last segment.
    #[must_use]
    pub fn can_resume(&self, path: &[SegmentSize]) -> bool {
        self.layer_groups.iter().all(|group| match group.kind {
            LayerKind::Full => true,
            LayerKind::Window { tokens } => covers_window(path, tokens),
            LayerKind::Recurrent => path
                .last()
                .is_none_or(|segment| segment.has_recurrent_state()),
        })
    }

    /// Whether `upper` and `lower`, which follows it, hold all state that one merged segment
    /// must hold. Full attention always does; every kind does if
    /// `upper.state_lag <= lower.tokens + lower.state_lag`.
    #[must_use]
    pub fn can_merge(&self, upper: SegmentSize, lower: SegmentSize) -> bool {
        self.layer_groups.iter().all(|group| match group.kind {
            LayerKind::Full | LayerKind::Recurrent => true,
            LayerKind::Window { tokens: window } => {
                let requested = upper.merged(lower).window_tokens(window);
                requested <= upper.window_tokens(window) + lower.window_tokens(window)
            }
        })
    }

    /// Returns the device bytes of a sealed segment.
    #[must_use]
    pub fn segment_bytes(&self, segment_size: SegmentSize) -> usize {
        self.layer_groups
            .iter()
            .map(|group| group.segment_bytes(segment_size))
            .sum()
    }

    /// Returns the device bytes of a token's keys and values, in windows too.
    #[must_use]
    pub fn token_bytes(&self) -> usize {
        let groups = self.layer_groups.iter();
        let attention = groups.filter(|group| group.kind != LayerKind::Recurrent);
        attention.map(|group| group.bytes).sum()
    }

    /// Returns an upper bound on the device bytes of a tail that grows to `tokens` tokens,
    /// spare capacity included. Window layers count in full: how much more than the window they
    /// hold at times depends on the step's chunks.
    #[must_use]
    pub fn tail_bytes(&self, tokens: usize) -> usize {
        let capacity = tail_capacity(tokens, self.tail_block_tokens.max(1));
        self.layer_groups
            .iter()
            .map(|group| match group.kind {
                LayerKind::Full | LayerKind::Window { .. } => group.bytes * capacity,
                LayerKind::Recurrent => group.bytes,
            })
            .sum()
    }
}

/// Whether the last `window` tokens of `path` are held, or all where it has fewer.
fn covers_window(path: &[SegmentSize], window: usize) -> bool {
    let mut requested = window;
    path.iter().rev().all(|segment| {
        let held = segment.window_tokens(window) >= segment.tokens.min(requested);
        requested = requested.saturating_sub(segment.tokens);
        held
    })
}

/// Returns the capacity of a tail of `tokens` tokens: whole blocks, and above eight blocks
/// multiples of an eighth of the next power of two. The copies made when a long tail grows then
/// cost a constant share of each token.
#[must_use]
pub fn tail_capacity(tokens: usize, block_tokens: usize) -> usize {
    let blocks = tokens.div_ceil(block_tokens);
    let grain = (blocks.next_power_of_two() / 8).max(1);
    blocks.next_multiple_of(grain) * block_tokens
}

impl ModelSpec {
    /// Returns a model with one layer of each kind, with one byte of state each; for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn with_layer_kinds(kinds: &[LayerKind]) -> Self {
        let group = |kind: &LayerKind| LayerGroup {
            kind: *kind,
            layers: 1,
            bytes: 1,
        };
        Self {
            name: String::new(),
            vocab_size: 2,
            hidden_size: 0,
            context_tokens_max: 100,
            end_tokens: Vec::new(),
            layer_groups: kinds.iter().map(group).collect(),
            tail_block_tokens: 1,
            can_shift: true,
            scratch_bytes_per_token: 0,
            overlap_tokens_max: usize::MAX,
            draft_tokens_max: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(kind: LayerKind) -> ModelSpec {
        ModelSpec::with_layer_kinds(&[kind])
    }

    fn segment_sizes(path: &[(usize, usize)]) -> Vec<SegmentSize> {
        let segment_size = |&(tokens, state_lag)| SegmentSize { tokens, state_lag };
        path.iter().map(segment_size).collect()
    }

    #[test]
    fn path_is_resumable_if_its_end_is_held() {
        let window = LayerKind::Window { tokens: 4 };
        let check = |kind, path: &[(usize, usize)], expected| {
            let found = spec(kind).can_resume(&segment_sizes(path));
            assert_eq!(found, expected, "{kind:?}: {path:?}");
        };
        for path in [&[][..], &[(9, 0)], &[(9, 5), (2, 0)]] {
            check(LayerKind::Full, path, true);
            check(LayerKind::Recurrent, path, true);
        }
        check(LayerKind::Full, &[(9, 5)], true);
        check(LayerKind::Recurrent, &[(9, 1)], false);
        check(window, &[], true);
        check(window, &[(1, 0)], true);
        check(window, &[(9, 0)], true);
        check(window, &[(9, 1)], false);
        // All tokens of the path lie in the window and are held.
        check(window, &[(3, 1)], true);
        check(window, &[(3, 2)], false);
        check(window, &[(9, 3), (3, 0)], true);
        check(window, &[(9, 4), (3, 0)], false);
        check(window, &[(9, 4), (4, 0)], true);
        check(window, &[(9, 4), (3, 1), (1, 0)], true);
        check(window, &[(9, 4), (3, 2), (1, 0)], false);
    }

    #[test]
    fn cut_segments_can_be_merged() {
        let window = LayerKind::Window { tokens: 4 };
        let check = |kind, upper, lower, expected| {
            let path = segment_sizes(&[upper, lower]);
            let found = spec(kind).can_merge(path[0], path[1]);
            assert_eq!(found, expected, "{kind:?}: {upper:?}, {lower:?}");
        };
        for kind in [LayerKind::Full, LayerKind::Recurrent, window] {
            for at in 1..9 {
                let (upper, lower) = SegmentSize {
                    tokens: 9,
                    state_lag: 2,
                }
                .cut(at);
                assert!(
                    spec(kind).can_merge(upper, lower),
                    "{kind:?}, cut after {at}"
                );
                assert_eq!(
                    upper.merged(lower),
                    SegmentSize {
                        tokens: 9,
                        state_lag: 2
                    }
                );
            }
        }
        check(LayerKind::Full, (9, 5), (1, 0), true);
        check(LayerKind::Recurrent, (9, 5), (1, 0), true);
        check(window, (9, 0), (3, 0), true);
        check(window, (9, 1), (1, 0), true);
        check(window, (9, 2), (1, 0), false);
        check(window, (9, 2), (1, 1), true);
        // The window ends below the upper part, which need hold nothing.
        check(window, (9, 9), (4, 0), true);
        check(window, (9, 9), (3, 1), true);
        check(window, (9, 9), (3, 0), false);
        check(window, (1, 3), (1, 0), true);
        check(window, (1, 4), (1, 0), false);
    }

    #[test]
    fn capacities_are_whole_blocks_with_bounded_slack() {
        for (tokens, blocks) in [
            (0, 0),
            (1, 1),
            (256, 1),
            (257, 2),
            (2048, 8),
            (2049, 10),
            (4097, 20),
        ] {
            assert_eq!(tail_capacity(tokens, 256), blocks * 256, "{tokens} tokens");
        }
        for tokens in (1..100_000).step_by(97) {
            let slack = tail_capacity(tokens, 256) - tokens;
            assert!(slack < 256 + tokens / 4, "{tokens} tokens");
            assert!(tail_capacity(tokens + 1, 256) >= tail_capacity(tokens, 256));
        }
    }
}
