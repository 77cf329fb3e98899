//! Cached state in pieces, without a cache: oracles, segments, and whether a sequence can
//! continue from a path of segments.

use std::ops::Range;
use std::rc::Rc;

use motet::TokenId;
use motet::model::Model;
use motet::model::oracle::{Oracle, OracleConfig};
use motet_model::oracle::{OracleSegment, OracleTail};
use motet_model::{OutputKind, Packer, Segment, Span, SpanOutput, TokenSource};

/// A token that no case uses.
pub(crate) const NEXT: TokenId = 999;

pub(crate) fn oracle(config: &OracleConfig) -> Oracle {
    Oracle::new(config.clone()).expect("a valid configuration")
}

/// Evaluates tokens, and returns their rows.
pub(crate) fn rows(
    oracle: &mut Oracle,
    path: &[Rc<OracleSegment>],
    tail: &mut OracleTail,
    tokens: &[TokenId],
) -> Vec<f32> {
    let mut spans = [Span {
        tokens: TokenSource::Known(tokens),
        path,
        tail,
        output_kind: OutputKind::Logits,
    }];
    match oracle.step(&mut spans).expect("a step").pop() {
        Some(SpanOutput::Logits(logits)) => logits,
        other => panic!("expected logits: {other:?}"),
    }
}

/// The segment of some of these tokens, sealed after all of them were evaluated.
pub(crate) fn sealed(
    oracle: &mut Oracle,
    tokens: &[TokenId],
    range: Range<usize>,
) -> Rc<OracleSegment> {
    let mut tail = oracle.tail(&[], 0).expect("memory");
    rows(oracle, &[], &mut tail, tokens);
    if range.start > 0 {
        drop(oracle.seal(&mut tail, range.start).expect("inside"));
    }
    Rc::new(oracle.seal(&mut tail, range.len()).expect("inside"))
}

/// The segment's state as bytes.
pub(crate) fn packed(oracle: &mut Oracle, segment: &OracleSegment) -> Vec<u8> {
    let packer = oracle.packer();
    let mut bytes = vec![0; packer.packed_bytes(segment.segment_size())];
    let detached_state = oracle.export(segment).expect("a detached state");
    packer
        .pack(&detached_state, &mut bytes)
        .expect("the buffer is large enough");
    bytes
}

/// Whether `next`, evaluated on this path of the tokens `past`, has the same rows as without a
/// cache.
pub(crate) fn can_continue(
    oracle: &mut Oracle,
    config: &OracleConfig,
    path: &[Rc<OracleSegment>],
    past: &[TokenId],
    next: &[TokenId],
) -> bool {
    let mut tail = oracle.tail(path, 0).expect("memory");
    let all = [past, next].concat();
    let expected = config.reference_logits(&all);
    rows(oracle, path, &mut tail, next) == expected[past.len() * config.vocab_size..]
}
