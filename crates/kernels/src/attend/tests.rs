//! Attention against a plain double-precision reference.

mod odd_shapes;

use std::ops::Range;

use half::{bf16, f16};
use proptest::prelude::*;

use super::super::simd::{InstructionSet, Number};
use super::*;
use motet_model::FloatKind;

const ORDERS: [Order; 2] = [Order::PerStep, Order::PerSequence];

/// A type of cached keys and values.
trait CachedNumber: Number + PartialEq {
    const KIND: FloatKind;
    /// Relative error that rounding may cause in a number.
    const ROUNDING: f32;
    fn of(x: f32) -> Self;
    fn wide(self) -> f32;
}

impl CachedNumber for f32 {
    const KIND: FloatKind = FloatKind::F32;
    const ROUNDING: f32 = 0.0;

    fn of(x: f32) -> f32 {
        x
    }

    fn wide(self) -> f32 {
        self
    }
}

impl CachedNumber for bf16 {
    const KIND: FloatKind = FloatKind::Bf16;
    const ROUNDING: f32 = 1.0 / 256.0;

    fn of(x: f32) -> bf16 {
        bf16::from_f32(x)
    }

    fn wide(self) -> f32 {
        self.to_f32()
    }
}

impl CachedNumber for f16 {
    const KIND: FloatKind = FloatKind::F16;
    const ROUNDING: f32 = 1.0 / 2_048.0;

    fn of(x: f32) -> f16 {
        f16::from_f32(x.clamp(-65_504.0, 65_504.0))
    }

    fn wide(self) -> f32 {
        self.to_f32()
    }
}

/// Keys and values of some tokens, `[kv heads, capacity, dim]` each.
#[derive(Clone, PartialEq)]
struct Buffer<N> {
    keys: Vec<N>,
    values: Vec<N>,
    capacity: usize,
}

impl<N: CachedNumber> Buffer<N> {
    fn new(heads: Heads, capacity: usize, seed: u64) -> Buffer<N> {
        let count = heads.kv * capacity * heads.dim;
        let cached_numbers = |seed| numbers(count, seed).into_iter().map(N::of).collect();
        Buffer {
            keys: cached_numbers(seed),
            values: cached_numbers(seed + 1),
            capacity,
        }
    }

    fn read(&self) -> Cache<'_, N> {
        Cache {
            keys: &self.keys,
            values: &self.values,
            capacity: self.capacity,
        }
    }

    fn write(&mut self) -> CacheMut<'_, N> {
        CacheMut {
            keys: &mut self.keys,
            values: &mut self.values,
            capacity: self.capacity,
        }
    }

    /// The same numbers in another type.
    fn converted<M: CachedNumber>(&self) -> Buffer<M> {
        let cached_numbers = |of: &[N]| of.iter().map(|x| M::of(x.wide())).collect();
        Buffer {
            keys: cached_numbers(&self.keys),
            values: cached_numbers(&self.values),
            capacity: self.capacity,
        }
    }

    fn row(&self, of: &[N], heads: Heads, kv_head: usize, token: usize) -> Vec<f64> {
        let from = (kv_head * self.capacity + token) * heads.dim;
        of[from..from + heads.dim]
            .iter()
            .map(|x| f64::from(x.wide()))
            .collect()
    }
}

/// Numbers without a pattern, from -1 to 1.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// A step with everything that it needs.
struct Case<N> {
    attention: Attention,
    spans: Vec<SpanRange>,
    packed: Vec<f32>,
    segments: Vec<Buffer<N>>,
    tails: Vec<Buffer<N>>,
}

