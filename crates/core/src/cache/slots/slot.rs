//! One live sequence's state on the device.

use std::sync::Arc;

use super::grant::Grant;
use super::restore_points::RestorePoints;
use crate::cache::restore_policy::Point;
use crate::cache::trie::{BlockHash, LiveBlocks, NodeKey, Trie};
use crate::cache::{OpenSlot, PrefixKey};
use crate::eviction::{Class, SequenceMark};
use motet_protocol::{CopyId, SlotId, TokenId};
use motet_protocol::{ModelSpec, SegmentSize};
use motet_sync::injected::{self, Bug};

/// A live sequence's state on the device.
#[derive(Debug)]
pub(in crate::cache) struct CacheSlot {
    id: SlotId,
    key: PrefixKey,
    /// The tokens that the cache knows: the prompt, and output only if a message reported it.
    tokens: Arc<[TokenId]>,
    /// Tokens whose state the slot holds, as far as the cache knows.
    computed: usize,
    /// Leading tokens whose state is exactly that of the tokens. A shift reduces it. Later
    /// tokens are never published.
    exact_tokens: usize,
    path: SlotPath,
    grant: Grant,
    rank: SegmentRank,
    /// The name by which the eviction policy knows the sequence.
    sequence_mark: SequenceMark,
    restore_points: RestorePoints,
    backups: SlotBackups,
    blocks: SlotBlocks,
    /// Whether the device has closed the slot and kept its last segment.
    is_sealed_in_place: bool,
}

/// The values that a new slot starts with.
#[derive(Debug)]
pub(in crate::cache) struct SlotStart {
    /// The request that the slot is opened for.
    pub(in crate::cache) request: OpenSlot,
    /// The end of its path, already held.
    pub(in crate::cache) end: NodeKey,
    /// Tokens on that path.
    pub(in crate::cache) path_tokens: usize,
    /// The grant, with the reservation that fits.
    pub(in crate::cache) grant: Grant,
    /// The offsets at which it is to be sealed without another sequence waiting.
    pub(in crate::cache) restore_points: RestorePoints,
    /// The class that the eviction policy assigned.
    pub(in crate::cache) class: Class,
    /// The name by which the eviction policy knows the sequence.
    pub(in crate::cache) sequence_mark: SequenceMark,
}

/// The sealed part of a slot.
#[derive(Clone, Copy, Debug)]
struct SlotPath {
    /// The node at which the path ends. The slot holds it.
    end: NodeKey,
    tokens: usize,
    /// Whether the path contains segments that are not in the trie.
    has_own_segments: bool,
    /// Bytes of those segments.
    own_bytes: usize,
}

/// How the segments of a slot are ranked for eviction.
#[derive(Clone, Copy, Debug)]
pub(in crate::cache) struct SegmentRank {
    /// Retention.
    pub(in crate::cache) retention: u8,
    /// The class that the eviction policy assigned.
    pub(in crate::cache) class: Class,
}

/// The part of a slot that is in copies for the case that the device is lost.
#[derive(Debug)]
struct SlotBackups {
    /// Leading tokens that are in copies, or are being copied.
    tokens: usize,
    /// Copies made of the slot's tail.
    copies: Vec<CopyId>,
}

/// The blocks of a slot that followers know of.
#[derive(Debug, Default)]
struct SlotBlocks {
    /// Their hashes, from the start of the sequence. The slot holds them.
    hashes: Vec<BlockHash>,
    /// The number of tokens at which the sequence was last asked to report; 0 if it was not.
    report_at: usize,
}

impl CacheSlot {
    pub(super) fn new(id: SlotId, start: SlotStart) -> Self {
        let SlotStart {
            request,
            end,
            path_tokens,
            grant,
            restore_points,
            class,
            sequence_mark,
        } = start;
        Self {
            id,
            key: request.key,
            tokens: request.tokens,
            computed: path_tokens,
            exact_tokens: usize::MAX,
            path: SlotPath {
                end,
                tokens: path_tokens,
                has_own_segments: false,
                own_bytes: 0,
            },
            grant,
            rank: SegmentRank {
                retention: request.retention,
                class,
            },
            sequence_mark,
            restore_points,
            backups: SlotBackups {
                tokens: path_tokens,
                copies: Vec::new(),
            },
            blocks: SlotBlocks::default(),
            is_sealed_in_place: false,
        }
    }

