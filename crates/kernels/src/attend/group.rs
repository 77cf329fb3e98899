//! The cached tokens that each row of a step sees, grouped over all spans.

use std::ops::Range;

use rustc_hash::FxHashMap;

use super::shape::{PartRange, SpanRange};

/// Keys that are scored before their values are weighted: as many as fit into the first level
/// of cache with the rest.
pub(super) const BLOCK: usize = 64;

/// Keys in a chunk where chunk boundaries follow from positions: whole blocks.
pub(super) const CHUNK: usize = 8 * BLOCK;

/// Rows that see the same parts.
#[derive(Debug)]
pub(super) struct Group {
    /// Row of the step, and position, of each stacked row.
    pub(super) rows: Vec<(usize, usize)>,
    pub(super) parts: Vec<Part>,
    /// The range of keys, counted through all parts, that any row sees.
    pub(super) keys: Range<usize>,
    /// The subranges of `keys` that single items go through.
    pub(super) chunks: Vec<Range<usize>>,
    /// Whether items write their results to the output: no other group works for its rows, and
    /// there is one chunk.
    pub(super) direct: bool,
    /// Index of its first partial result.
    pub(super) partial: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Part {
    pub(super) source: Source,
    /// The first token of the source that belongs to the part.
    pub(super) first: usize,
    /// That token's position.
    pub(super) start: usize,
    pub(super) tokens: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Source {
    Segment(usize),
    /// The tail of a span, the step's rows included.
    Tail(usize),
}

/// The result of [`gather`].
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// The range of each segment of the step.
    pub(super) segments: Vec<PartRange>,
    /// Groups of spans, each with the parts that exactly those spans see.
    pub(super) groups: Vec<(Vec<usize>, Vec<Part>)>,
}

/// Gathers the spans that share each segment. Neighbouring segments of the same spans make one
/// group, and so does everything that only one span sees.
///
/// # Panics
///
/// When spans share a segment at different positions, or a part has no tokens.
pub(super) fn gather(spans: &[SpanRange]) -> Gathered {
    let mut gathered = Gathered::default();
    let members = gathered.members(spans);
    for (index, span) in spans.iter().enumerate() {
        let mut own = Vec::new();
        // The groups from here on are new.
        let first = gathered.groups.len();
        for range in &span.path {
            let sharing = &members[range.segment];
            let part = Part::from_path_range(range);
            if sharing.len() == 1 {
                own.push(part);
            } else if sharing[0] == index {
                // The first of the spans that share it creates the group for all.
                gathered.add(first, sharing, &[part]);
            }
        }
        own.push(Part::from_tail(index, span));
        gathered.groups.push((vec![index], own));
    }
    gathered
}

/// Gathers the spans that share each chunk: all of a chunk's keys or none, so that a row's
/// order of summation does not depend on the other spans of the step.
///
/// # Panics
///
/// As for [`gather`].
pub(super) fn gather_chunks(spans: &[SpanRange]) -> Gathered {
    let mut gathered = Gathered::default();
    gathered.members(spans);
    let chunks: Vec<Vec<Vec<Part>>> = spans.iter().enumerate().map(chunks).collect();
    let mut members: FxHashMap<&[Part], Vec<usize>> = FxHashMap::default();
    for (index, chunks) in chunks.iter().enumerate() {
        for chunk in chunks {
            members.entry(chunk).or_default().push(index);
        }
    }
    for (index, chunks) in chunks.iter().enumerate() {
        let mut first = gathered.groups.len();
        for chunk in chunks {
            let sharing = &members[&chunk[..]];
            if sharing[0] == index {
                gathered.add(first, sharing, chunk);
            } else {
                // Chunks after another group's chunk do not extend a group from before it.
                first = gathered.groups.len();
            }
        }
    }
    gathered
}

/// The keys that a span sees, cut wherever a position is a multiple of [`CHUNK`].
fn chunks((index, span): (usize, &SpanRange)) -> Vec<Vec<Part>> {
    let mut chunks: Vec<(usize, Vec<Part>)> = Vec::new();
    let path = span.path.iter().map(Part::from_path_range);
    for part in path.chain([Part::from_tail(index, span)]) {
        let end = part.start + part.tokens;
        for chunk in part.start / CHUNK..end.div_ceil(CHUNK) {
            let start = part.start.max(chunk * CHUNK);
            let of_chunk = Part {
                source: part.source,
                first: start - part.start,
                start,
                tokens: end.min((chunk + 1) * CHUNK) - start,
            };
            match chunks.last_mut() {
                Some((last, parts)) if *last == chunk => parts.push(of_chunk),
                _ => chunks.push((chunk, vec![of_chunk])),
            }
        }
    }
    chunks.into_iter().map(|(_, parts)| parts).collect()
}

impl Part {
    fn from_path_range(range: &PartRange) -> Self {
        Part {
            source: Source::Segment(range.segment),
            first: 0,
            start: range.start,
            tokens: range.tokens,
        }
    }