impl<N: CachedNumber> Case<N> {
    /// Spans whose paths are made of segments of `lengths`.
    fn new(
        mut attention: Attention,
        lengths: &[usize],
        spans: &[(&[usize], usize, usize)],
    ) -> Case<N> {
        attention.cached = N::KIND;
        let heads = attention.heads;
        let spans: Vec<SpanRange> = spans
            .iter()
            .map(|&(path, tokens, rows)| {
                let mut start = 0;
                let part = |&segment: &usize| {
                    start += lengths[segment];
                    let tokens = lengths[segment];
                    PartRange {
                        segment,
                        start: start - tokens,
                        tokens,
                    }
                };
                let path = path.iter().map(part).collect();
                SpanRange {
                    rows,
                    path,
                    tail: TailRange { start, tokens },
                }
            })
            .collect();
        let rows = spans.iter().map(|span| span.rows).sum::<usize>();
        let segment =
            |(i, &tokens): (usize, &usize)| Buffer::new(heads, tokens + i % 3, 10 + i as u64);
        let tail = |(i, span): (usize, &SpanRange)| {
            Buffer::new(heads, span.tail.tokens + span.rows + i % 2, 100 + i as u64)
        };
        Case {
            packed: numbers(rows * heads.packed(), 1)
                .iter()
                .map(|x| 3.0 * x)
                .collect(),
            segments: lengths.iter().enumerate().map(segment).collect(),
            tails: spans.iter().enumerate().map(tail).collect(),
            attention,
            spans,
        }
    }

    /// Output and tails, as `attend` computes them.
    fn run(&self, order: Order, set: InstructionSet, threads: usize) -> (Vec<f32>, Vec<Buffer<N>>) {
        let attention = self.attention.clone();
        let plan = AttendPlan::for_machine(attention, &self.spans, order, set, threads);
        let mut tails = self.tails.clone();
        let mut output = vec![f32::NAN; plan.query_numbers()];
        let mut views: Vec<CacheMut<'_, N>> = tails.iter_mut().map(Buffer::write).collect();
        let segments: Vec<Cache<'_, N>> = self.segments[..plan.segments()]
            .iter()
            .map(Buffer::read)
            .collect();
        attend(
            &Pool::new(threads),
            &plan,
            &self.packed,
            &segments,
            &mut views,
            &mut output,
        );
        (output, tails)
    }

    fn rotated(&self, from: &[f32], position: usize) -> Vec<f64> {
        let mut to: Vec<f64> = from.iter().map(|x| f64::from(*x)).collect();
        let frequencies = &self.attention.rotary.inverse_frequencies;
        let magnitude = f64::from(self.attention.rotary.magnitude);
        for (i, frequency) in frequencies.iter().enumerate() {
            let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
            let (x, y) = (to[i], to[i + frequencies.len()]);
            to[i] = magnitude * (x * cos - y * sin);
            to[i + frequencies.len()] = magnitude * (y * cos + x * sin);
        }
        to
    }

    /// The tails with the step's keys and values, from the definition and not rounded.
    fn appended(&self) -> Vec<Buffer<f32>> {
        let heads = self.attention.heads;
        let mut tails: Vec<Buffer<f32>> = self.tails.iter().map(Buffer::converted).collect();
        let mut rows = self.packed.chunks_exact(heads.packed());
        for (span, tail) in self.spans.iter().zip(&mut tails) {
            for index in 0..span.rows {
                let row = rows.next().unwrap();
                let rest = &row[heads.query * heads.dim..];
                let token = span.tail.tokens + index;
                let position = span.tail.start + token;
                for kv_head in 0..heads.kv {
                    let at = (kv_head * tail.capacity + token) * heads.dim;
                    let key = self.rotated(&rest[kv_head * heads.dim..][..heads.dim], position);
                    let key: Vec<f32> = key.iter().map(|x| *x as f32).collect();
                    let value = &rest[(heads.kv + kv_head) * heads.dim..][..heads.dim];
                    tail.keys[at..at + heads.dim].copy_from_slice(&key);
                    tail.values[at..at + heads.dim].copy_from_slice(value);
                }
            }
        }
        tails
    }

