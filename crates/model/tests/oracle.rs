//! The oracle against its own reference, and each way to corrupt its cache.

mod oracle {
    mod conformance;
    mod faults;
    mod mixups;
    mod random;
    mod shifting;

    use motet_model::LayerKind::{self, Full, Recurrent};

    pub(crate) const fn window(tokens: usize) -> LayerKind {
        LayerKind::Window { tokens }
    }

    /// Every kind of layer alone, and mixtures.
    pub(crate) const LAYERS: [&[LayerKind]; 10] = [
        &[Full],
        &[Full, Full, Full],
        &[window(1)],
        &[window(2)],
        &[window(5)],
        &[window(100)],
        &[Recurrent],
        &[Full, window(3)],
        &[window(4), Recurrent, window(4)],
        &[Recurrent, Full, window(3)],
    ];
}
