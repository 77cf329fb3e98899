//! Drawing with a history, biases and grammars.

use super::*;

fn more() -> Sampling {
    Sampling {
        repetition_penalty: 2.0,
        ..Sampling::GREEDY
    }
}

#[test]
fn penalties_make_repetition_less_likely() {
    let spec = std::sync::Arc::new(DrawSpec::default());
    let mut drawer = Drawer::new(spec, more(), &[1], &[]);
    let draw = Draw {
        sampling: more(),
        index: 0,
    };
    let drawing = drawer.drawing(draw).expect("no grammar");
    assert_eq!(drawing.from_logits(&[0.0, 5.0, 4.0]).token, 2);
}
