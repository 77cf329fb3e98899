//! The order of a sequence: the same bits however a sequence is cut and batched.

use std::ops::Range;

use half::{bf16, f16};
use proptest::prelude::*;

use motet_formats::simd::InstructionSet;

use super::super::*;
use super::attention;
use super::case::{Buffer, CachedNumber, Case};
use crate::cached_int8::Int8;

/// A sequence, evaluated in one step in the [order of a sequence](Order::PerSequence).
pub(super) struct Whole<N> {
    case: Case<N>,
    set: InstructionSet,
    output: Vec<f32>,
    /// Its keys and values.
    tail: Buffer<N>,
}

impl<N: CachedNumber> Whole<N> {
    pub(super) fn new(attention: Attention, tokens: usize, set: InstructionSet) -> Whole<N> {
        let case = Case::new(attention, &[], &[(&[], 0, tokens)]);
        let (output, mut tails) = case.run(Order::PerSequence, set, 1);
        let tail = tails.remove(0);
        Whole {
            case,
            set,
            output,
            tail,
        }
    }

    fn heads(&self) -> Heads {
        self.case.attention.heads
    }

    /// Some of its keys and values, in a buffer with capacity for more.
    fn part(&self, tokens: Range<usize>, extra_tokens: usize) -> Buffer<N> {
        let Heads { kv, dim, .. } = self.heads();
        let mut part = Buffer::new(self.heads(), tokens.len() + extra_tokens, 1);
        for kv_head in 0..kv {
            let row_len = N::row_len(dim);
            let from = (kv_head * self.tail.capacity + tokens.start) * row_len;
            let to = kv_head * part.capacity * row_len;
            let len = tokens.len() * row_len;
            part.keys[to..to + len].copy_from_slice(&self.tail.keys[from..from + len]);
            part.values[to..to + len].copy_from_slice(&self.tail.values[from..from + len]);
        }
        part
    }

    /// A step of several ranges of its rows, each as a separate span: sequences with a common
    /// beginning that have come to different positions. Segments end at `cuts`. A span lists
    /// the segments that it is past and that its first row still sees. Returns each range's
    /// output.
    fn rerun(&self, cuts: &[usize], ranges: &[Range<usize>], threads: usize) -> Vec<Vec<f32>> {
        let starts = [0].iter().chain(cuts);
        let path: Vec<Range<usize>> = starts.zip(cuts).map(|(from, to)| *from..*to).collect();
        let Heads { query, dim, .. } = self.heads();
        let width = self.case.attention.row_width();
        let mut case = Case {
            attention: self.case.attention.clone(),
            spans: Vec::new(),
            packed: Vec::new(),
            query_norm: self.case.query_norm.clone(),
            key_norm: self.case.key_norm.clone(),
            sinks: self.case.sinks.clone(),
            segments: path.iter().map(|part| self.part(part.clone(), 1)).collect(),
            tails: Vec::new(),
        };
        for rows in ranges {
            let window = case.attention.window.unwrap_or(usize::MAX);
            let first_seen = (rows.start + 1).saturating_sub(window);
            let past = path.iter().filter(|part| part.end <= rows.start);
            let own = past.clone().next_back().map_or(0, |part| part.end)..rows.start;
            let part = |(segment, tokens): (usize, &Range<usize>)| PartRange {
                segment,
                start: tokens.start,
                tokens: tokens.len(),
            };
            let seen = past.enumerate().filter(|(_, part)| part.end > first_seen);
            case.spans.push(SpanRange {
                rows: rows.len(),
                tail: TailRange {
                    start: own.start,
                    tokens: own.len(),
                },
                path: seen.map(part).collect(),
            });
            case.tails.push(self.part(own, rows.len() + 3));
            let packed = &self.case.packed[rows.start * width..rows.end * width];
            case.packed.extend_from_slice(packed);
        }
        let (output, _) = case.run(Order::PerSequence, self.set, threads);
        let mut rest = &output[..];
        let of_span = |rows: &Range<usize>| {
            let (own, others) = rest.split_at(rows.len() * query * dim);
            rest = others;
            own.to_vec()
        };
        ranges.iter().map(of_span).collect()
    }