    pub(in crate::cache) fn id(&self) -> SlotId {
        self.id
    }

    pub(in crate::cache) fn key(&self) -> &PrefixKey {
        &self.key
    }

    /// The end of its path, which it holds.
    pub(in crate::cache) fn end(&self) -> NodeKey {
        self.path.end
    }

    pub(in crate::cache) fn path_tokens(&self) -> usize {
        self.path.tokens
    }

    pub(in crate::cache) fn rank(&self) -> SegmentRank {
        self.rank
    }

    pub(in crate::cache) fn restore_points(&self) -> &RestorePoints {
        &self.restore_points
    }

    /// The tokens that the cache knows.
    pub(super) fn tokens(&self) -> &Arc<[TokenId]> {
        &self.tokens
    }

    /// Bytes of the segments on its path that are not in the trie.
    pub(super) fn own_bytes(&self) -> usize {
        self.path.own_bytes
    }

    /// Whether the slot has computed the token at offset `at`, as far as the cache knows.
    pub(super) fn has_reached(&self, at: usize) -> bool {
        at <= self.computed
    }

    /// Releases the path and the blocks of a slot that is closed.
    pub(super) fn leave(&mut self, trie: &mut Trie) {
        self.release_blocks(0, trie);
        trie.leave(self.sequence_mark, self.path.end);
    }

    /// Holds the whole blocks of the known, exact and computed tokens, unless their salt is private.
    /// Returns the number of tokens at which the sequence is to report next, unless there are none
    /// or it was asked already.
    pub(super) fn hold_blocks(&mut self, trie: &mut Trie) -> Option<usize> {
        let block_tokens = trie.block_tokens().filter(|_| !self.key.is_private())?;
        let known = self.tokens.len().min(self.exact_tokens);
        // Blocks behind an adapter's beginning are held when they are in the trie.
        let known = known.min(self.key.tokens_alike(0));
        let computed = known.min(self.computed);
        trie.hold_blocks(
            self.path.end,
            &self.key.at(1),
            &self.tokens[..computed],
            &mut self.blocks.hashes,
        );
        let next = (computed / block_tokens + 1) * block_tokens;
        let asks = next <= known && self.blocks.report_at != next;
        asks.then(|| {
            self.blocks.report_at = next;
            next
        })
    }

    /// Releases the blocks that end after offset `start`.
    fn release_blocks(&mut self, start: usize, trie: &mut Trie) {
        self.blocks.report_at = 0;
        if let Some(block_tokens) = trie.block_tokens() {
            let retained = self.blocks.hashes.len().min(start / block_tokens);
            let released = self.blocks.hashes.split_off(retained);
            trie.release_blocks(&self.key.at(1), released);
        }
    }

