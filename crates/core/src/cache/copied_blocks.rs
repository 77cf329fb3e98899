//! The blocks in copies, for followers.
//!
//! A copy holds the state of a range of a sequence's tokens, which may begin and end within blocks. A
//! block is stored in a tier while the copies there hold all its tokens, and it is known once some copy
//! holds the last of them. A *piece* is the beginning of a block, up to an offset at which some copy
//! begins or ends. It lists the copies that hold its last token, and those that begin at its end. The
//! parts that copies hold of a block are therefore in the lists of the pieces that it starts with.
//!
//! The pager knows copies by digests, and the trie forgets evicted tokens. The blocks of a copy are
//! therefore noted when the pager makes it or finds it for a sequence. All other copies, such as those
//! of an earlier run that no sequence has used, are left out, and so are those past the budget.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Range};
use std::sync::Arc;

use super::trie::{BlockEvent, BlockHash, BlockTier};
use motet_protocol::{CopyId, PrefixKey, TokenId};

/// Bytes of a piece beside its tokens. Most blocks have a node of a tree of their own, and take as much
/// with their entries in two tables.
const PIECE_BYTES: usize = 1024;

/// The tiers of copies, in the order of [`Places`].
const TIERS: [BlockTier; 2] = [BlockTier::Host, BlockTier::Disk];

/// Whether each of [`TIERS`] holds something.
type Places = [bool; 2];

/// The key of a block, and the block before.
type Before = (PrefixKey, Option<BlockHash>);

/// The pieces after one block, by their tokens.
type Pieces = BTreeMap<Arc<[TokenId]>, Piece>;

/// The blocks in copies whose tokens are known.
#[derive(Debug, Default)]
pub(super) struct CopiedBlocks {
    /// Tokens of a block; `None` while no one follows.
    block_tokens: Option<usize>,
    bytes_max: usize,
    bytes: usize,
    copies: BTreeMap<CopyId, KnownCopy>,
    pieces: BTreeMap<Before, Pieces>,
    pending_events: Vec<BlockEvent>,
}

/// A copy whose tokens are known.
#[derive(Debug, Default)]
struct KnownCopy {
    places: Places,
    /// Each with the offset in its block at which the copy begins.
    pieces: Vec<(Before, Arc<[TokenId]>, usize)>,
}

#[derive(Debug, Default)]
struct Piece {
    /// The hash of the block, if it is whole.
    hash: Option<BlockHash>,
    /// Copies that hold its last tokens, each from an offset in the block on. A copy that begins where
    /// the piece ends is listed too, so that the piece is there as long as that copy.
    copies: Vec<(CopyId, usize)>,
    /// The tiers in which the block is stored, as far as followers know.
    stored: Places,
}