    /// The output from the definition, one row after another, for the given tails.
    fn attended(&self, tails: &[Buffer<N>]) -> Vec<f64> {
        let heads = self.attention.heads;
        let [segments, tails] = [&self.segments[..], tails].map(|all| {
            all.iter()
                .map(Buffer::converted)
                .collect::<Vec<Buffer<f32>>>()
        });
        let mut output = Vec::new();
        let mut rows = self.packed.chunks_exact(heads.packed());
        for (span, tail) in self.spans.iter().zip(&tails) {
            for index in 0..span.rows {
                let queries = &rows.next().unwrap()[..heads.query * heads.dim];
                let position = span.tail.start + span.tail.tokens + index;
                for (head, query) in queries.chunks_exact(heads.dim).enumerate() {
                    let query = self.rotated(query, position);
                    let kv_head = head / heads.per_kv();
                    output
                        .extend(self.attend_one(&segments, span, tail, kv_head, position, &query));
                }
            }
        }
        output
    }

    fn attend_one(
        &self,
        segments: &[Buffer<f32>],
        span: &SpanRange,
        tail: &Buffer<f32>,
        kv_head: usize,
        position: usize,
        query: &[f64],
    ) -> Vec<f64> {
        let heads = self.attention.heads;
        let parts = span
            .path
            .iter()
            .map(|part| (&segments[part.segment], part.start, part.tokens));
        let own = (tail, span.tail.start, position + 1 - span.tail.start);
        let mut seen = Vec::new();
        for (buffer, start, tokens) in parts.chain([own]) {
            for token in 0..tokens {
                let window = self.attention.window.unwrap_or(usize::MAX);
                if position - (start + token) < window {
                    let key = buffer.row(&buffer.keys, heads, kv_head, token);
                    let score: f64 = key.iter().zip(query).map(|(k, q)| k * q).sum();
                    let value = buffer.row(&buffer.values, heads, kv_head, token);
                    seen.push((score * f64::from(self.attention.scale), value));
                }
            }
        }
        let largest = seen.iter().map(|seen| seen.0).fold(f64::MIN, f64::max);
        let total: f64 = seen.iter().map(|seen| (seen.0 - largest).exp()).sum();
        let weighed = |i: usize| -> f64 {
            seen.iter()
                .map(|(score, value)| (score - largest).exp() * value[i])
                .sum()
        };
        (0..heads.dim).map(|i| weighed(i) / total).collect()
    }

    fn check(&self) {
        let appended = self.appended();
        // Cached numbers depend on nothing but the instruction set.
        let mut known: Option<(Vec<Buffer<N>>, Vec<f64>)> = None;
        for &set in InstructionSet::available() {
            for (order, threads) in ORDERS
                .into_iter()
                .flat_map(|order| [1, 2, 5].map(|n| (order, n)))
            {
                let (output, tails) = self.run(order, set, threads);
                let is_known = |known: &(Vec<Buffer<N>>, Vec<f64>)| known.0 == tails;
                if !known.as_ref().is_some_and(is_known) {
                    // Computed from the cached numbers, since a number between two may be
                    // rounded to either.
                    known = Some((tails.clone(), self.attended(&tails)));
                }
                let (_, expected) = known
                    .as_ref()
                    .expect("the expected output was just computed");
                for (index, (y, expected)) in output.iter().zip(expected).enumerate() {
                    let error = (f64::from(*y) - expected).abs();
                    assert!(
                        error < 1e-5,
                        "{:?}, {set:?}, {order:?}, {threads} threads, {index}: {y}, not {expected}",
                        N::KIND
                    );
                }
                for (tail, expected) in tails.iter().zip(&appended) {
                    let rounded = expected.converted::<N>();
                    assert_eq!(
                        tail.converted::<f32>().values,
                        rounded.converted::<f32>().values
                    );
                    for (key, expected) in tail.keys.iter().zip(&expected.keys) {
                        let error = (key.wide() - expected).abs();
                        assert!(error < 1e-6 + (1e-6 + N::ROUNDING) * expected.abs());
                    }
                }
            }
        }
    }
}

