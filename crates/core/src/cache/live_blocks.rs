//! Followers of blocks, and the blocks of live prompts.
//!
//! A sequence's prompt is in its tail while it runs, and not in the trie. A request with the same
//! prefix can use it all the same, since the tail is then sealed. While blocks are followed, each
//! slot therefore holds the whole blocks of its prompt that are computed, and the sequence is asked
//! to report each further one. Models that cannot resume after any token cannot use a tail like
//! that: only the trie has blocks of theirs.

use std::ops::Range;

use super::{BlockEvent, CacheCore, Effect, PrefixKey};
use motet_protocol::{CopyId, SequenceId, TokenId};

impl CacheCore {
    /// Starts tracking which blocks are stored and removed. Returns the present blocks as
    /// events; the first event says that there are none.
    pub fn follow_blocks(&mut self) -> Vec<BlockEvent> {
        if self.trie.block_tokens().is_none() {
            self.trie.follow(self.config.block_tokens);
            if let Some(paging) = &mut self.paging {
                paging.follow(true);
                self.copied_blocks.follow(self.config.block_tokens);
            }
            let live: Vec<SequenceId> = self.slots.sequences().collect();
            let mut effects = std::mem::take(&mut self.pending_effects);
            for sequence in live {
                self.hold_blocks_of(sequence, &mut effects);
            }
            self.pending_effects = effects;
            // The list has them.
            self.trie.take_block_events();
        }
        let mut all = self.trie.all_blocks(self.slots.blocks());
        all.extend(self.copied_blocks.all());
        all
    }

    /// Stops tracking which blocks are stored and removed.
    pub fn unfollow_blocks(&mut self) {
        self.trie.unfollow();
        self.slots.forget_blocks();
        self.copied_blocks.unfollow();
        if let Some(paging) = &mut self.paging {
            paging.follow(false);
        }
    }

    /// Returns the block events since the last call, in order; none unless blocks are
    /// followed.
    pub fn take_block_events(&mut self) -> Vec<BlockEvent> {
        let mut events = self.trie.take_block_events();
        events.extend(self.copied_blocks.take_events());
        events
    }

    /// Notes that a copy holds a range of a sequence's first `tokens`.
    pub(super) fn note_copied(
        &mut self,
        copy: CopyId,
        key: &PrefixKey,
        tokens: &[TokenId],
        range: Range<usize>,
    ) {
        if let Some(hashes) = self.trie.block_hashes(key, tokens) {
            self.copied_blocks.note(copy, key, tokens, range, &hashes);
        }
    }

    /// Holds the computed blocks of the sequence that a message concerned, and of those that got
    /// their slots.
    pub(super) fn hold_live_blocks(
        &mut self,
        concerned: Option<SequenceId>,
        effects: &mut Vec<Effect>,
    ) {
        if self.trie.block_tokens().is_none() {
            return;
        }
        let opened = effects.iter().filter_map(|effect| match effect {
            Effect::SlotOpened { sequence, .. } => Some(*sequence),
            _ => None,
        });
        let sequences: Vec<SequenceId> = concerned.into_iter().chain(opened).collect();
        for sequence in sequences {
            self.hold_blocks_of(sequence, effects);
        }
    }

    fn hold_blocks_of(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        if self.spec.resumes_anywhere()
            && let Some(at) = self.slots.hold_blocks(sequence, &mut self.trie)
        {
            effects.push(Effect::ReportAt { sequence, at });
        }
    }
}
