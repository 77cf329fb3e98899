//! The shapes of attention: for a layer kind, and for one step.

use std::f32::consts::LOG2_E;

use motet_model::CacheKind;

use super::extras::{Extras, PositionScale};

/// Attention of one layer kind.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Heads and their size.
    pub heads: Heads,
    /// Factor of the scores, usually `dim^-0.5`.
    pub scale: f32,
    /// Sliding window: each row sees this many tokens, itself included. None means all.
    pub window: Option<usize>,
    /// Rotary embedding of queries and keys.
    pub rotary: Rotary,
    /// The type of cached keys and values. All computation is in `f32`.
    pub cached: CacheKind,
    /// Additions of the family to plain attention.
    pub extras: Extras,
}

/// Attention heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads; a multiple of `kv`.
    pub query: usize,
    /// Key and value heads.
    pub kv: usize,
    /// Numbers in a head; a multiple of 16.
    pub dim: usize,
}

/// Rotary embedding (RoFormer, Su et al. 2021) in half-split order: number `i`
/// is paired with number `i + rotated / 2`.
#[derive(Clone, Debug)]
pub struct Rotary {
    /// Radians per token of each pair; at most `dim / 2` pairs, the rest of a head
    /// is not rotated.
    pub inverse_frequencies: Vec<f32>,
    /// Factor of sine and cosine; 1 unless the context extension asks for another
    /// (YaRN, Peng et al. 2023).
    pub magnitude: f32,
}

/// One span of a step.
#[derive(Clone, Debug)]
pub struct SpanRange {
    /// Rows of the span. They follow the rows of the spans before.
    pub rows: usize,
    /// Sealed segments that come before the tail.
    pub path: Vec<PartRange>,
    /// The tail before this step.
    pub tail: TailRange,
}

/// A segment's range in a span's sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartRange {
    /// Index among the segments of the step. Spans that share the segment have it at the same
    /// position.
    pub segment: usize,
    /// Position of its first cached token.
    pub start: usize,
    /// Cached tokens.
    pub tokens: usize,
}

/// A tail's range in a span's sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailRange {
    /// Position of its first cached token.
    pub start: usize,
    /// Cached tokens; the span's first row has position `start + tokens`.
    pub tokens: usize,
}

impl Attention {
    /// Columns of a packed row.
    #[must_use]
    pub fn row_width(&self) -> usize {
        self.heads.packed() + self.extras.trailing_columns
    }

    /// Factor of every query. Scores then are exponents of two, which are cheaper to evaluate; or
    /// fractions of the softcap, of which the hyperbolic tangent is taken.
    pub(super) fn query_factor(&self) -> f32 {
        match self.extras.softcap {
            None => self.scale * LOG2_E,
            Some(cap) => self.scale / cap,
        }
    }
}

impl Heads {
    /// Whether attention supports such heads.
    #[must_use]
    pub fn supported(&self) -> bool {
        self.kv > 0
            && self.query > 0
            && self.query.is_multiple_of(self.kv)
            && self.dim > 0
            && self.dim.is_multiple_of(16)
    }

    pub(super) fn per_kv(&self) -> usize {
        self.query / self.kv
    }

    /// Numbers in a row of queries, keys and values.
    pub(super) fn packed(&self) -> usize {
        (self.query + 2 * self.kv) * self.dim
    }
}

/// Cosines, then sines, of each row's angles. Angles are `f32` products, as in the models' own
/// code: far from the start their rounding is part of the model.
pub(super) fn angles(rotary: &Rotary, spans: &[SpanRange]) -> Vec<f32> {
    let frequencies = &rotary.inverse_frequencies;
    let rows = spans.iter().map(|span| span.rows).sum::<usize>();
    let mut angles = Vec::with_capacity(2 * rows * frequencies.len());
    for span in spans {
        for row in 0..span.rows {
            let position = (span.tail.start + span.tail.tokens + row) as f32;
            let angle = frequencies.iter().map(|frequency| position * frequency);
            angles.extend(angle.clone().map(|angle| rotary.magnitude * angle.cos()));
            angles.extend(angle.map(|angle| rotary.magnitude * angle.sin()));
        }
    }
    angles
}

/// The factor of each row's queries; empty where it is 1 for all.
pub(super) fn position_scales(extras: &Extras, spans: &[SpanRange]) -> Vec<f32> {
    let Some(PositionScale {
        beta,
        original_tokens,
    }) = extras.position_scale
    else {
        return Vec::new();
    };
    let positions = spans.iter().flat_map(|span| {
        let first = span.tail.start + span.tail.tokens;
        first..first + span.rows
    });
    let scale = |position: usize| 1.0 + beta * (1.0 + (position / original_tokens) as f32).ln();
    positions.map(scale).collect()
}
