//! Lookup: finds the copies that a sequence can use, and weighs loading against computing.
//!
//! Loading and computing are compared by the time that both have taken recently.

use std::time::Duration;

use super::PagerCore;
use super::catalog::{CopyEntry, Presence};
use motet_protocol::pager::{CopyRange, Effect, Lookup, PagerEvent};
use motet_protocol::{CopyId, TokenId};
use motet_protocol::{KeyDigest, SegmentSize};

impl PagerCore {
    /// Finds the copies that continue a sequence's tokens on the device, those of the remote tier
    /// included.
    pub(super) fn look_up(&mut self, lookup: Lookup, effects: &mut Vec<Effect>) {
        if let Some(lookup) = self.ask(lookup, effects) {
            self.look_up_here(lookup, effects);
        }
    }

    /// Finds the copies here that continue a sequence's tokens on the device.
    pub(super) fn look_up_here(&mut self, lookup: Lookup, effects: &mut Vec<Effect>) {
        let sequence = lookup.sequence;
        let copy_ranges = self.find(&lookup);
        let copied_tokens = copy_ranges.last().map_or(0, |copy_range| copy_range.end);
        let copy_ranges = self.most_profitable(&lookup, copy_ranges);
        if copy_ranges.is_empty() {
            effects.push(Effect::Notify(PagerEvent::Miss {
                sequence,
                copied_tokens,
            }));
            return;
        }
        let mut copies = copy_ranges.iter().map(|copy_range| copy_range.copy);
        if copies.any(|copy| self.loads.join(sequence, copy)) {
            return;
        }
        effects.push(Effect::Notify(PagerEvent::Hit {
            sequence,
            copy_ranges: copy_ranges.clone(),
        }));
        self.loads.found(sequence, copy_ranges, &mut self.catalog);
    }

    /// Queues copies of a sequence's tokens on the disk to be read when there is no other work.
    pub(super) fn prefetch(&mut self, key: KeyDigest, tokens: &[TokenId], resident: usize) {
        let whole = !self.spec.resumes_anywhere();
        for link in self.catalog.chain(key, tokens, resident, whole) {
            let away = self.catalog.found(link.copy).host() == Presence::Absent
                && self.is_available(link.copy);
            if away && self.disk.prefetch(link.copy) {
                // The copy must not be evicted for other prefetches.
                self.catalog.touch(link.copy);
            }
        }
    }

    /// Whether the copy can be loaded now.
    pub(super) fn is_available(&self, name: CopyId) -> bool {
        self.catalog.is_available(name, self.disk.works())
    }

    /// Returns the copies that continue the sequence's tokens on the device, up to a position
    /// where it can resume.
    fn find(&self, lookup: &Lookup) -> Vec<CopyRange> {
        let resident = lookup.resident_tokens();
        let whole = !self.spec.resumes_anywhere();
        let chain = self
            .catalog
            .chain(lookup.key, &lookup.tokens, resident, whole);
        // All copies of one load must fit in host memory together.
        let mut host_bytes = self.catalog.host_bytes_max();
        let copy_ranges = chain.iter().map_while(|one| {
            let copy = self.catalog.found(one.copy);
            host_bytes = host_bytes.checked_sub(copy.host_bytes())?;
            self.is_available(one.copy).then_some(CopyRange {
                copy: one.copy,
                start: one.start,
                segment_size: copy.segment_size(),
                end: one.shared,
            })
        });
        let mut copy_ranges: Vec<CopyRange> = copy_ranges.collect();
        while !copy_ranges.is_empty() && !self.can_resume(lookup, &copy_ranges) {
            copy_ranges.pop();
        }
        // Tokens that the trie knows are not loaded again, even if the sequence cannot resume
        // after them.
        let extends = copy_ranges
            .last()
            .is_some_and(|last| last.end > lookup.seen_tokens);
        if extends { copy_ranges } else { Vec::new() }
    }

    /// Whether the sequence can resume at the end of these copies.
    fn can_resume(&self, lookup: &Lookup, copy_ranges: &[CopyRange]) -> bool {
        if self.spec.resumes_anywhere() {
            return true;
        }
        let mut segment_sizes = lookup.resident.clone();
        let mut at = lookup.resident_tokens();
        for copy_range in copy_ranges {
            segment_sizes.push(SegmentSize {
                tokens: copy_range.end - at,
                state_lag: copy_range.segment_size.state_lag,
            });
            at = copy_range.end;
        }
        self.spec.can_resume(&segment_sizes)
    }