/// Every type of cached keys and values gives the expected output.
fn check(attention: Attention, lengths: &[usize], spans: &[(&[usize], usize, usize)]) {
    Case::<f32>::new(attention.clone(), lengths, spans).check();
    Case::<bf16>::new(attention.clone(), lengths, spans).check();
    Case::<f16>::new(attention, lengths, spans).check();
}

fn attention(query: usize, kv: usize, dim: usize, window: Option<usize>) -> Attention {
    let inverse_frequencies = (0..dim / 2).map(|i| 0.1_f32.powf(i as f32 / 4.0)).collect();
    Attention {
        heads: Heads { query, kv, dim },
        scale: (dim as f32).sqrt().recip(),
        window,
        rotary: Rotary {
            inverse_frequencies,
            magnitude: 1.0,
        },
        cached: FloatKind::F32,
    }
}

#[test]
fn one_token_sees_itself() {
    check(attention(1, 1, 16, None), &[], &[(&[], 0, 1)]);
}

#[test]
fn every_head_size_and_ratio() {
    for dim in [48, 64, 80, 96, 128] {
        for (query, kv) in [(1, 1), (3, 1), (9, 3), (8, 2)] {
            let spans: &[(&[usize], usize, usize)] = &[(&[0], 5, 1), (&[0, 1], 0, 7)];
            check(attention(query, kv, dim, None), &[30, 21], spans);
        }
    }
}

#[test]
fn shared_prefixes_and_private_tails() {
    // A trie: segment 0 belongs to all spans, 1 and 2 to some, 3 to one.
    let spans: &[(&[usize], usize, usize)] = &[
        (&[0, 1], 3, 1),
        (&[0, 1], 90, 1),
        (&[0, 1, 3], 0, 20),
        (&[0, 2], 17, 1),
        (&[0, 2], 64, 2),
        (&[0], 1, 1),
        (&[], 9, 1),
    ];
    check(attention(6, 2, 32, None), &[130, 70, 64, 5], spans);
}

#[test]
fn windows_hide_older_tokens() {
    for window in [1, 2, 17, 64, 100, 1000] {
        let spans: &[(&[usize], usize, usize)] = &[
            (&[0, 1], 3, 1),
            (&[0, 1], 30, 40),
            (&[0, 2], 17, 1),
            (&[], 0, 33),
            // Few enough rows for the kernel of few queries, each with its own window.
            (&[3], 1, 2),
            (&[], 70, 2),
        ];
        check(attention(4, 2, 16, Some(window)), &[100, 50, 9, 200], spans);
    }
}

#[test]
fn a_part_of_a_head_may_go_unrotated() {
    let mut attention = attention(4, 2, 64, None);
    attention.rotary = Rotary {
        inverse_frequencies: vec![0.3, 0.2, 0.1],
        magnitude: 1.25,
    };
    check(attention.clone(), &[20], &[(&[0], 3, 5)]);
    attention.rotary.inverse_frequencies.clear();
    check(attention, &[20], &[(&[0], 3, 5)]);
}

#[test]
fn large_scores_do_not_overflow() {
    fn check<N: CachedNumber>() {
        let mut case = Case::<N>::new(
            attention(4, 1, 16, None),
            &[40],
            &[(&[0], 3, 20), (&[0], 0, 1)],
        );
        case.packed.iter_mut().for_each(|x| *x *= 300.0);
        for order in ORDERS {
            let (output, _) = case.run(order, InstructionSet::best(), 2);
            assert!(output.iter().all(|x| x.is_finite() && x.abs() <= 904.0));
        }
    }

    check::<f32>();
    check::<bf16>();
    check::<f16>();
}