    /// The blocks that it holds.
    pub(super) fn blocks(&self) -> LiveBlocks<'_> {
        LiveBlocks {
            key: self.key.at(1),
            hashes: &self.blocks.hashes,
            tokens: &self.tokens,
        }
    }

    /// Forgets its blocks, which are not followed any more.
    pub(super) fn forget_blocks(&mut self) {
        self.blocks = SlotBlocks::default();
    }

    /// Whether the device has closed the slot and kept its last segment.
    pub(in crate::cache) fn is_sealed_in_place(&self) -> bool {
        self.is_sealed_in_place
    }

    /// Records that the device closes the slot, except for one segment.
    pub(in crate::cache) fn seal_in_place(&mut self) {
        self.is_sealed_in_place = true;
    }

    /// The tokens of the tail before offset `at` of the sequence, if all of them are known,
    /// exact and past the path.
    pub(in crate::cache) fn known_tail(&self, at: usize) -> Option<&[TokenId]> {
        let most = self.tokens.len().min(self.exact_tokens);
        (self.path.tokens < at && at <= most).then(|| &self.tokens[self.path.tokens..at])
    }

    /// The tokens between the path's end and `at` whose state is exact. `generated` are the
    /// tokens after those that the slot knows.
    pub(in crate::cache) fn exact_tail(&self, generated: &[TokenId], at: usize) -> Vec<TokenId> {
        let known = self.tokens.iter().chain(generated).copied();
        let exact = known.take(at.min(self.exact_tokens));
        exact.skip(self.path.tokens).collect()
    }

    /// The offset up to which this slot can compute for a request that shares `shared` tokens,
    /// with its present grant. Then the wait ends, even if the grant is never extended.
    pub(super) fn leads_to(&self, shared: usize) -> usize {
        let granted = self.grant.tokens_max();
        shared.min(self.exact_tokens).min(granted)
    }

    /// Whether the slot can be taken back to the end of a segment of its path.
    pub(in crate::cache) fn can_go_back(&self) -> bool {
        !self.path.has_own_segments
    }

    /// Records that the tail gets sealed segments that no other slot can use.
    pub(in crate::cache) fn add_own_segment(&mut self) {
        self.path.has_own_segments = true;
    }

    /// The bytes needed to extend the grant to `tokens_max` tokens, beyond those reserved.
    /// `None` if that many are granted already.
    pub(in crate::cache) fn bytes_to_extend(
        &self,
        tokens_max: usize,
        trie: &Trie,
        spec: &ModelSpec,
    ) -> Option<usize> {
        let more = self.grant.extended(tokens_max)?;
        Some(more.missing_bytes(self.path.end, trie, spec))
    }

    /// The bytes that the slot lacks if its path ends at `end`.
    pub(in crate::cache) fn bytes_to_end_at(
        &self,
        end: NodeKey,
        trie: &Trie,
        spec: &ModelSpec,
    ) -> usize {
        self.grant.missing_bytes(end, trie, spec)
    }

    /// The bytes needed to seal the first `tokens` tokens of the tail as a whole. Their memory
    /// becomes the segment's, and the slot needs memory for another tail.
    pub(in crate::cache) fn bytes_to_seal_whole(&self, tokens: usize, spec: &ModelSpec) -> usize {
        let sealed = spec.segment_bytes(SegmentSize::whole(tokens));
        let tail = self.grant.tail_tokens_after(self.path.tokens + tokens);
        (sealed + spec.tail_bytes(tail)).saturating_sub(self.grant.reserved_bytes())
    }

    /// Tokens that the slot may hold.
    pub(in crate::cache) fn granted_tokens(&self) -> usize {
        self.grant.tokens_max()
    }

    /// Bytes that the tail may grow to.
    pub(in crate::cache) fn reserved_bytes(&self) -> usize {
        self.grant.reserved_bytes()
    }

    /// Records how many tokens are computed.
    pub(super) fn set_computed(&mut self, computed: usize) {
        self.computed = computed;
    }

    /// The restore points that are reached with `computed` tokens. Each is returned once.
    pub(super) fn take_reached_points(&mut self, computed: usize) -> Vec<Point> {
        self.restore_points.take_reached(computed)
    }

    /// Moves the end of the path, and reserves what the tail after it needs.
    pub(super) fn move_end(
        &mut self,
        end: NodeKey,
        more_own_bytes: usize,
        trie: &mut Trie,
        spec: &ModelSpec,
    ) {
        trie.move_hold(self.path.end, end);
        self.path.end = end;
        self.path.tokens = trie.node(end).end();
        self.path.own_bytes += more_own_bytes;
        self.grant.reserve(end, trie, spec);
    }

    /// Extends the grant, and reserves what the tail needs then.
    pub(super) fn extend_grant(&mut self, tokens_max: usize, trie: &Trie, spec: &ModelSpec) {
        self.grant.extend(tokens_max);
        if !injected::is_injected(Bug::DoubleGrant) {
            self.grant.reserve(self.path.end, trie, spec);
        }
    }

    /// Reduces the grant to nothing, as the slot will not grow any more.
    pub(super) fn end_grant(&mut self, trie: &Trie, spec: &ModelSpec) {
        self.grant.end();
        self.grant.reserve(self.path.end, trie, spec);
    }

    /// Ends the known tokens before offset `start`. Later tokens are not needed, since shifted
    /// state is never published.
    pub(super) fn forget_from(
        &mut self,
        start: usize,
        generated: &[TokenId],
        shifts: bool,
        trie: &mut Trie,
    ) {
        self.release_blocks(start, trie);
        let known = self.extended(generated);
        let retained = known.len().min(start);
        self.tokens = known[..retained].into();
        self.restore_points.forget_after(start);
        if shifts {
            self.exact_tokens = self.exact_tokens.min(start);
        }
    }

    /// Continues as another sequence with these tokens, of which `computed` have their state
    /// in the slot.
    pub(super) fn continue_as(&mut self, tokens: Arc<[TokenId]>, computed: usize, retention: u8) {
        self.tokens = tokens;
        self.computed = computed;
        self.blocks.report_at = 0;
        self.rank.retention = retention;
        self.restore_points = RestorePoints::default();
    }

    /// The exact computed tokens, and the offset from which they are in no copy. They count as
    /// copied from now on. `None` if all of them are in copies.
    pub(in crate::cache) fn take_not_backed_up(
        &mut self,
        computed: usize,
        generated: &[TokenId],
    ) -> Option<(Arc<[TokenId]>, usize)> {
        self.computed = self.computed.max(computed);
        let known = self.tokens.iter().chain(generated).copied();
        let tokens: Arc<[TokenId]> = known.take(computed.min(self.exact_tokens)).collect();
        let from = self.backups.tokens.max(self.path.tokens);
        if tokens.len() <= from {
            return None;
        }
        self.backups.tokens = tokens.len();
        Some((tokens, from))
    }

    /// Records that the tokens from offset `from` on are in no copy.
    pub(in crate::cache) fn not_backed_up(&mut self, from: usize) {
        self.backups.tokens = self.backups.tokens.min(from);
    }

    /// Records a copy of a part of the tail.
    pub(in crate::cache) fn add_backup(&mut self, copy: CopyId) {
        self.backups.copies.push(copy);
    }

    /// The copies of the tail of a slot that was closed.
    pub(in crate::cache) fn take_backups(&mut self) -> Vec<CopyId> {
        std::mem::take(&mut self.backups.copies)
    }

    /// The tokens that the slot knows, followed by `generated`.
    fn extended(&self, generated: &[TokenId]) -> Arc<[TokenId]> {
        match generated {
            [] => Arc::clone(&self.tokens),
            _ => self.tokens.iter().chain(generated).copied().collect(),
        }
    }

    /// Panics unless the path spells the slot's tokens and lies within its grant.
    pub(super) fn check_integrity(&self, trie: &Trie, spec: &ModelSpec) {
        let mut at = 0;
        for key in trie.path(self.path.end) {
            let edge = trie.node(key).edge();
            // Shared output tokens may be known to the scheduler only.
            let known = self.tokens.get(at..).unwrap_or_default();
            let known = &known[..known.len().min(edge.len())];
            assert!(edge.starts_with(known), "the path spells the tokens");
            at += edge.len();
        }
        assert_eq!(
            at, self.path.tokens,
            "the length of a path is the sum of its edges"
        );
        assert!(at <= self.exact_tokens, "sealed state is exact");
        assert!(
            at.max(self.computed) <= self.grant.tokens_max(),
            "{} stays within its grant",
            self.id
        );
        let root = trie.root(&self.key.salt);
        assert_eq!(trie.root_above(self.path.end), root, "salts never mix");
        self.grant.check_integrity(self.path.end, trie, spec);
        self.restore_points.check_integrity();
    }
}
