//! Measures how much of the past a window layer reads, by removing it.

use motet::TokenId;
use motet::model::LayerKind;
use motet::model::oracle::OracleConfig;

use crate::segments::{can_continue, oracle, sealed};

/// Number of tokens at the end of `past` that a model with a window of `window` tokens reads
/// when it evaluates `next`. With the state of only these tokens its rows are those of a run
/// without a cache. With one token less they are not.
pub(crate) fn tokens_read(window: usize, past: &[TokenId], next: &[TokenId]) -> usize {
    let enough = |held: &usize| is_enough(window, past, *held, next);
    let read = (0..=past.len()).find(enough).expect("all of it is enough");
    assert!(
        (read..=past.len()).all(|held| enough(&held)),
        "more is enough too"
    );
    read
}

/// Whether the state of the last `held` tokens of the past is enough.
fn is_enough(window: usize, past: &[TokenId], held: usize, next: &[TokenId]) -> bool {
    let config = OracleConfig::with_layers(&[LayerKind::Window { tokens: window }]);
    let mut oracle = oracle(&config);
    let at = past.len() - held;
    let mut path = Vec::new();
    if at > 0 {
        // After a whole window of further tokens, a segment has nothing left of its own.
        let far = vec![past[0]; window];
        path.push(sealed(&mut oracle, &[past, &far].concat(), 0..at));
    }
    if held > 0 {
        path.push(sealed(&mut oracle, past, at..past.len()));
    }
    can_continue(&mut oracle, &config, &path, past, next)
}

#[test]
fn window_reads_one_token_less_than_its_size() {
    let past: Vec<TokenId> = (1..12).collect();
    for window in 1..14 {
        let read = tokens_read(window, &past, &[20, 21, 22]);
        assert_eq!(read, (window - 1).min(past.len()), "window {window}");
    }
}
