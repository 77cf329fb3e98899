//! Pins: cached prefixes that callers hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::open_slot::Usable;
use super::trie::{NodeKey, Trie};
use super::{CacheCore, CacheError, Effect, Pin, PrefixKey};
use motet_protocol::SegmentSize;
use motet_protocol::{PinId, TokenId};

/// The pins and the nodes that they hold.
#[derive(Debug, Default)]
pub(super) struct Pins {
    pins: BTreeMap<PinId, Pinned>,
    /// The time at which the next pin expires.
    next_expiry: Option<Duration>,
}

/// A pin and the node that it holds.
#[derive(Debug)]
struct Pinned {
    key: PrefixKey,
    tokens: Arc<[TokenId]>,
    expires_at: Option<Duration>,
    /// The held node. `None` after the device lost the prefix, until it has been computed
    /// again.
    end: Option<NodeKey>,
}

impl Pins {
    pub(super) fn len(&self) -> usize {
        self.pins.len()
    }

    pub(super) fn contains(&self, pin: PinId) -> bool {
        self.pins.contains_key(&pin)
    }

    /// The nodes that pins hold.
    pub(super) fn ends(&self) -> impl Iterator<Item = NodeKey> + '_ {
        self.pins.values().filter_map(|pinned| pinned.end)
    }

    /// Adds a pin. The trie holds `end` for it already.
    pub(super) fn add(&mut self, now: Duration, pin: Pin, end: NodeKey) {
        let pinned = Pinned {
            key: pin.key,
            tokens: pin.tokens,
            expires_at: pin.time_to_live.map(|ttl| now.saturating_add(ttl)),
            end: Some(end),
        };
        let expiries = self.next_expiry.into_iter().chain(pinned.expires_at);
        self.next_expiry = expiries.min();
        self.pins.insert(pin.pin, pinned);
    }

    /// Removes a pin and releases its path.
    pub(super) fn remove(&mut self, pin: PinId, trie: &mut Trie) -> Result<(), CacheError> {
        let pinned = self.pins.remove(&pin).ok_or(CacheError::UnknownPin(pin))?;
        if let Some(end) = pinned.end {
            trie.release(end);
        }
        Ok(())
    }

    /// Removes the pins that have expired.
    pub(super) fn expire(&mut self, now: Duration, trie: &mut Trie) {
        if self.next_expiry.is_none_or(|at| now < at) {
            return;
        }
        let is_expired =
            |_: &PinId, pinned: &mut Pinned| pinned.expires_at.is_some_and(|at| at <= now);
        for (_, expired) in self.pins.extract_if(.., is_expired) {
            if let Some(end) = expired.end {
                trie.release(end);
            }
        }
        self.next_expiry = self.pins.values().filter_map(|p| p.expires_at).min();
    }

    /// The pins without a held node, each with its prefix.
    fn lost(&self) -> Vec<(PinId, PrefixKey, Arc<[TokenId]>)> {
        let lost = self.pins.iter().filter(|(_, pinned)| pinned.end.is_none());
        lost.map(|(pin, lost)| (*pin, lost.key.clone(), Arc::clone(&lost.tokens)))
            .collect()
    }

    /// Records that the prefix of a pin is held again.
    fn hold_again(&mut self, pin: PinId, end: NodeKey) {
        let pinned = self.pins.get_mut(&pin).expect("the pin is there");
        pinned.end = Some(end);
    }

    /// Releases the paths through lost nodes. Their pins hold them again once they have been
    /// computed again.
    pub(super) fn release_through(&mut self, lost: &[NodeKey], trie: &mut Trie) {
        for pinned in self.pins.values_mut() {
            if let Some(end) = pinned.end.take_if(|end| trie.leads_through(*end, lost)) {
                trie.release(end);
            }
        }
    }

    /// The same pins without held nodes, as the device is empty.
    pub(super) fn after_reset(mut self) -> Self {
        for pinned in self.pins.values_mut() {
            pinned.end = None;
        }
        self
    }

    /// Panics unless the next expiry is known.
    pub(super) fn check_integrity(&self) {
        let mut expiries = self.pins.values().filter_map(|p| p.expires_at);
        assert!(
            expiries.all(|at| self.next_expiry.is_some_and(|next| next <= at)),
            "no pin expires before the next expiry"
        );
    }
}

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
        if self.pins.contains(pin.pin) {
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
        let usable = self.usable(&pin.key, &pin.tokens);
        if usable.tokens == pin.tokens.len() {
            fits(self.pinned_bytes(&usable))?;
        }
        let end = self.hold_whole(&usable, pin.tokens.len(), effects)?;
        self.pins.add(now, pin, end);
        Ok(())
    }

    /// Holds the prefixes again that were lost with the device, if they have been recomputed.
    pub(super) fn hold_lost_pins(&mut self, effects: &mut Vec<Effect>) {
        for (pin, key, tokens) in self.pins.lost() {
            let usable = self.usable(&key, &tokens);
            if let Ok(end) = self.hold_whole(&usable, tokens.len(), effects) {
                self.pins.hold_again(pin, end);
            }
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
        let parent = usable
            .partial
            .map(|(node, _)| self.trie.node(node).parent());
        let nodes: BTreeSet<NodeKey> = self
            .pins
            .ends()
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::Lru;

    #[test]
    fn pins_expire_in_time() {
        let mut trie = Trie::new(Box::new(Lru));
        let root = trie.root_or_new(&PrefixKey::default().salt);
        let mut pins = Pins::default();
        for (name, seconds) in [(1, Some(5)), (2, None), (3, Some(2)), (4, Some(9))] {
            let pin = Pin {
                pin: PinId(name),
                key: PrefixKey::default(),
                tokens: [1].into(),
                time_to_live: seconds.map(Duration::from_secs),
            };
            trie.hold(root);
            pins.add(Duration::from_secs(1), pin, root);
            pins.check_integrity();
        }
        let left = |pins: &Pins| {
            (1..=4)
                .filter(|pin| pins.contains(PinId(*pin)))
                .collect::<Vec<_>>()
        };
        pins.expire(Duration::from_secs(2), &mut trie);
        assert_eq!(left(&pins), [1, 2, 3, 4]);
        pins.expire(Duration::from_secs(6), &mut trie);
        assert_eq!(left(&pins), [2, 4]);
        pins.check_integrity();
        assert_eq!(trie.node(root).ref_count(), 2, "expired pins hold nothing");
        assert!(pins.remove(PinId(3), &mut trie).is_err());
    }
}
