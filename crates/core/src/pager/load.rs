//! Lookup and load: finds copies for a sequence, and brings them to the device.
//!
//! A lookup finds the copies when the sequence opens its slot. They are loaded when the cache
//! has reserved device memory for them. Loading and computing are compared by the time that
//! both have taken recently.

use std::time::Duration;

use super::PagerCore;
use super::catalog::{CopyEntry, Presence};
use crate::protocol::SaltDigest;
use crate::protocol::SegmentSize;
use crate::protocol::pager::{CopyRange, Effect, Lookup, PagerEvent, Task};
use crate::{CopyId, SequenceId, TokenId};
use motet_sync::injected::{self, Bug};

/// Upper bound on the copies that wait to be prefetched.
const PREFETCHES_MAX: usize = 64;

/// A lookup or load that has not ended.
#[derive(Debug)]
pub(super) struct PendingLoad {
    copy_ranges: Vec<CopyRange>,
    stage: Stage,
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// The cache knows the copies and has not asked to load them yet.
    Hit,
    /// The copies are being loaded; `ready` detached states are ready.
    Loading { ready: usize },
    /// Another sequence loads this copy, which this one needs as well.
    Joined(CopyId),
}

impl PendingLoad {
    /// Returns the copies that it uses.
    pub(super) fn copies(&self) -> impl Iterator<Item = CopyId> + '_ {
        self.copy_ranges.iter().map(|copy_range| copy_range.copy)
    }
}

impl PagerCore {
    /// Finds the copies that continue a sequence's tokens on the device.
    pub(super) fn lookup(&mut self, lookup: Lookup, effects: &mut Vec<Effect>) {
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
        let being_loaded = |copy_range: &CopyRange| {
            let copy = self
                .copies
                .get(copy_range.copy)
                .expect("the index holds only copies of the catalog");
            copy.loading_for.is_some().then_some(copy_range.copy)
        };
        if let Some(busy) = copy_ranges.iter().find_map(being_loaded) {
            let stage = Stage::Joined(busy);
            self.copies.change(busy, |copy| copy.joined.push(sequence));
            let copy_ranges = Vec::new();
            self.pending_loads
                .insert(sequence, PendingLoad { copy_ranges, stage });
            return;
        }
        for copy_range in &copy_ranges {
            self.copies.change(copy_range.copy, |copy| copy.users += 1);
        }
        effects.push(Effect::Notify(PagerEvent::Hit {
            sequence,
            copy_ranges: copy_ranges.clone(),
        }));
        let stage = Stage::Hit;
        self.pending_loads
            .insert(sequence, PendingLoad { copy_ranges, stage });
    }

    /// Starts to load the copies found for the sequence.
    pub(super) fn load(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        let Some(pending_load) = self.pending_loads.get_mut(&sequence) else {
            return;
        };
        pending_load.stage = Stage::Loading { ready: 0 };
        let copies: Vec<CopyId> = pending_load.copies().collect();
        // A copy may be lost, or another sequence may have started to load it.
        let is_loadable = |name: &CopyId| {
            let copy = self.copies.get(*name);
            copy.is_some_and(|copy| copy.loading_for.is_none() && self.is_available(*name, copy))
        };
        if !copies.iter().all(is_loadable) {
            self.end_load(sequence, effects);
            effects.push(Effect::Notify(PagerEvent::Retry { sequence }));
            return;
        }
        for name in copies {
            self.copies
                .change(name, |copy| copy.loading_for = Some(sequence));
            let copy = self.copies.get(name).expect("the copy is available");
            let is_made = copy.moves.contains(&Task::Unpack);
            match copy.host {
                Presence::Absent => {
                    self.stats.disk_hits += 1;
                    self.to_read.push_back(name);
                }
                // It is unpacked after it has been read.
                Presence::Incoming => self.stats.host_hits += 1,
                Presence::Present => {
                    self.stats.host_hits += 1;
                    // A job of a cancelled load may be unpacking it already.
                    if !is_made {
                        self.to_unpack.push_back(name);
                    }
                }
            }
        }
    }

