//! Pins, clearing, merging.

use std::collections::BTreeSet;
use std::time::Duration;

use super::open_slot::Usable;
use super::trie::NodeKey;
use super::{CacheCore, CacheError, Effect, Pin, Pinned, Salt};
use crate::PinId;
use crate::protocol::pager;
use crate::protocol::{Edit, SegmentSize};

impl CacheCore {
    /// Holds a cached prefix until it is unpinned or expires.
    pub(super) fn pin(
        &mut self,
        now: Duration,
        pin: Pin,
        effects: &mut Vec<Effect>,
    ) -> Result<(), CacheError> {
        if pin.tokens.is_empty() {
            return Err(CacheError::NoTokens);
        }
        if self.pins.contains_key(&pin.pin) {
            return Err(CacheError::PinnedTwice(pin.pin));
        }
        let bytes_max = self.config.pinned_bytes_max();
        let fits = |bytes: usize| {
            if bytes <= bytes_max {
                Ok(())
            } else {
                Err(CacheError::PinTooLarge { bytes, bytes_max })
            }
        };
        fits(
            self.spec
                .segment_bytes(SegmentSize::whole(pin.tokens.len())),
        )?;
        let usable = self.usable(&pin.salt, &pin.tokens);
        if usable.tokens == pin.tokens.len() {
            fits(self.pinned_bytes(&usable))?;
        }
        let end = self.hold_whole(&usable, pin.tokens.len(), effects)?;
        let pinned = Pinned {
            salt: pin.salt,
            tokens: pin.tokens,
            expires_at: pin.time_to_live.map(|ttl| now.saturating_add(ttl)),
            end: Some(end),
        };
        let expiries = self.next_expiry.into_iter().chain(pinned.expires_at);
        self.next_expiry = expiries.min();
        self.pins.insert(pin.pin, pinned);
        Ok(())
    }

    pub(super) fn unpin(&mut self, pin: PinId) -> Result<(), CacheError> {
        let pinned = self.pins.remove(&pin).ok_or(CacheError::UnknownPin(pin))?;
        if let Some(end) = pinned.end {
            self.trie.release(end);
        }
        Ok(())
    }

    pub(super) fn expire_pins(&mut self, now: Duration) {
        if self.next_expiry.is_none_or(|at| now < at) {
            return;
        }
        let is_expired = |pinned: &Pinned| pinned.expires_at.is_some_and(|at| at <= now);
        let all = self.pins.iter().filter(|(_, pinned)| is_expired(pinned));
        let all: Vec<PinId> = all.map(|(pin, _)| *pin).collect();
        for pin in all {
            self.unpin(pin).expect("the pin was found");
        }
        self.next_expiry = self.pins.values().filter_map(|p| p.expires_at).min();
    }

    /// Holds the prefixes again that were lost with the device, if they have been recomputed.
    pub(super) fn hold_lost_pins(&mut self, effects: &mut Vec<Effect>) {
        let lost: Vec<PinId> = self
            .pins
            .iter()
            .filter(|(_, pinned)| pinned.end.is_none())
            .map(|(pin, _)| *pin)
            .collect();
        for pin in lost {
            let pinned = &self.pins[&pin];
            let (usable, tokens) = (
                self.usable(&pinned.salt, &pinned.tokens),
                pinned.tokens.len(),
            );
            let end = self.hold_whole(&usable, tokens, effects).ok();
            self.pins.get_mut(&pin).expect("the pin is there").end = end;
        }
    }

    /// Holds the path of the first `tokens` tokens, if all are cached.
    fn hold_whole(
        &mut self,
        usable: &Usable,
        tokens: usize,
        effects: &mut Vec<Effect>,
    ) -> Result<NodeKey, CacheError> {
        let not_cached = CacheError::NotCached {
            tokens,
            cached_tokens: usable.tokens,
        };
        if usable.tokens < tokens {
            return Err(not_cached);
        }
        let end = match usable.partial {
            None => usable.end.ok_or(not_cached)?,
            Some((node, at)) => {
                let bytes = self.trie.node(node).bytes();
                let upper = self.split(node, at, effects);
                upper.ok_or(CacheError::OutOfMemory { bytes })?
            }
        };
        self.trie.hold(end);
        Ok(end)
    }

    /// Bytes that all pins hold, together with a new pin on the usable prefix.
    fn pinned_bytes(&self, usable: &Usable) -> usize {
        let ends = self.pins.values().filter_map(|pinned| pinned.end);
        let parent = usable
            .partial
            .map(|(node, _)| self.trie.node(node).parent());
        let nodes: BTreeSet<NodeKey> = ends
            .chain(parent.or(usable.end))
            .flat_map(|end| self.trie.path(end))
            .collect();
        // The upper part of a node that a pin already holds is counted already.
        let cut = usable.partial.filter(|(node, _)| !nodes.contains(node));
        let upper = cut.map_or(0, |(node, at)| {
            let upper = self.trie.node(node).segment_size().cut(at).0;
            self.spec.segment_bytes(upper)
        });
        let held = nodes.iter().map(|node| self.trie.node(*node).bytes());
        held.sum::<usize>() + upper
    }

    /// Evicts all nodes that are not held, of one salt or of all.
    pub(super) fn clear(&mut self, salt: Option<&Salt>, effects: &mut Vec<Effect>) {
        let digest = salt.map(Salt::digest);
        self.send_to_pager(pager::Message::Clear { salt: digest });
        self.cancel_exports(salt);
        let roots: Vec<_> = self
            .trie
            .roots()
            .filter(|(of, _)| salt.is_none_or(|salt| salt == *of))
            .map(|(_, root)| root)
            .collect();
        for root in roots {
            for gone in self.trie.clear(root) {
                self.gone(gone, effects);
            }
        }
    }

    /// Merges two small nodes that an eviction has left in a row, so that paths have few
    /// segments. Merges only one pair per call, since each costs the device a copy.
    pub(super) fn merge_one(&mut self, effects: &mut Vec<Effect>) {
        while let Some(upper) = self.mergeable.pop_front() {
            if !self.trie.contains(upper) {
                continue;
            }
            let Some(lower) = self.trie.merges(upper) else {
                continue;
            };
            let above = self.trie.node(upper).segment_size();
            let below = self.trie.node(lower).segment_size();
            let segment_size = above.merged(below);
            let bytes = self.spec.segment_bytes(segment_size);
            // A restore point is worth more than a shorter path. For windowed layers the
            // merged segment holds less state than its parts, and nodes below may need it.
            let anywhere = self.spec.resumes_anywhere();
            let needed = !anywhere && self.resumes_at(upper);
            let lossless = anywhere || below.state_lag == 0;
            if needed
                || !lossless
                || !self.spec.can_merge(above, below)
                || segment_size.tokens > self.config.merge_tokens_max
                || bytes > self.free_bytes()
            {
                continue;
            }
            let sealed = self.new_segment(segment_size);
            for node in [upper, lower] {
                self.cancel_export(node);
            }
            let (upper, lower) = self.trie.merge(upper, sealed);
            effects.push(Effect::Edit(Edit::Merge {
                upper,
                lower,
                segment: sealed.segment,
            }));
            return;
        }
    }
}
