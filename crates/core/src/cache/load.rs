//! Loads copies for a sequence that starts.
//!
//! A request looks up in the pager what the device does not hold. If there are copies, device
//! memory is reserved before they move. Loaded copies become ordinary nodes of the trie, and
//! the slot is opened. Until then the request holds its path.

use super::open_slot::{Usable, WaitPolicy};
use super::paging::PendingLookup;
use super::trie::NodeKey;
use super::{CacheCore, Effect, OpenSlot};
use crate::eviction::Class;
use motet_protocol::Edit;
use motet_protocol::pager::{CopyRange, Lookup};
use motet_protocol::{CopyId, SequenceId};

/// Minimum number of tokens worth a lookup.
const LOOKUP_TOKENS_MIN: usize = 16;

/// The place of a loaded copy: a parent node, which ends at this offset of the sequence.
struct AttachPoint {
    parent: NodeKey,
    at: usize,
}

impl CacheCore {
    /// Asks the pager for the rest of the usable prefix. Returns the request unchanged if a
    /// lookup is of no use. `leader` says whether the request may wait for a leader after the
    /// answer.
    pub(super) fn send_lookup(
        &mut self,
        request: OpenSlot,
        usable: &Usable,
        most: usize,
        leader: bool,
        effects: &mut Vec<Effect>,
    ) -> Option<OpenSlot> {
        let paging = self.paging.as_ref();
        let has_copies = paging.is_some_and(|paging| paging.can_look_up(request.sequence));
        let asks = has_copies && !request.key.is_private();
        if !asks || usable.tokens + LOOKUP_TOKENS_MIN > most {
            return Some(request);
        }
        let root = self.trie.root_or_new(&request.key.salt);
        // Loaded state follows all nodes above it, even those at which the model cannot resume.
        let end = match usable.partial {
            Some((node, _)) => self.trie.node(node).parent(),
            None => usable.known_end.unwrap_or(root),
        };
        self.trie.hold(end);
        let mut resident = self.trie.segment_sizes(end);
        if let Some((node, at)) = usable.partial {
            resident.push(self.trie.node(node).segment_size().cut(at).0);
        }
        let sequence = request.sequence;
        let lookup = Lookup {
            sequence,
            key: request.key.digest(),
            tokens: request.tokens[..most].into(),
            resident,
            seen_tokens: usable.seen,
            token_time: request.token_time,
        };
        effects.push(Effect::Deferred {
            sequence,
            tokens: usable.tokens,
        });
        let pending = PendingLookup {
            request,
            end,
            leader,
            resident_tokens: usable.tokens,
            seen_tokens: usable.seen,
        };
        self.paging_mut().look_up(lookup, pending);
        None
    }

    /// Reserves memory for the copies that were found. They are loaded once the device has
    /// released the memory.
    pub(super) fn hit(
        &mut self,
        sequence: SequenceId,
        copy_ranges: Vec<CopyRange>,
        effects: &mut Vec<Effect>,
    ) {
        let paging = self.paging.as_ref();
        let Some(lookup) = paging.and_then(|paging| paging.pending_lookup(sequence)) else {
            return;
        };
        let (key, tokens) = (&lookup.request.key, &lookup.request.tokens);
        let copied_tokens = copy_ranges.last().map_or(0, |copy_range| copy_range.end);
        if let Some(hashes) = self.trie.block_hashes(key, &tokens[..copied_tokens]) {
            for copy_range in &copy_ranges {
                let range = copy_range.start..copy_range.end;
                self.copied_blocks
                    .note(copy_range.copy, key, tokens, range, &hashes);
            }
        }
        let mut at = lookup.resident_tokens.max(lookup.seen_tokens);
        let tokens_max = lookup.request.tokens_max;
        let mut reserved = Vec::with_capacity(copy_ranges.len());
        for copy_range in copy_ranges {
            let bytes = if at < copy_range.end {
                self.import_bytes(&copy_range, at)
            } else {
                // It is on the device already and will not be imported.
                self.spec.segment_bytes(copy_range.segment_size)
            };
            at = at.max(copy_range.end);
            reserved.push((copy_range, bytes));
        }
        let bytes: usize = reserved.iter().map(|(_, bytes)| bytes).sum();
        let tail = self.spec.tail_bytes(tokens_max.saturating_sub(at));
        let fits = self.evict_to_fit(bytes + tail, effects);
        if fits {
            let number = self.paging_mut().accept_hit(sequence, reserved);
            effects.push(Effect::Fence { number });
        } else {
            self.paging_mut().reject_hit(sequence);
            self.retry_open_slot(sequence, Some(copied_tokens), effects);
        }
    }