    /// Cancels the lookup or load of a sequence.
    pub(super) fn cancel(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        let Some(pending_load) = self.pending_loads.get(&sequence) else {
            // Either the answer has been sent already, and crossed with this message; or the
            // answer waits for an unpack job whose detached state may be this sequence's.
            let miss = PagerEvent::miss(sequence);
            let due = self
                .cancelled
                .iter()
                .find(|(_, pager_event)| *pager_event == miss);
            match due.map(|(copy, _)| *copy) {
                Some(copy) => self
                    .cancelled
                    .push((copy, PagerEvent::Cancelled { sequence })),
                None => effects.push(Effect::Notify(PagerEvent::Cancelled { sequence })),
            }
            return;
        };
        if let Stage::Joined(copy) = pending_load.stage {
            effects.push(Effect::Notify(PagerEvent::Cancelled { sequence }));
            self.pending_loads.remove(&sequence);
            self.copies
                .change(copy, |copy| copy.joined.retain(|other| *other != sequence));
            return;
        }
        let making = pending_load.copies().find(|name| {
            let copy = self.copies.get(*name);
            let own = copy.is_some_and(|copy| copy.loading_for == Some(sequence));
            own && self.is_unpacking(*name)
        });
        self.discard_loaded(sequence, effects);
        self.end_load(sequence, effects);
        match making {
            Some(_) if injected::is_injected(Bug::UnconfirmedCancel) => {}
            Some(name) => self
                .cancelled
                .push((name, PagerEvent::Cancelled { sequence })),
            None => effects.push(Effect::Notify(PagerEvent::Cancelled { sequence })),
        }
    }

    /// Queues a copy in host memory for unpacking if a sequence waits for it.
    pub(super) fn host_copy_ready(&mut self, name: CopyId) {
        let waits = self.copies.get(name).and_then(|copy| copy.loading_for);
        self.to_unpack.extend(waits.map(|_| name));
    }

    /// Handles a detached state that is ready.
    pub(super) fn unpacked(&mut self, name: CopyId, effects: &mut Vec<Effect>) {
        let waits = self.copies.get(name).and_then(|copy| copy.loading_for);
        let Some(sequence) = waits else {
            // The sequence has cancelled.
            effects.push(Effect::Discard(name));
            return;
        };
        self.stats.unpacked += 1;
        let pending_load = self
            .pending_loads
            .get_mut(&sequence)
            .expect("a waiting sequence has a pending load");
        let all = pending_load.copy_ranges.len();
        let Stage::Loading { ready } = &mut pending_load.stage else {
            unreachable!("only a loading sequence waits for a detached state")
        };
        *ready += 1;
        if *ready == all {
            let copies: Vec<CopyId> = pending_load.copies().collect();
            for copy in &copies {
                self.copies.touch(*copy);
            }
            effects.push(Effect::Notify(PagerEvent::Loaded { sequence, copies }));
            self.end_load(sequence, effects);
        }
    }

    /// Ends the load that waits for this copy, and sends the event of `event_of`.
    pub(super) fn fail_load(
        &mut self,
        name: CopyId,
        event_of: fn(SequenceId) -> PagerEvent,
        effects: &mut Vec<Effect>,
    ) {
        let waits = self.copies.get(name).and_then(|copy| copy.loading_for);
        if let Some(sequence) = waits {
            self.discard_loaded(sequence, effects);
            self.end_load(sequence, effects);
            effects.push(Effect::Notify(event_of(sequence)));
        }
    }

    /// Queues copies of a sequence's tokens on the disk to be read when there is no other work.
    pub(super) fn prefetch(&mut self, salt: SaltDigest, tokens: &[TokenId], resident: usize) {
        let whole = !self.spec.resumes_anywhere();
        for one in self.index.chain(salt, tokens, resident, whole) {
            let copy = self
                .copies
                .get(one.copy)
                .expect("the index holds only copies of the catalog");
            let away = copy.host == Presence::Absent && self.is_available(one.copy, copy);
            if away
                && self.prefetches.len() < PREFETCHES_MAX
                && !self.prefetches.contains(&one.copy)
            {
                // The copy must not be evicted for other prefetches.
                self.copies.touch(one.copy);
                self.prefetches.push_back(one.copy);
            }
        }
    }

