//! What comes back for a newcomer.
//!
//! A newcomer asks the pager for what the device does not hold. If something is there,
//! room is reserved before it moves; when it has arrived it stands in the trie like
//! anything else, and the newcomer begins. Meanwhile the newcomer holds its path.

use super::begin::Usable;
use super::eviction::Class;
use super::page::Patience;
use super::trie::{NodeKey, Trie};
use super::{Begin, CacheCore, Effect};
use crate::pager::{self, Piece, Want};
use crate::protocol::{Edit, Extent};
use crate::{CopyId, SequenceId};

/// Tokens that are worth asking for.
const WANTED_TOKENS_MIN: usize = 16;

/// A newcomer that waits for the pager.
#[derive(Debug)]
pub(super) struct Fetching {
    newcomer: Begin,
    /// The node that it holds meanwhile.
    pub(super) end: NodeKey,
    /// Whether it may wait for another sequence afterwards.
    leader: bool,
    /// Tokens that it would begin with now.
    resident_tokens: usize,
    /// Tokens that the trie knows: what comes is cut there.
    seen_tokens: usize,
    /// What comes, and the device bytes that are reserved for each.
    pieces: Vec<(Piece, usize)>,
    /// Of these, what is still reserved.
    reserved_bytes: usize,
    /// What it waits for before they come: that the device has room.
    clears: Option<u64>,
}

/// Where a piece is put: below a node, which ends at this offset of the sequence.
struct Place {
    parent: NodeKey,
    at: usize,
}

impl CacheCore {
    /// Asks the pager for the rest of what a newcomer could begin with. Gives it back
    /// where that is of no use. `leader` says whether it may wait for another sequence
    /// when that is answered.
    pub(super) fn ask_pager(
        &mut self,
        newcomer: Begin,
        usable: &Usable,
        most: usize,
        leader: bool,
        effects: &mut Vec<Effect>,
    ) -> Option<Begin> {
        // What the pager says of a sequence that has left must not be taken for what it says
        // of one that is here again.
        let has_copies = self
            .paging
            .as_ref()
            .is_some_and(|paging| paging.has_copies && !paging.is_ebbing(newcomer.sequence));
        let asks = has_copies && !newcomer.salt.is_private();
        if !asks || usable.tokens + WANTED_TOKENS_MIN > most {
            return Some(newcomer);
        }
        let root = self.trie.root_or_new(&newcomer.salt);
        // What ends within a node follows all above it, also what nobody could resume at.
        let end = match usable.partial {
            Some((node, _)) => self.trie.node(node).parent(),
            None => usable.end.unwrap_or(root),
        };
        self.trie.hold(end);
        let mut resident = self.extents(end);
        if let Some((node, at)) = usable.partial {
            resident.push(self.trie.node(node).extent().cut(at).0);
        }
        let sequence = newcomer.sequence;
        self.tell_pager(pager::Message::Want(Want {
            sequence,
            salt: newcomer.salt.digest(),
            tokens: newcomer.tokens[..most].into(),
            resident,
            seen_tokens: usable.seen,
            token_time: newcomer.token_time,
        }));
        effects.push(Effect::Waits {
            sequence,
            tokens: usable.tokens,
        });
        let fetching = Fetching {
            newcomer,
            end,
            leader,
            resident_tokens: usable.tokens,
            seen_tokens: usable.seen,
            pieces: Vec::new(),
            reserved_bytes: 0,
            clears: None,
        };
        let paging = self.paging.as_mut().expect("there is a pager");
        paging.fetching.insert(sequence, fetching);
        None
    }