    /// Returns the first copies that save most time, perhaps none.
    fn most_profitable(
        &mut self,
        lookup: &Lookup,
        mut copy_ranges: Vec<CopyRange>,
    ) -> Vec<CopyRange> {
        let Some(token_time) = lookup.token_time else {
            return copy_ranges;
        };
        let reused = self.reused_tokens(lookup);
        let mut cost = self.backlog();
        let mut best = (0.0, 0);
        for (index, copy_range) in copy_ranges.iter().enumerate() {
            cost = cost.saturating_add(self.load_time(self.catalog.found(copy_range.copy)));
            let saved_seconds = token_time.as_secs_f64() * (copy_range.end - reused) as f64;
            let gain = saved_seconds - cost.as_secs_f64();
            // Copies that end sooner hold tokens that the trie knows, and would not be
            // imported.
            let is_new = copy_range.end > lookup.seen_tokens;
            if gain > best.0 && is_new && self.can_resume(lookup, &copy_ranges[..=index]) {
                best = (gain, index + 1);
            }
        }
        if best.1 < copy_ranges.len() {
            self.stats.computed_instead += 1;
        }
        copy_ranges.truncate(best.1);
        copy_ranges
    }

    /// Returns the number of tokens on the device that the sequence would reuse without a load.
    fn reused_tokens(&self, lookup: &Lookup) -> usize {
        let mut resident = &lookup.resident[..];
        while !self.spec.can_resume(resident)
            && let Some((_, above)) = resident.split_last()
        {
            resident = above;
        }
        resident.iter().map(|size| size.tokens).sum()
    }

    /// Time until loads that are queued now have ended.
    fn backlog(&self) -> Duration {
        let waiting = self.memory.waiting().chain(self.disk.waiting());
        waiting
            .filter_map(|name| self.catalog.get(name))
            .map(|copy| self.load_time(copy))
            .fold(Duration::ZERO, Duration::saturating_add)
    }

    /// Expected time to load a copy.
    fn load_time(&self, copy: &CopyEntry) -> Duration {
        let unpack_time = self.memory.unpack_time(copy);
        match copy.host() {
            Presence::Absent => unpack_time.saturating_add(self.disk.read_time(copy)),
            Presence::Incoming | Presence::Present => unpack_time,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::PagerConfig;
    use crate::pager::{Done, Message, OffloadCandidate, Precision, Task};
    use motet_protocol::SaltDigest;
    use motet_protocol::lease::LeaseCount;
    use motet_protocol::{LayerKind, ModelSpec};
    use motet_protocol::{SegmentId, SequenceId};

    const KEY: KeyDigest = KeyDigest::of(SaltDigest([0; 32]));
    const TOKENS: [TokenId; 9] = [1, 2, 3, 4, 5, 6, 7, 8, 9];
    /// Time to load a copy; each takes one page.
    const TOOK: Duration = Duration::from_micros(10);

    /// Returns a pager with a copy of the first eight tokens and one of the ninth.
    fn pager() -> PagerCore {
        let config = PagerConfig {
            host_bytes_max: 1 << 20,
            ..PagerConfig::default()
        };
        let spec = ModelSpec::with_layer_kinds(&[LayerKind::Recurrent]);
        let sizes = |_| (100, Precision::Full);
        let mut core = PagerCore::new(spec, config, Box::new(sizes), Vec::new());
        for (number, range) in [(1, 0..8), (2, 8..9)] {
            let lease_count = LeaseCount::new(SegmentId(number));
            core.handle(
                Duration::ZERO,
                Message::OffloadCandidate(OffloadCandidate {
                    lease: lease_count
                        .lease()
                        .expect("the segment is not being evicted"),
                    key: KEY,
                    tokens: Arc::from(&TOKENS[..range.end]),
                    segment_size: SegmentSize::whole(range.len()),
                    retention: 0,
                }),
            );
            core.handle(
                Duration::ZERO,
                Message::Done(Done {
                    copy: CopyId(number),
                    task: Task::Pack,
                    result: Ok(()),
                    took: TOOK,
                    bytes: 100,
                }),
            );
        }
        core
    }

    /// Returns the number of copies found for a sequence with so many tokens in the trie, and
    /// no state of them on the device.
    fn found(seen_tokens: usize, token_time: Duration) -> usize {
        let lookup = Lookup {
            sequence: SequenceId(1),
            key: KEY,
            tokens: Arc::from(TOKENS),
            resident: Vec::new(),
            seen_tokens,
            token_time: Some(token_time),
        };
        let effects = pager().handle(Duration::ZERO, Message::Lookup(lookup));
        match &effects[..] {
            [Effect::Notify(PagerEvent::Hit { copy_ranges, .. })] => copy_ranges.len(),
            [Effect::Notify(PagerEvent::Miss { .. })] => 0,
            other => panic!("expected one answer, found {other:?}"),
        }
    }

    #[test]
    fn copies_slower_than_computing_are_not_loaded() {
        for (micros, copies) in [(1, 0), (2, 1), (9, 1), (11, 2)] {
            assert_eq!(found(0, Duration::from_micros(micros)), copies, "{micros}");
        }
    }

    /// Such a copy would be discarded as soon as it is loaded.
    #[test]
    fn prefix_known_to_the_trie_is_not_loaded_alone() {
        for (seen_tokens_max, micros, copies) in [(7, 2, 1), (8, 2, 0), (8, 11, 2), (9, 11, 0)] {
            let time = Duration::from_micros(micros);
            assert_eq!(
                found(seen_tokens_max, time),
                copies,
                "{seen_tokens_max} {micros}"
            );
        }
    }
}