    /// Each range gets the same output to the last bit as in one evaluation of the whole
    /// sequence.
    pub(super) fn check(&self, cuts: &[usize], ranges: &[Range<usize>], threads: usize) {
        let row_len = self.heads().query * self.heads().dim;
        for (rows, output) in ranges.iter().zip(self.rerun(cuts, ranges, threads)) {
            let expected = &self.output[rows.start * row_len..rows.end * row_len];
            let mut pairs = output.iter().zip(expected);
            let same = pairs.all(|(a, b)| a.to_bits() == b.to_bits());
            let set = self.set;
            assert!(same, "{set:?}: {rows:?} beside {ranges:?} on {cuts:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn sequence_order_is_independent_of_the_batch(
        (query, kv) in prop_oneof![Just((3, 1)), Just((4, 2)), Just((9, 3))],
        dim in prop_oneof![Just(16_usize), Just(64), Just(80)],
        window in proptest::option::of(1_usize..1_200),
        extras in prop_oneof![Just(Extras::default()), super::extras::any_extras()],
        tokens in 1_usize..1_400,
        mut cuts in proptest::collection::vec(0.0_f64..1.0, 0..6),
        spans in proptest::collection::vec((0.0_f64..1.0, 1_usize..40), 1..5),
        threads in 1_usize..4,
    ) {
        let offset_at = |part: f64| (part * tokens as f64) as usize;
        let range = |(first, rows): (f64, usize)| offset_at(first)..tokens.min(offset_at(first) + rows);
        let ranges: Vec<Range<usize>> = spans.into_iter().map(range).collect();
        cuts.sort_by(f64::total_cmp);
        let mut cuts: Vec<usize> = cuts.into_iter().map(offset_at).filter(|cut| *cut > 0).collect();
        cuts.dedup();
        for &set in InstructionSet::available() {
            let attention = Attention { extras, ..attention(query, kv, dim, window) };
            Whole::<f32>::new(attention.clone(), tokens, set).check(&cuts, &ranges, threads);
            Whole::<bf16>::new(attention.clone(), tokens, set).check(&cuts, &ranges, threads);
            Whole::<f16>::new(attention.clone(), tokens, set).check(&cuts, &ranges, threads);
            Whole::<Int8>::new(attention, tokens, set).check(&cuts, &ranges, threads);
        }
    }
}

/// The sequence that is further on no longer sees the beginning of the other.
#[test]
fn spans_with_different_visible_starts_keep_their_order() {
    for (window, cuts) in [
        (1_000, [512, 1_024]),
        (1_000, [700, 1_100]),
        (1_100, [400, 1_030]),
    ] {
        check_visible_starts::<f32>(window, &cuts);
        check_visible_starts::<bf16>(window, &cuts);
        check_visible_starts::<Int8>(window, &cuts);
    }
}

fn check_visible_starts<N: CachedNumber>(window: usize, cuts: &[usize]) {
    let attention = attention(3, 1, 16, Some(window));
    let whole = Whole::<N>::new(attention, 1_700, InstructionSet::best());
    let ranges = [1_650..1_651, 1_300..1_303, 1_110..1_111, 1_120..1_140];
    whole.check(cuts, &ranges, 2);
    let [a, b, c, d] = ranges;
    whole.check(cuts, &[c, b, a, d], 1);
}

/// Two sequences with a common beginning: the kernel reads the shared keys once, except for the
/// chunk in which the sequences diverge.
#[test]
fn whole_shared_chunks_form_one_group() {
    let spans: &[(&[usize], usize, usize)] = &[(&[0, 1], 5, 1), (&[0, 1], 9, 2)];
    let case = Case::<f32>::new(attention(3, 1, 16, None), &[700, 500], spans);
    let set = InstructionSet::best();
    let plan = AttendPlan::for_machine(case.attention, &case.spans, Order::PerSequence, set, 2);
    let groups = plan.groups.iter();
    let groups: Vec<_> = groups
        .map(|group| (group.rows.len(), group.keys.len()))
        .collect();
    assert_eq!(groups, [(3, 1_024), (1, 182), (2, 187)]);
}