    /// Adds the loaded copies to the trie and opens the slot.
    pub(super) fn loaded(
        &mut self,
        sequence: SequenceId,
        copies: &[CopyId],
        effects: &mut Vec<Effect>,
    ) {
        let loaded = self.paging_mut().take_loaded(sequence, copies);
        let Some((mut lookup, copy_ranges)) = loaded else {
            return;
        };
        for (copy_range, bytes) in copy_ranges {
            // Each copy keeps its reservation until its turn.
            let attach_point = self.attach_point_for(&lookup.request, &copy_range, effects);
            self.paging_mut().release_loaded(bytes);
            let attach_point = attach_point
                .filter(|attach_point| self.evict_for_piece(&copy_range, attach_point, effects));
            match attach_point {
                Some(attach_point) => {
                    let node =
                        self.import_piece(&lookup.request, copy_range, attach_point, effects);
                    self.trie.move_hold(lookup.end, node);
                    lookup.end = node;
                }
                None => {
                    let bytes = self.spec.segment_bytes(copy_range.segment_size);
                    self.paging_mut().discard(sequence, copy_range.copy, bytes);
                }
            }
        }
        self.trie.release(lookup.end);
        let wait_policy = WaitPolicy {
            leader: lookup.leader,
            pager: false,
            copied_tokens: 0,
        };
        self.open_slot(lookup.request, wait_policy, effects);
    }

    /// Finds the place in the trie for the missing part of a copy, and splits a node if
    /// needed. `None` if the copy has no place, or there is no memory for the split.
    fn attach_point_for(
        &mut self,
        request: &OpenSlot,
        copy_range: &CopyRange,
        effects: &mut Vec<Effect>,
    ) -> Option<AttachPoint> {
        let root = self.trie.root(&request.key.salt)?;
        let hit = self
            .trie
            .find(root, &request.key, &request.tokens[..copy_range.end]);
        let at = hit.tokens_with_partial();
        if at < copy_range.start || at >= copy_range.end {
            return None;
        }
        let parent = match hit.partial {
            None => hit.path.last().copied().unwrap_or(root),
            Some((node, cut)) => self.split(node, cut, effects)?,
        };
        Some(AttachPoint { parent, at })
    }

    /// Evicts to fit a copy, but not the node below which it is attached.
    fn evict_for_piece(
        &mut self,
        copy_range: &CopyRange,
        attach_point: &AttachPoint,
        effects: &mut Vec<Effect>,
    ) -> bool {
        self.trie.hold(attach_point.parent);
        let fits = self.evict_to_fit(self.import_bytes(copy_range, attach_point.at), effects);
        self.trie.release(attach_point.parent);
        fits
    }

    /// Imports the missing part of a copy and attaches it. Returns its node.
    fn import_piece(
        &mut self,
        request: &OpenSlot,
        copy_range: CopyRange,
        AttachPoint { parent, at }: AttachPoint,
        effects: &mut Vec<Effect>,
    ) -> NodeKey {
        let sealed = self.new_segment(copy_range.size_from(at));
        effects.push(Effect::Edit(Edit::Import {
            copy: copy_range.copy,
            range: at - copy_range.start..copy_range.end - copy_range.start,
            segment: sealed.segment,
        }));
        let (edge, class) = (&request.tokens[at..copy_range.end], Class::default());
        let node = self
            .trie
            .insert(parent, &request.key, edge, sealed, request.retention, class);
        self.note_copy(node, copy_range.copy);
        node
    }

    /// Device bytes needed to import a copy from offset `at` on. If it is cut, the whole and
    /// its parts exist at once.
    fn import_bytes(&self, copy_range: &CopyRange, at: usize) -> usize {
        let whole = self.spec.segment_bytes(copy_range.segment_size);
        let size_from = copy_range.size_from(at.max(copy_range.start));
        if size_from.tokens == copy_range.segment_size.tokens {
            whole
        } else {
            // The two halves of the second cut are no larger than the half that the first cut
            // left.
            3 * whole
        }
    }

    /// Opens the slot without the copies of `copied_tokens` tokens, or asks the pager again if
    /// `None`.
    pub(super) fn retry_open_slot(
        &mut self,
        sequence: SequenceId,
        copied_tokens: Option<usize>,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(lookup) = self.paging_mut().give_up_load(sequence) {
            self.trie.release(lookup.end);
            let wait_policy = WaitPolicy {
                leader: lookup.leader,
                pager: copied_tokens.is_none(),
                copied_tokens: copied_tokens.unwrap_or(0),
            };
            self.open_slot(lookup.request, wait_policy, effects);
        }
    }
}
