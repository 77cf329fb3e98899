//! Sealed segments: the cached state of a token range, compact and immutable.

use mlx_rs::Array;
use mlx_rs::error::Exception;

use super::groups::{Arrays, KvShape, LayerGroups};
use super::layer_state::State;
use motet_model::Segment;
use motet_protocol::SegmentSize;

/// The cached state of one contiguous token range, for all layers.
pub struct MlxSegment {
    segment_size: SegmentSize,
    /// The keys and values of each group that has them.
    kv: Vec<KvPart>,
    /// For each recurrent group, each layer's state at the range's end. Empty unless the
    /// segment size [says](SegmentSize::has_recurrent_state) that there is any.
    recurrent: Vec<Vec<Arrays>>,
}

/// The keys and values of one group's layers.
#[derive(Debug)]
pub(crate) struct KvPart {
    /// Tokens whose state is retained, the last ones of the range: all of them unless the group
    /// has a sliding window.
    retained: usize,
    /// Empty where no token's state is retained.
    layers: Vec<State>,
}

impl KvPart {
    /// Each layer's state of the retained tokens, row-contiguous. Nothing is evaluated.
    pub(crate) fn new(retained: usize, layers: Vec<State>) -> Self {
        Self { retained, layers }
    }

    pub(crate) fn retained(&self) -> usize {
        self.retained
    }

    pub(crate) fn layer(&self, index: usize) -> &State {
        &self.layers[index]
    }

    /// Tokens `from..to` of the retained ones.
    fn part(&self, from: usize, to: usize) -> Result<Self, Exception> {
        let layers = self.layers.iter().filter(|_| from < to);
        let layers = layers.map(|layer| layer.compact(from, to));
        Ok(Self::new(to - from, layers.collect::<Result<_, _>>()?))
    }

    /// The last tokens of this part and of `lower`, which follows it: as many as a segment of
    /// the size of both retains.
    fn merged(
        &self,
        shape: &KvShape,
        segment_size: SegmentSize,
        lower: &Self,
    ) -> Result<Self, Exception> {
        let retained = shape.retained(segment_size);
        // A merged segment retains at least what the lower one retains. If that is nothing,
        // there is nothing to merge.
        let taken = retained - lower.retained;
        if taken == 0 {
            return lower.part(0, lower.retained);
        }
        let layers = self.layers.iter().zip(&lower.layers);
        let layers = layers.map(|(upper, lower)| {
            let upper = upper.view(self.retained - taken, self.retained)?;
            State::joined(&[&upper, lower])
        });
        Ok(Self::new(retained, layers.collect::<Result<_, _>>()?))
    }

    fn shared(&self) -> Self {
        Self::new(
            self.retained,
            self.layers.iter().map(State::shared).collect(),
        )
    }

    /// The last `retained` tokens. No copy if these are all.
    fn last(&self, retained: usize) -> Result<Self, Exception> {
        if retained == self.retained {
            return Ok(self.shared());
        }
        self.part(self.retained - retained, self.retained)
    }
}

impl MlxSegment {
    /// A segment of each group's parts.
    pub(crate) fn new(
        segment_size: SegmentSize,
        kv: Vec<KvPart>,
        recurrent: Vec<Vec<Arrays>>,
    ) -> Self {
        Self {
            segment_size,
            kv,
            recurrent,
        }
    }

    /// The keys and values of a group.
    pub(crate) fn kv(&self, group: usize) -> &KvPart {
        &self.kv[group]
    }

    /// The state of a recurrent group's layers at the range's end, if the segment holds it.
    pub(crate) fn recurrent(&self, group: usize) -> Option<&[Arrays]> {
        self.recurrent.get(group).map(Vec::as_slice)
    }

    /// The first `at` tokens and the rest, cut as [`SegmentSize::cut`] says.
    pub(crate) fn split(&self, groups: &LayerGroups, at: usize) -> Result<(Self, Self), Exception> {
        let (upper_size, lower_size) = self.segment_size.cut(at);
        let (mut upper, mut lower) = (Vec::new(), Vec::new());
        for (shape, part) in groups.kv.iter().zip(&self.kv) {
            let cut = shape.retained(upper_size);
            upper.push(part.part(0, cut)?);
            lower.push(part.part(cut, part.retained)?);
        }
        Ok((
            Self::new(upper_size, upper, Vec::new()),
            Self::new(lower_size, lower, self.recurrent.clone()),
        ))
    }

    /// The state that this segment and `lower`, which follows it, retain for one segment in
    /// their place.
    pub(crate) fn merged(&self, groups: &LayerGroups, lower: &Self) -> Result<Self, Exception> {
        let segment_size = self.segment_size.merged(lower.segment_size);
        let parts = groups.kv.iter().zip(self.kv.iter().zip(&lower.kv));
        let parts = parts.map(|(shape, (upper, lower))| upper.merged(shape, segment_size, lower));
        let kv = parts.collect::<Result<_, _>>()?;
        Ok(Self::new(segment_size, kv, lower.recurrent.clone()))
    }

    /// This segment without the state that only a resume at its end needs: what it retains if
    /// its state was taken after `below`, which follows it. Nothing is evaluated.
    pub(crate) fn stripped(&self, groups: &LayerGroups, below: &Self) -> Result<Self, Exception> {
        let segment_size = self.segment_size.stripped(below.segment_size);
        let parts = groups.kv.iter().zip(&self.kv);
        let parts = parts.map(|(shape, part)| part.last(shape.retained(segment_size)));
        let kv = parts.collect::<Result<_, _>>()?;
        Ok(Self::new(segment_size, kv, Vec::new()))
    }

    /// Another handle to the same state.
    pub(crate) fn shared(&self) -> Self {
        Self::new(
            self.segment_size,
            self.kv.iter().map(KvPart::shared).collect(),
            self.recurrent.clone(),
        )
    }

    /// Every array of the segment, in the order in which they are packed.
    pub(crate) fn arrays(&self) -> impl Iterator<Item = &Array> {
        let kv = self.kv.iter().flat_map(|part| &part.layers);
        let recurrent = self.recurrent.iter().flatten().flatten();
        kv.flat_map(State::arrays).chain(recurrent)
    }
}

impl Segment for MlxSegment {
    fn segment_size(&self) -> SegmentSize {
        self.segment_size
    }

    fn bytes(&self) -> usize {
        self.arrays().map(Array::nbytes).sum()
    }
}

impl std::fmt::Debug for MlxSegment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MlxSegment")
            .field("segment_size", &self.segment_size)
            .field("kv", &self.kv)
            .finish_non_exhaustive()
    }
}