/// Keys and values beyond the range of half precision are clamped to its largest numbers.
#[test]
fn values_too_large_for_f16_stay_finite() {
    for &set in InstructionSet::available() {
        for rows in [1, 40] {
            let mut case = Case::<f16>::new(attention(2, 1, 16, None), &[40], &[(&[0], 3, rows)]);
            case.packed.iter_mut().for_each(|x| *x *= 1e6);
            for order in ORDERS {
                let (output, tails) = case.run(order, set, 2);
                assert!(output.iter().all(|x| x.is_finite()), "{set:?}, {order:?}");
                let largest = tails[0].values.iter().map(|x| x.wide().abs());
                assert_eq!(largest.fold(0.0, f32::max), 65_504.0);
            }
        }
    }
}

#[test]
fn nan_propagates() {
    fn check<N: CachedNumber>() {
        for rows in [1, 40] {
            let mut case = Case::<N>::new(attention(2, 1, 16, None), &[40], &[(&[0], 3, rows)]);
            case.segments[0].keys[5] = N::of(f32::NAN);
            for order in ORDERS {
                let (output, _) = case.run(order, InstructionSet::best(), 2);
                let all = output.iter().all(|x| x.is_nan());
                assert!(all, "{:?}, {rows} rows, {order:?}", N::KIND);
            }
        }
    }

    check::<f32>();
    check::<bf16>();
    check::<f16>();
}

#[test]
#[should_panic(expected = "left == right")]
fn lengths_are_checked() {
    let mut case = Case::<f32>::new(attention(2, 1, 16, None), &[40], &[(&[0], 3, 2)]);
    case.packed.pop();
    case.run(Order::PerStep, InstructionSet::best(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn any_step_equals_the_reference(
        (query, kv) in prop_oneof![Just((3, 1)), Just((4, 2)), Just((2, 2))],
        dim in prop_oneof![Just(16_usize), Just(48)],
        window in proptest::option::of(1_usize..150),
        lengths in proptest::collection::vec(1_usize..100, 4),
        spans in proptest::collection::vec((0_usize..5, 0_usize..90, 1_usize..24), 1..6),
    ) {
        // Paths of a trie: 0; 0-1; 0-1-2; 3.
        let paths: [&[usize]; 5] = [&[], &[0], &[0, 1], &[0, 1, 2], &[3]];
        let spans: Vec<_> =
            spans.iter().map(|&(path, tokens, rows)| (paths[path], tokens, rows)).collect();
        check(attention(query, kv, dim, window), &lengths, &spans);
    }
}

/// A sequence, evaluated in one step in the [order of a sequence](Order::PerSequence).
struct Whole<N> {
    case: Case<N>,
    set: InstructionSet,
    output: Vec<f32>,
    /// Its keys and values.
    tail: Buffer<N>,
}

impl<N: CachedNumber> Whole<N> {
    fn new(attention: Attention, tokens: usize, set: InstructionSet) -> Whole<N> {
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
            let from = (kv_head * self.tail.capacity + tokens.start) * dim;
            let to = kv_head * part.capacity * dim;
            let numbers = tokens.len() * dim;
            part.keys[to..to + numbers].copy_from_slice(&self.tail.keys[from..from + numbers]);
            part.values[to..to + numbers].copy_from_slice(&self.tail.values[from..from + numbers]);
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
        let width = self.heads().packed();
        let mut case = Case {
            attention: self.case.attention.clone(),
            spans: Vec::new(),
            packed: Vec::new(),
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
    fn check(&self, cuts: &[usize], ranges: &[Range<usize>], threads: usize) {
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
            let attention = attention(query, kv, dim, window);
            Whole::<f32>::new(attention.clone(), tokens, set).check(&cuts, &ranges, threads);
            Whole::<bf16>::new(attention.clone(), tokens, set).check(&cuts, &ranges, threads);
            Whole::<f16>::new(attention, tokens, set).check(&cuts, &ranges, threads);
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