    /// Reserves room for what was found, to have it fetched when the device has given up
    /// what it takes the place of.
    pub(super) fn found(
        &mut self,
        sequence: SequenceId,
        pieces: Vec<Piece>,
        effects: &mut Vec<Effect>,
    ) {
        let fetching = self.paging.as_ref();
        let Some(fetching) = fetching.and_then(|paging| paging.fetching.get(&sequence)) else {
            return;
        };
        let mut at = fetching.resident_tokens.max(fetching.seen_tokens);
        let tokens_max = fetching.newcomer.tokens_max;
        let copied_tokens = pieces.last().map_or(0, |piece| piece.end);
        let mut reserved = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let bytes = match at < piece.end {
                true => self.import_bytes(&piece, at),
                // It is there already, and will not be taken in.
                false => self.spec.segment_bytes(piece.extent),
            };
            at = at.max(piece.end);
            reserved.push((piece, bytes));
        }
        let bytes: usize = reserved.iter().map(|(_, bytes)| bytes).sum();
        let tail = self.spec.tail_bytes(tokens_max.saturating_sub(at));
        if !self.make_room(bytes + tail, effects) {
            self.tell_pager(pager::Message::Cancel { sequence });
            self.ebbs(sequence, 0);
            self.begin_again(sequence, Some(copied_tokens), effects);
            return;
        }
        let paging = self.paging.as_mut().expect("there is a pager");
        paging.arriving_bytes += bytes;
        paging.clearings_made += 1;
        let number = paging.clearings_made;
        let fetching = paging.fetching.get_mut(&sequence).expect("it waits");
        fetching.reserved_bytes = bytes;
        fetching.pieces = reserved;
        fetching.clears = Some(number);
        effects.push(Effect::Clears { number });
    }

    /// The device has the room that was made: what it was made for comes.
    pub(super) fn cleared(&mut self, number: u64) {
        let Some(paging) = self.paging.as_mut() else {
            return;
        };
        let mut waiting = paging.fetching.iter_mut();
        // Who waited may have left.
        let found = waiting.find(|(_, fetching)| fetching.clears == Some(number));
        if let Some((sequence, fetching)) = found {
            fetching.clears = None;
            let sequence = *sequence;
            paging.outbox.push(pager::Message::Fetch { sequence });
        }
    }

    /// What was found is there: it becomes part of the trie, and the newcomer begins.
    pub(super) fn arrived(
        &mut self,
        sequence: SequenceId,
        copies: &[CopyId],
        effects: &mut Vec<Effect>,
    ) {
        let paging = self.paging.as_mut().expect("there is a pager");
        let Some(mut fetching) = paging.fetching.remove(&sequence) else {
            // It has left meanwhile.
            let copies = copies.to_vec();
            self.ebbs_again(sequence);
            self.tell_pager(pager::Message::Spare { sequence, copies });
            return;
        };
        for (piece, bytes) in std::mem::take(&mut fetching.pieces) {
            // What comes, now or later, has its room until its turn.
            let place = self.place_for(&fetching.newcomer, &piece, effects);
            let paging = self.paging.as_mut().expect("there is a pager");
            paging.arriving_bytes -= bytes;
            let (copy, whole) = (piece.copy, self.spec.segment_bytes(piece.extent));
            let place = place.filter(|place| self.has_room_for(&piece, place, effects));
            match place {
                Some(place) => {
                    let node = self.take_in(&fetching.newcomer, piece, place, effects);
                    self.trie.move_hold(fetching.end, node);
                    fetching.end = node;
                }
                None => {
                    let copies = vec![copy];
                    self.ebbs(sequence, whole);
                    self.tell_pager(pager::Message::Spare { sequence, copies });
                }
            }
        }
        self.trie.release(fetching.end);
        let patience = Patience {
            leader: fetching.leader,
            pager: false,
            copied_tokens: 0,
        };
        self.begin(fetching.newcomer, patience, effects);
    }

    /// Where a piece goes in the trie, as far as it is not there: a node is cut for it. None
    /// where it has no place, or there is no room to cut.
    fn place_for(
        &mut self,
        newcomer: &Begin,
        piece: &Piece,
        effects: &mut Vec<Effect>,
    ) -> Option<Place> {
        let root = self.trie.root(&newcomer.salt)?;
        let found = self.trie.find(root, &newcomer.tokens[..piece.end]);
        let at = found.tokens_with_partial();
        if at < piece.start || at >= piece.end {
            return None;
        }
        let parent = match found.partial {
            None => found.path.last().copied().unwrap_or(root),
            Some((node, cut)) => self.split(node, cut, effects)?,
        };
        Some(Place { parent, at })
    }

    /// Makes room for a piece, but not where it goes.
    fn has_room_for(&mut self, piece: &Piece, place: &Place, effects: &mut Vec<Effect>) -> bool {
        self.trie.hold(place.parent);
        let fits = self.make_room(self.import_bytes(piece, place.at), effects);
        self.trie.release(place.parent);
        fits
    }

    /// Puts what is not there of a piece in its place; its node.
    fn take_in(
        &mut self,
        newcomer: &Begin,
        piece: Piece,
        Place { parent, at }: Place,
        effects: &mut Vec<Effect>,
    ) -> NodeKey {
        let sealed = self.new_segment(piece.part(at));
        effects.push(Effect::Edit(Edit::Import {
            copy: piece.copy,
            range: at - piece.start..piece.end - piece.start,
            segment: sealed.segment,
        }));
        let (edge, class) = (&newcomer.tokens[at..piece.end], Class::default());
        let node = self
            .trie
            .insert(parent, edge, sealed, newcomer.priority, class);
        self.note_copy(node, piece.copy);
        node
    }

    /// Device bytes that it takes to bring in a piece from offset `at` on: where it is
    /// cut, whole and parts exist at once.
    fn import_bytes(&self, piece: &Piece, at: usize) -> usize {
        let whole = self.spec.segment_bytes(piece.extent);
        let part = piece.part(at.max(piece.start));
        match part.tokens == piece.extent.tokens {
            true => whole,
            // The two halves of the second cut are no more than the first one's half.
            false => 3 * whole,
        }
    }

    /// A newcomer does without the copies of so many of its tokens, if any, or asks the pager
    /// again.
    pub(super) fn begin_again(
        &mut self,
        sequence: SequenceId,
        copied_tokens: Option<usize>,
        effects: &mut Vec<Effect>,
    ) {
        let paging = self.paging.as_mut().expect("there is a pager");
        if let Some(fetching) = paging.fetching.remove(&sequence) {
            paging.arriving_bytes -= fetching.reserved_bytes;
            self.trie.release(fetching.end);
            let patience = Patience {
                leader: fetching.leader,
                pager: copied_tokens.is_none(),
                copied_tokens: copied_tokens.unwrap_or(0),
            };
            self.begin(fetching.newcomer, patience, effects);
        }
    }

    /// A newcomer is over that may wait for the pager.
    pub(super) fn cancel_fetching(&mut self, sequence: SequenceId) {
        let paging = self.paging.as_mut().expect("there is a pager");
        if let Some(fetching) = paging.fetching.remove(&sequence) {
            paging.arriving_bytes -= fetching.reserved_bytes;
            paging.outbox.push(pager::Message::Cancel { sequence });
            // The bytes may be there already.
            self.ebbs(sequence, fetching.reserved_bytes);
            self.trie.release(fetching.end);
        }
    }
}

impl Fetching {
    pub(super) fn newcomer(&self) -> &Begin {
        &self.newcomer
    }

    /// Nobody waits for it any more: the newcomer, which is to begin.
    pub(super) fn give_up(self, trie: &mut Trie) -> Begin {
        trie.release(self.end);
        self.newcomer
    }
}

impl Piece {
    /// What of it begins at offset `at` of the sequence.
    fn part(&self, at: usize) -> Extent {
        let whole = self.extent;
        let until = self.end - self.start;
        let upper = match until < whole.tokens {
            true => whole.cut(until).0,
            false => whole,
        };
        match at - self.start {
            0 => upper,
            from => upper.cut(from).1,
        }
    }
}