    /// A span's tail with the step's rows.
    fn from_tail(span: usize, range: &SpanRange) -> Self {
        Part {
            source: Source::Tail(span),
            first: 0,
            start: range.tail.start,
            tokens: range.tail.tokens + range.rows,
        }
    }
}

impl Gathered {
    /// Appends `seen` to the last of the groups from `first` on if that group has the same
    /// spans. Otherwise creates a new group.
    fn add(&mut self, first: usize, sharing: &[usize], seen: &[Part]) {
        match self.groups[first..].last_mut() {
            Some((last, parts)) if last == sharing => parts.extend(seen),
            _ => self.groups.push((sharing.to_vec(), seen.to_vec())),
        }
    }

    /// The spans that have each segment in their path. Records each segment's range.
    fn members(&mut self, spans: &[SpanRange]) -> Vec<Vec<usize>> {
        let mut members: Vec<Vec<usize>> = Vec::new();
        for (index, span) in spans.iter().enumerate() {
            for range in &span.path {
                assert!(range.tokens > 0, "a part has tokens");
                for segment in members.len()..=range.segment {
                    members.push(Vec::new());
                    // A placeholder until a span with this segment is found.
                    let (start, tokens) = (0, 0);
                    self.segments.push(PartRange {
                        segment,
                        start,
                        tokens,
                    });
                }
                let known = &mut self.segments[range.segment];
                if members[range.segment].is_empty() {
                    *known = *range;
                }
                assert_eq!(known, range, "spans share a segment at one position");
                members[range.segment].push(index);
            }
        }
        members
    }
}

impl Group {
    pub(super) fn new(rows: Vec<(usize, usize)>, parts: Vec<Part>) -> Group {
        Group {
            rows,
            parts,
            keys: 0..0,
            chunks: Vec::new(),
            direct: false,
            partial: 0,
        }
    }

    /// Finds the keys that any row sees. Keys outside every row's window are at the front.
    pub(super) fn find_visible_keys(&mut self, window: Option<usize>) {
        let earliest = self.rows.iter().map(|row| row.1).min();
        let earliest = earliest.expect("a span has rows");
        let from = window.map_or(0, |window| (earliest + 1).saturating_sub(window));
        let hidden = |part: &Part| part.tokens.min(from.saturating_sub(part.start));
        let total = self.parts.iter().map(|part| part.tokens).sum();
        self.keys = self.parts.iter().map(hidden).sum::<usize>()..total;
    }

    /// Cuts the keys into `chunks` chunks of whole blocks, or fewer.
    pub(super) fn cut(&mut self, chunks_max: usize) {
        let length = self.keys.len().div_ceil(chunks_max).next_multiple_of(BLOCK);
        let end = self.keys.end;
        let starts = self.keys.clone().step_by(length.max(1));
        self.chunks = starts.map(|from| from..end.min(from + length)).collect();
        self.direct &= self.chunks.len() == 1;
    }

    /// Cuts the keys wherever a position is a multiple of [`CHUNK`], so that the keys of a row
    /// in a chunk follow from their positions alone.
    pub(super) fn cut_by_position(&mut self) {
        let mut chunks: Vec<(usize, Range<usize>)> = Vec::new();
        let mut from = 0;
        // No part is in two chunks.
        for part in &self.parts {
            let (chunk, end) = (part.start / CHUNK, from + part.tokens);
            match chunks.last_mut() {
                Some((last, keys)) if *last == chunk => keys.end = end,
                _ => chunks.push((chunk, from..end)),
            }
            from = end;
        }
        let seen = |keys: Range<usize>| keys.start.max(self.keys.start)..keys.end;
        let chunks = chunks.into_iter().map(|(_, keys)| seen(keys));
        self.chunks = chunks.filter(|keys| !keys.is_empty()).collect();
        self.direct &= self.chunks.len() == 1;
    }
}