impl CopiedBlocks {
    /// No blocks, which may take up to `bytes_max` bytes.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            ..Self::default()
        }
    }

    /// Starts to follow blocks.
    pub(super) fn follow(&mut self, block_tokens: usize) {
        self.block_tokens = Some(block_tokens);
    }

    /// Stops following blocks, and forgets all of them.
    pub(super) fn unfollow(&mut self) {
        *self = Self::new(self.bytes_max);
    }

    /// Handles that the pager is gone, and all copies with it.
    pub(super) fn lose_all(&mut self) {
        for copy in self.copies.keys().copied().collect::<Vec<_>>() {
            self.place(copy, false, false);
        }
    }

    /// The same blocks after the event that all are removed, as copies outlive a device.
    pub(super) fn after_reset(mut self) -> Self {
        self.pending_events = self.all();
        self
    }

    /// Returns the events since the last call, in order.
    pub(super) fn take_events(&mut self) -> Vec<BlockEvent> {
        std::mem::take(&mut self.pending_events)
    }

    /// Notes that a copy holds a range of these tokens, which start a sequence. `hashes` are
    /// those of their whole blocks.
    pub(super) fn note(
        &mut self,
        copy: CopyId,
        key: &PrefixKey,
        tokens: &[TokenId],
        range: Range<usize>,
        hashes: &[BlockHash],
    ) {
        let Some(block_tokens) = self.block_tokens.filter(|_| !key.is_private()) else {
            return;
        };
        let blocks = range.start / block_tokens..range.end.div_ceil(block_tokens);
        let bytes = blocks.len() * PIECE_BYTES + range.len() * size_of::<TokenId>();
        if self.bytes + bytes > self.bytes_max {
            return;
        }
        for block in blocks {
            let start = block * block_tokens;
            let end = range.end.min(start + block_tokens);
            let before = block.checked_sub(1).map(|before| hashes[before]);
            let piece = &tokens[start..end];
            let hash = (piece.len() == block_tokens).then(|| hashes[block]);
            let from = range.start.saturating_sub(start);
            self.add_part(
                copy,
                &(key.at(start + piece.len()), before),
                piece,
                hash,
                from,
            );
        }
        self.update(copy);
    }

    /// Handles where a copy is now. A copy that is nowhere is forgotten.
    pub(super) fn place(&mut self, copy: CopyId, in_host: bool, on_disk: bool) {
        let Some(known) = self.copies.get_mut(&copy) else {
            return;
        };
        let places = [in_host, on_disk];
        if std::mem::replace(&mut known.places, places) != places {
            self.update(copy);
        }
        if places == Places::default() {
            self.forget(copy);
        }
    }

    /// All blocks as events.
    pub(super) fn all(&self) -> Vec<BlockEvent> {
        let mut events = Vec::new();
        for (before, pieces) in &self.pieces {
            for (tokens, piece) in pieces {
                for (tier, _) in TIERS.iter().zip(piece.stored).filter(|(_, stored)| *stored) {
                    let hash = piece.hash.expect("only whole blocks are stored");
                    push_stored(&mut events, *tier, before, hash, tokens);
                }
            }
        }
        events
    }

    /// Adds that a copy holds the last tokens of a piece, from an offset on.
    fn add_part(
        &mut self,
        copy: CopyId,
        before: &Before,
        piece: &[TokenId],
        hash: Option<BlockHash>,
        from: usize,
    ) {
        let ends = (from.max(1)..piece.len()).filter(|end| {
            let pieces = self.pieces.get(before);
            *end == from || pieces.is_some_and(|pieces| pieces.contains_key(&piece[..*end]))
        });
        for end in ends.collect::<Vec<_>>() {
            self.list_all(before, &piece[..end]);
            self.list(copy, before, &piece[..end], from);
        }
        self.list_all(before, piece);
        self.list(copy, before, piece, from);
        let pieces = self.pieces.get_mut(before);
        if let Some(piece) = pieces.and_then(|pieces| pieces.get_mut(piece)) {
            piece.hash = hash;
        }
    }

    /// If a piece is new, lists the copies in it that hold its last tokens and further ones.
    fn list_all(&mut self, before: &Before, piece: &[TokenId]) {
        let Some(pieces) = self.pieces.get(before).filter(|p| !p.contains_key(piece)) else {
            return;
        };
        let longer = starting_with(pieces, piece).flat_map(|(_, longer)| &longer.copies);
        let longer = longer.filter(|(_, from)| *from < piece.len());
        let longer: BTreeSet<(CopyId, usize)> = longer.copied().collect();
        for (copy, from) in longer {
            self.list(copy, before, piece, from);
        }
    }

    /// Lists a copy in a piece, within the budget.
    fn list(&mut self, copy: CopyId, before: &Before, piece: &[TokenId], from: usize) {
        let bytes = self.bytes + piece_bytes(piece);
        let pieces = self.pieces.get(before);
        let known = pieces.and_then(|pieces| pieces.get_key_value(piece));
        let is_listed = known.is_some_and(|(_, piece)| piece.copies.contains(&(copy, from)));
        if is_listed || bytes > self.bytes_max {
            return;
        }
        self.bytes = bytes;
        let key = known.map_or_else(|| piece.into(), |(key, _)| Arc::clone(key));
        let pieces = self.pieces.entry(before.clone()).or_default();
        let piece = pieces.entry(Arc::clone(&key)).or_default();
        piece.copies.push((copy, from));
        let known = self.copies.entry(copy).or_default();
        known.pieces.push((before.clone(), key, from));
    }

    fn forget(&mut self, copy: CopyId) {
        let known = self.copies.remove(&copy);
        for (before, tokens, _) in known.map_or_else(Vec::new, |known| known.pieces) {
            self.bytes -= piece_bytes(&tokens);
            let Some(pieces) = self.pieces.get_mut(&before) else {
                continue;
            };
            if let Some(piece) = pieces.get_mut(&tokens) {
                piece.copies.retain(|(one, _)| *one != copy);
                if piece.copies.is_empty() {
                    pieces.remove(&tokens);
                }
            }
            if pieces.is_empty() {
                self.pieces.remove(&before);
            }
        }
    }

    /// Tells followers which blocks that this copy has pieces of are stored and removed.
    fn update(&mut self, copy: CopyId) {
        let known = self.copies.get(&copy);
        let touched = known.map_or_else(Vec::new, |known| known.pieces.clone());
        for (before, tokens, from) in touched {
            // A copy that begins where the piece ends holds none of its tokens. Thousands may, after
            // one prompt.
            if from == tokens.len() {
                continue;
            }
            let pieces = &self.pieces[&before];
            let blocks = starting_with(pieces, &tokens);
            let changed = blocks.filter_map(|(block, piece)| {
                let (hash, stored) = (piece.hash?, self.places_of(pieces, block));
                (stored != piece.stored).then(|| (Arc::clone(block), hash, stored))
            });
            for (block, hash, stored) in changed.collect::<Vec<_>>() {
                self.change(&before, &block, hash, stored);
            }
        }
    }

    fn change(&mut self, before: &Before, block: &[TokenId], hash: BlockHash, stored: Places) {
        let piece = self.pieces.get_mut(before).and_then(|p| p.get_mut(block));
        let piece = piece.expect("a known block has a piece");
        let was_stored = std::mem::replace(&mut piece.stored, stored);
        let events = &mut self.pending_events;
        for (at, tier) in TIERS.into_iter().enumerate() {
            match (was_stored[at], stored[at]) {
                (false, true) => push_stored(events, tier, before, hash, block),
                (true, false) => push_removed(events, tier, before, hash),
                _ => {}
            }
        }
    }

    /// The tiers whose copies hold all tokens of a block.
    fn places_of(&self, pieces: &Pieces, block: &[TokenId]) -> Places {
        let parts = (1..=block.len()).filter_map(|end| Some((end, pieces.get(&block[..end])?)));
        let parts = parts.flat_map(|(end, piece)| {
            let copies = piece.copies.iter().filter(move |(_, from)| *from < end);
            copies.map(move |(copy, from)| (*from, end, self.copies[copy].places))
        });
        let mut parts: Vec<(usize, usize, Places)> = parts.collect();
        parts.sort();
        [0, 1].map(|tier| {
            let there = parts.iter().filter(|(.., places)| places[tier]);
            let reached = there.fold(0, |reached, (from, end, _)| {
                if *from <= reached {
                    reached.max(*end)
                } else {
                    reached
                }
            });
            reached == block.len()
        })
    }

    /// Panics unless the pieces and the copies agree.
    pub(super) fn check_integrity(&self) {
        let mut bytes = 0;
        for (copy, known) in &self.copies {
            for (before, tokens, _) in &known.pieces {
                let piece = &self.pieces[before][tokens];
                let is_listed = piece.copies.iter().any(|(one, _)| one == copy);
                assert!(is_listed, "a piece lists the copies that hold it");
                bytes += piece_bytes(tokens);
            }
        }
        assert_eq!(bytes, self.bytes, "bytes of pieces add up");
        assert!(bytes <= self.bytes_max, "pieces exceed their budget");
        for pieces in self.pieces.values() {
            assert!(!pieces.is_empty(), "no block has an empty list");
            for (block, piece) in pieces {
                let is_known = |(copy, _): &(CopyId, _)| self.copies.contains_key(copy);
                assert!(piece.copies.iter().all(is_known), "a copy is known");
                let stored = piece.hash.map(|_| self.places_of(pieces, block));
                assert_eq!(
                    piece.stored,
                    stored.unwrap_or_default(),
                    "followers know where each block is"
                );
            }
        }
    }
}

