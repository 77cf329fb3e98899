//! Where on a path a sequence can resume.
//!
//! | layer kind | can resume after a node when |
//! |---|---|
//! | full | always |
//! | window W | the last W tokens before its end are held, by it and the nodes above |
//! | recurrent | its state was taken there |
//!
//! A mixture resumes where all its layers can.

use smallvec::SmallVec;

use crate::model::{Extent, LayerKind, ModelSpec};

/// What a path holds of the past of its end, read from the top down.
#[derive(Clone, Debug)]
pub struct Coverage {
    /// Each window's width, and how many tokens of it are held.
    windows: SmallVec<[(usize, usize); 2]>,
    recurrent: bool,
    tokens: usize,
    state_taken: bool,
}

impl Coverage {
    /// Of a path without nodes: everything resumes from nothing.
    #[must_use]
    pub fn new(spec: &ModelSpec) -> Self {
        let kinds = || spec.layer_groups.iter().map(|group| group.kind);
        let windows = kinds().filter_map(|kind| match kind {
            LayerKind::Window { tokens } => Some((tokens, 0)),
            LayerKind::Full | LayerKind::Recurrent => None,
        });
        Self {
            windows: windows.collect(),
            recurrent: kinds().any(|kind| kind == LayerKind::Recurrent),
            tokens: 0,
            state_taken: true,
        }
    }

    /// Goes on to the end of the next node.
    pub fn extend(&mut self, extent: Extent) {
        for (window, held) in &mut self.windows {
            let of_node = extent.window_tokens(*window);
            *held = match of_node == extent.tokens {
                true => (*held + of_node).min(*window),
                false => of_node,
            };
        }
        self.tokens += extent.tokens;
        self.state_taken = extent.has_recurrent_state();
    }

    /// Whether a sequence can resume at the end reached.
    #[must_use]
    pub fn resumes(&self) -> bool {
        let in_reach = |(window, held): &(usize, usize)| *held >= self.tokens.min(*window);
        self.windows.iter().all(in_reach) && (!self.recurrent || self.state_taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::LayerGroup;

    /// Which of the nodes can be resumed at: `(tokens, beyond)` each.
    fn check(kinds: &[LayerKind], nodes: &[(usize, usize)], expected: &[bool]) {
        let group = |kind: &LayerKind| LayerGroup {
            kind: *kind,
            layers: 1,
            bytes: 1,
        };
        let spec = ModelSpec {
            name: "any".into(),
            vocab_size: 2,
            context_tokens_max: 100,
            end_tokens: Vec::new(),
            layer_groups: kinds.iter().map(group).collect(),
            tail_block_tokens: 1,
            can_shift: true,
        };
        let mut coverage = Coverage::new(&spec);
        assert!(coverage.resumes(), "from nothing");
        let resumes = nodes.iter().map(|&(tokens, beyond)| {
            coverage.extend(Extent { tokens, beyond });
            coverage.resumes()
        });
        assert_eq!(resumes.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn each_kind_resumes_where_its_past_is_held() {
        const FULL: LayerKind = LayerKind::Full;
        const WINDOW: LayerKind = LayerKind::Window { tokens: 4 };
        const RECURRENT: LayerKind = LayerKind::Recurrent;
        check(&[FULL], &[(5, 3), (2, 1), (1, 0)], &[true, true, true]);
        check(
            &[RECURRENT],
            &[(5, 3), (3, 0), (1, 0)],
            &[false, true, true],
        );
        // Cut after 5 of 8: the upper part holds one of its last four tokens.
        check(&[WINDOW], &[(5, 3), (3, 0)], &[false, true]);
        // Cut after 1 of 3: all is still held.
        check(&[WINDOW], &[(1, 2), (2, 0)], &[true, true]);
        // The lower node alone holds too little, and the upper has let go.
        check(&[WINDOW], &[(8, 9), (2, 0), (2, 0)], &[false, false, true]);
        check(
            &[FULL, WINDOW, RECURRENT],
            &[(1, 2), (2, 0), (9, 2)],
            &[false, true, false],
        );
    }
}
