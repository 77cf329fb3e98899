//! Loads copies for a sequence that starts.
//!
//! A request looks up in the pager what the device does not hold. If there are copies, device
//! memory is reserved before they move. Loaded copies become ordinary nodes of the trie, and
//! the slot is opened. Until then the request holds its path.

use super::offload::WaitPolicy;
use super::open_slot::Usable;
use super::trie::{NodeKey, Trie};
use super::{CacheCore, Effect, OpenSlot};
use crate::eviction::Class;
use crate::protocol::pager::{self, CopyRange, Lookup};
use crate::protocol::{Edit, SegmentSize};
use crate::{CopyId, SequenceId};

/// Minimum number of tokens worth a lookup.
const LOOKUP_TOKENS_MIN: usize = 16;

/// A request that waits for the pager.
#[derive(Debug)]
pub(super) struct PendingLoad {
    request: OpenSlot,
    /// The node held meanwhile.
    pub(super) end: NodeKey,
    /// Whether it may wait for a leader afterwards.
    leader: bool,
    /// Tokens that it could start with now.
    resident_tokens: usize,
    /// Tokens that the trie holds; loaded copies are cut there.
    seen_tokens: usize,
    /// The copies to load, each with the device bytes reserved for it.
    copy_ranges: Vec<(CopyRange, usize)>,
    /// The part of those bytes that is still reserved.
    reserved_bytes: usize,
    /// The fence that must be passed before the load: then the device has the memory.
    fence: Option<u64>,
}

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
        // Answers for an earlier request of this sequence must not be taken for answers to
        // this one.
        let has_copies = self.paging.as_ref().is_some_and(|paging| {
            paging.has_copies && !paging.has_pending_release(request.sequence)
        });
        let asks = has_copies && !request.salt.is_private();
        if !asks || usable.tokens + LOOKUP_TOKENS_MIN > most {
            return Some(request);
        }
        let root = self.trie.root_or_new(&request.salt);
        // A partially used node follows all nodes above it, even those at which the model
        // cannot resume.
        let end = match usable.partial {
            Some((node, _)) => self.trie.node(node).parent(),
            None => usable.end.unwrap_or(root),
        };
        self.trie.hold(end);
        let mut resident = self.segment_sizes(end);
        if let Some((node, at)) = usable.partial {
            resident.push(self.trie.node(node).segment_size().cut(at).0);
        }
        let sequence = request.sequence;
        self.send_to_pager(pager::Message::Lookup(Lookup {
            sequence,
            salt: request.salt.digest(),
            tokens: request.tokens[..most].into(),
            resident,
            seen_tokens: usable.seen,
            token_time: request.token_time,
        }));
        effects.push(Effect::Deferred {
            sequence,
            tokens: usable.tokens,
        });
        let loading = PendingLoad {
            request,
            end,
            leader,
            resident_tokens: usable.tokens,
            seen_tokens: usable.seen,
            copy_ranges: Vec::new(),
            reserved_bytes: 0,
            fence: None,
        };
        let paging = self.paging.as_mut().expect("there is a pager");
        paging.loading.insert(sequence, loading);
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
        let loading = self.paging.as_ref();
        let Some(loading) = loading.and_then(|paging| paging.loading.get(&sequence)) else {
            return;
        };
        let mut at = loading.resident_tokens.max(loading.seen_tokens);
        let tokens_max = loading.request.tokens_max;
        let copied_tokens = copy_ranges.last().map_or(0, |copy_range| copy_range.end);
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
        if !self.evict_to_fit(bytes + tail, effects) {
            self.send_to_pager(pager::Message::Cancel { sequence });
            self.add_pending_release(sequence, 0);
            self.retry_open_slot(sequence, Some(copied_tokens), effects);
            return;
        }
        let paging = self.paging.as_mut().expect("there is a pager");
        paging.arriving_bytes += bytes;
        paging.fences_made += 1;
        let number = paging.fences_made;
        let loading = paging
            .loading
            .get_mut(&sequence)
            .expect("the request is waiting");
        loading.reserved_bytes = bytes;
        loading.copy_ranges = reserved;
        loading.fence = Some(number);
        effects.push(Effect::Fence { number });
    }

    /// Starts the load for which the device now has the memory.
    pub(super) fn fence_passed(&mut self, number: u64) {
        let Some(paging) = self.paging.as_mut() else {
            return;
        };
        let mut waiting = paging.loading.iter_mut();
        // The sequence may have ended meanwhile.
        let hit = waiting.find(|(_, loading)| loading.fence == Some(number));
        if let Some((sequence, loading)) = hit {
            loading.fence = None;
            let sequence = *sequence;
            paging.outbox.push(pager::Message::Load { sequence });
        }
    }

    /// Adds the loaded copies to the trie and opens the slot.
    pub(super) fn loaded(
        &mut self,
        sequence: SequenceId,
        copies: &[CopyId],
        effects: &mut Vec<Effect>,
    ) {
        let paging = self.paging.as_mut().expect("there is a pager");
        let Some(mut loading) = paging.loading.remove(&sequence) else {
            // The sequence has ended meanwhile.
            let copies = copies.to_vec();
            self.add_later_release(sequence);
            self.send_to_pager(pager::Message::Discard { sequence, copies });
            return;
        };
        for (copy_range, bytes) in std::mem::take(&mut loading.copy_ranges) {
            // Each copy keeps its reservation until its turn.
            let attach_point = self.attach_point_for(&loading.request, &copy_range, effects);
            let paging = self.paging.as_mut().expect("there is a pager");
            paging.arriving_bytes -= bytes;
            let (copy, whole) = (
                copy_range.copy,
                self.spec.segment_bytes(copy_range.segment_size),
            );
            let attach_point = attach_point
                .filter(|attach_point| self.evict_for_piece(&copy_range, attach_point, effects));
            match attach_point {
                Some(attach_point) => {
                    let node =
                        self.import_piece(&loading.request, copy_range, attach_point, effects);
                    self.trie.move_hold(loading.end, node);
                    loading.end = node;
                }
                None => {
                    let copies = vec![copy];
                    self.add_pending_release(sequence, whole);
                    self.send_to_pager(pager::Message::Discard { sequence, copies });
                }
            }
        }
        self.trie.release(loading.end);
        let wait_policy = WaitPolicy {
            leader: loading.leader,
            pager: false,
            copied_tokens: 0,
        };
        self.open_slot(loading.request, wait_policy, effects);
    }

    /// Finds the place in the trie for the missing part of a copy, and splits a node if
    /// needed. `None` if the copy has no place, or there is no memory for the split.
    fn attach_point_for(
        &mut self,
        request: &OpenSlot,
        copy_range: &CopyRange,
        effects: &mut Vec<Effect>,
    ) -> Option<AttachPoint> {
        let root = self.trie.root(&request.salt)?;
        let hit = self.trie.find(root, &request.tokens[..copy_range.end]);
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
            .insert(parent, edge, sealed, request.priority, class);
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
        let paging = self.paging.as_mut().expect("there is a pager");
        if let Some(loading) = paging.loading.remove(&sequence) {
            paging.arriving_bytes -= loading.reserved_bytes;
            self.trie.release(loading.end);
            let wait_policy = WaitPolicy {
                leader: loading.leader,
                pager: copied_tokens.is_none(),
                copied_tokens: copied_tokens.unwrap_or(0),
            };
            self.open_slot(loading.request, wait_policy, effects);
        }
    }

    /// Cancels the load of a finished sequence, if there is one.
    pub(super) fn cancel_load(&mut self, sequence: SequenceId) {
        let paging = self.paging.as_mut().expect("there is a pager");
        if let Some(loading) = paging.loading.remove(&sequence) {
            paging.arriving_bytes -= loading.reserved_bytes;
            paging.outbox.push(pager::Message::Cancel { sequence });
            // The bytes may have arrived already.
            self.add_pending_release(sequence, loading.reserved_bytes);
            self.trie.release(loading.end);
        }
    }
}

impl PendingLoad {
    pub(super) fn request(&self) -> &OpenSlot {
        &self.request
    }

    /// Gives up the load and returns the request, whose slot is to be opened.
    pub(super) fn give_up(self, trie: &mut Trie) -> OpenSlot {
        trie.release(self.end);
        self.request
    }
}

impl CopyRange {
    /// The size of the part that starts at offset `at` of the sequence.
    fn size_from(&self, at: usize) -> SegmentSize {
        let whole = self.segment_size;
        let until = self.end - self.start;
        let upper = if until < whole.tokens {
            whole.cut(until).0
        } else {
            whole
        };
        match at - self.start {
            0 => upper,
            from => upper.cut(from).1,
        }
    }
}