/// The pieces that start with these tokens.
fn starting_with<'a>(
    pieces: &'a Pieces,
    tokens: &'a [TokenId],
) -> impl Iterator<Item = (&'a Arc<[TokenId]>, &'a Piece)> {
    let from = (Bound::Included(tokens), Bound::Unbounded);
    let pieces = pieces.range::<[TokenId], _>(from);
    pieces.take_while(move |(piece, _)| piece.starts_with(tokens))
}

fn piece_bytes(tokens: &[TokenId]) -> usize {
    PIECE_BYTES + size_of_val(tokens)
}

/// Adds that a block is stored, to the event before if it follows the last block of that.
fn push_stored(
    events: &mut Vec<BlockEvent>,
    of: BlockTier,
    (of_key, before): &Before,
    hash: BlockHash,
    block: &[TokenId],
) {
    if let Some(BlockEvent::Stored {
        tier,
        key,
        hashes,
        tokens,
        ..
    }) = events.last_mut()
        && *tier == of
        && key == of_key
        && hashes.last().copied() == *before
    {
        hashes.push(hash);
        tokens.extend(block);
        return;
    }
    events.push(BlockEvent::Stored {
        tier: of,
        key: of_key.clone(),
        parent: *before,
        hashes: vec![hash],
        tokens: block.to_vec(),
    });
}