    /// Whether the copy can be loaded now.
    pub(super) fn is_available(&self, name: CopyId, copy: &CopyEntry) -> bool {
        if self.pending_eviction.contains(&name) {
            return false;
        }
        copy.host == Presence::Present || copy.disk == Presence::Present && self.disk_state.works()
    }

    /// Returns the copies that continue the sequence's tokens on the device, up to a position
    /// where it can resume.
    fn find(&self, lookup: &Lookup) -> Vec<CopyRange> {
        let resident = lookup.resident_tokens();
        let anywhere = self.spec.resumes_anywhere();
        let chain = self
            .index
            .chain(lookup.salt, &lookup.tokens, resident, !anywhere);
        // All copies of one load must fit in host memory together.
        let mut host_bytes = self.copies.host.bytes_max;
        let copy_ranges = chain.iter().map_while(|one| {
            let copy = self
                .copies
                .get(one.copy)
                .expect("the index holds only copies of the catalog");
            host_bytes = host_bytes.checked_sub(copy.bytes)?;
            self.is_available(one.copy, copy).then_some(CopyRange {
                copy: one.copy,
                start: one.start,
                segment_size: copy.segment_size,
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
        let resident = lookup.resident_tokens();
        let mut cost = self.backlog();
        let mut best = (0.0, 0);
        for (index, copy_range) in copy_ranges.iter().enumerate() {
            let copy = self
                .copies
                .get(copy_range.copy)
                .expect("the index holds only copies of the catalog");
            cost += self.load_time(copy);
            let saved_seconds = token_time.as_secs_f64() * (copy_range.end - resident) as f64;
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

    /// Time until loads that are queued now have ended.
    fn backlog(&self) -> Duration {
        let time = |name: &CopyId| {
            let copy = self.copies.get(*name);
            copy.map_or(Duration::ZERO, |copy| self.load_time(copy))
        };
        self.to_unpack.iter().chain(&self.to_read).map(time).sum()
    }

    /// Releases the copies of a sequence; sequences that joined its load look up again.
    fn end_load(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        let pending_load = self
            .pending_loads
            .remove(&sequence)
            .expect("a load that ends is pending");
        for name in pending_load.copies() {
            let joined = self.copies.change(name, |copy| {
                copy.users -= 1;
                if copy.loading_for == Some(sequence) {
                    copy.loading_for = None;
                    return std::mem::take(&mut copy.joined);
                }
                Vec::new()
            });
            for other in joined.unwrap_or_default() {
                self.pending_loads.remove(&other);
                effects.push(Effect::Notify(PagerEvent::Retry { sequence: other }));
            }
            let copy = self.copies.get(name);
            if copy.is_none_or(|copy| copy.loading_for.is_none()) {
                self.to_unpack.retain(|other| *other != name);
                self.to_read.retain(|other| *other != name);
            }
        }
    }

    /// Discards the detached states that are ready for the sequence.
    fn discard_loaded(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        let pending_load = &self.pending_loads[&sequence];
        let loading = matches!(pending_load.stage, Stage::Loading { .. });
        for name in pending_load.copies().filter(|_| loading) {
            let Some(copy) = self.copies.get(name) else {
                continue;
            };
            let is_ready = copy.host == Presence::Present
                && !copy.moves.contains(&Task::Unpack)
                && !self.to_unpack.contains(&name);
            if is_ready {
                effects.push(Effect::Discard(name));
            }
        }
    }
}

impl Lookup {
    /// Returns the number of tokens on the device that the sequence would reuse.
    #[must_use]
    pub fn resident_tokens(&self) -> usize {
        self.resident
            .iter()
            .map(|segment_size| segment_size.tokens)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::SegmentId;
    use crate::config::PagerConfig;
    use crate::lease::LeaseCount;
    use crate::pager::{Done, Message, OffloadCandidate, Precision};
    use crate::protocol::{LayerKind, ModelSpec};

    const SALT: SaltDigest = SaltDigest([0; 32]);
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
                    salt: SALT,
                    tokens: Arc::from(&TOKENS[..range.end]),
                    segment_size: SegmentSize::whole(range.len()),
                    priority: 0,
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
            salt: SALT,
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
