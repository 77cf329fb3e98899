//! The state that nodes hold beside keys and values of full attention.

use motet_protocol::{LayerGroup, LayerKind, ModelSpec, SegmentSize};

/// Counts the nodes that hold state of window or recurrent layers, and its bytes. Nothing is
/// counted for models of full attention.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    /// The layers whose state is counted.
    layer_groups: Vec<LayerGroup>,
    nodes: usize,
    bytes: usize,
}

impl Snapshots {
    pub(super) fn of(spec: &ModelSpec) -> Self {
        let layer_groups = spec.layer_groups.iter().copied();
        Self {
            layer_groups: layer_groups
                .filter(|group| group.kind != LayerKind::Full)
                .collect(),
            nodes: 0,
            bytes: 0,
        }
    }

    /// Whether the model has layers whose state is counted.
    pub(super) fn is_counting(&self) -> bool {
        !self.layer_groups.is_empty()
    }

    /// Nodes that hold such state.
    pub(crate) fn nodes(&self) -> usize {
        self.nodes
    }

    /// Device bytes of such state.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn add(&mut self, segment_size: SegmentSize) {
        let bytes = self.bytes_of(segment_size);
        self.nodes += usize::from(bytes > 0);
        self.bytes += bytes;
    }

    pub(super) fn remove(&mut self, segment_size: SegmentSize) {
        let bytes = self.bytes_of(segment_size);
        self.nodes -= usize::from(bytes > 0);
        self.bytes -= bytes;
    }

    /// Bytes of such state in a segment.
    pub(crate) fn bytes_of(&self, segment_size: SegmentSize) -> usize {
        let groups = self.layer_groups.iter();
        groups.map(|group| group.segment_bytes(segment_size)).sum()
    }

    /// Panics unless this is the sum over `nodes`.
    pub(super) fn check_integrity(&self, nodes: impl Iterator<Item = SegmentSize>) {
        let bytes: Vec<usize> = nodes.map(|size| self.bytes_of(size)).collect();
        let held = bytes.iter().filter(|bytes| **bytes > 0).count();
        assert_eq!(held, self.nodes, "snapshots are counted");
        assert_eq!(
            bytes.iter().sum::<usize>(),
            self.bytes,
            "their bytes add up"
        );
    }
}