/// Adds that a block is removed, to the event before if that is alike.
fn push_removed(
    events: &mut Vec<BlockEvent>,
    of: BlockTier,
    (of_key, _): &Before,
    hash: BlockHash,
) {
    if let Some(BlockEvent::Removed { tier, key, hashes }) = events.last_mut()
        && *tier == of
        && key == of_key
    {
        hashes.push(hash);
        return;
    }
    events.push(BlockEvent::Removed {
        tier: of,
        key: of_key.clone(),
        hashes: vec![hash],
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABOVE: CopyId = CopyId(1);
    const BELOW: CopyId = CopyId(2);
    const TEXT: [TokenId; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

    /// The blocks of four tokens that these copies of [`TEXT`] hold parts of.
    fn noted(bytes_max: usize, copies: &[(CopyId, Range<usize>)]) -> CopiedBlocks {
        let mut blocks = CopiedBlocks::new(bytes_max);
        blocks.follow(4);
        for (copy, range) in copies {
            let tokens = &TEXT[..range.end];
            let hashes: Vec<_> = (0..range.end as u64 / 4).map(BlockHash).collect();
            blocks.note(*copy, &PrefixKey::default(), tokens, range.clone(), &hashes);
        }
        blocks
    }

    /// The numbers of the blocks that the next events store in a tier and remove from it.
    fn changes(blocks: &mut CopiedBlocks, of: BlockTier) -> [Vec<u64>; 2] {
        blocks.check_integrity();
        let mut changes = [Vec::new(), Vec::new()];
        for event in blocks.take_events() {
            let (at, tier, hashes) = match event {
                BlockEvent::Stored { tier, hashes, .. } => (0, tier, hashes),
                BlockEvent::Removed { tier, hashes, .. } => (1, tier, hashes),
                BlockEvent::AllRemoved => unreachable!("copies are removed one by one"),
            };
            if tier == of {
                changes[at].extend(hashes.iter().map(|hash| hash.0));
            }
        }
        changes
    }

    #[test]
    fn block_is_stored_where_copies_hold_all_of_it() {
        let all = [(BELOW, 6..8), (ABOVE, 0..6)];
        for copies in [all.clone(), [all[1].clone(), all[0].clone()]] {
            let mut blocks = noted(1 << 20, &copies);
            blocks.place(BELOW, true, true);
            assert_eq!(changes(&mut blocks, BlockTier::Host), [vec![], vec![]]);
            blocks.place(ABOVE, true, false);
            assert_eq!(changes(&mut blocks, BlockTier::Host), [vec![0, 1], vec![]]);
            blocks.place(ABOVE, false, true);
            assert_eq!(blocks.all().len(), 1, "consecutive blocks are one event");
            assert_eq!(changes(&mut blocks, BlockTier::Host), [vec![], vec![0, 1]]);
            blocks.place(BELOW, false, false);
            assert_eq!(changes(&mut blocks, BlockTier::Disk), [vec![], vec![1]]);
            blocks.lose_all();
            assert_eq!(changes(&mut blocks, BlockTier::Disk), [vec![], vec![0]]);
            assert_eq!((blocks.bytes, blocks.pieces.len()), (0, 0));
        }
    }

    #[test]
    fn copies_past_the_budget_are_left_out() {
        let mut blocks = noted(2 * PIECE_BYTES, &[(ABOVE, 0..4), (BELOW, 4..8)]);
        blocks.place(ABOVE, true, false);
        blocks.place(BELOW, true, false);
        assert_eq!(changes(&mut blocks, BlockTier::Host), [vec![0], vec![]]);
    }
}
