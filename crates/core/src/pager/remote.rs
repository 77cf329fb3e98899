//! The remote tier: brings copies that other processes have made to host memory before a lookup,
//! and sends copies that other processes may need.
//!
//! The tier is asked when no copy here, and no state on the device, holds a sequence's tokens as
//! far as it could. Fetching and computing are compared by the time that both have taken recently.
//! A sequence waits no longer than computing would take, and a tier that fails is not asked for a
//! while.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::PagerCore;
use super::copy_queues::QueuedSend;
use super::footprint;
use motet_protocol::pager::{Ask, Asked, Done, Effect, Lookup};
use motet_protocol::{
    CopyId, KeyDigest, Label, PrefixHasher, SegmentSize, SequenceId, TokenId, common_prefix,
};

/// Upper bound on the remembered copies that the tier has named and does not have.
const MISSING_MAX: usize = 64;

/// Time for which such a copy is not fetched: another process may store it again.
const MISSING_TIME: Duration = Duration::from_secs(60);

/// Copies that the remote tier has named and could not give, and when, oldest first.
#[derive(Debug, Default)]
pub(super) struct Missing(VecDeque<(Duration, Arc<Label>)>);

impl Missing {
    pub(super) fn add(&mut self, label: &Arc<Label>, now: Duration) {
        if self.0.len() == MISSING_MAX {
            self.0.pop_front();
        }
        self.0.push_back((now, Arc::clone(label)));
    }

    fn contains(&self, label: &Label, now: Duration) -> bool {
        let lasts = |since: Duration| now < since.saturating_add(MISSING_TIME);
        let mut known = self.0.iter();
        known.any(|(since, other)| lasts(*since) && **other == *label)
    }

    fn remove(&mut self, label: &Label) {
        self.0.retain(|(_, other)| **other != *label);
    }
}

impl PagerCore {
    /// Asks the remote tier for copies that continue this lookup's tokens. The lookup then waits
    /// for the answer. Returns the lookup if that is not worth the time.
    pub(super) fn ask(&mut self, lookup: Lookup, effects: &mut Vec<Effect>) -> Option<Lookup> {
        let Some(remote) = &self.config.remote else {
            return Some(lookup);
        };
        let (grid, answer_timeout) = (remote.grid_tokens, remote.answer_timeout);
        if !self.remote.works() || !self.asks.can_add() || !remote.shares(lookup.key.salt) {
            return Some(lookup);
        }
        let last = lookup.tokens.len() / grid * grid;
        if last <= lookup.seen_tokens {
            return Some(lookup);
        }
        let from = self.reach(&lookup);
        if last <= from || !self.is_faster_than_computing(&lookup, from, last) {
            return Some(lookup);
        }
        effects.push(Effect::Ask(Ask {
            sequence: lookup.sequence,
            key: lookup.key,
            tokens: Arc::clone(&lookup.tokens),
            from,
        }));
        self.stats.remote_asks += 1;
        self.asks
            .add(lookup, self.now.saturating_add(answer_timeout));
        None
    }

    /// Handles the answer of the remote tier.
    pub(super) fn asked(&mut self, asked: Asked, effects: &mut Vec<Effect>) {
        let lookup = self.asks.answered(&asked.ask);
        let labels = match asked.result {
            Ok(labels) => {
                // A late answer has begun a rest, and does not end it.
                let in_time = lookup.is_some();
                self.remote.has_answered(asked.took, in_time, self.now);
                labels
            }
            Err(_) => {
                self.stats.failed += 1;
                self.remote.fetch_failed(self.now);
                Vec::new()
            }
        };
        if let Some(lookup) = lookup {
            self.fetch(lookup, asked.ask.from, labels, effects);
        }
    }

    /// Fetches the first of these copies, as many as save time and fit. The lookup waits for
    /// them.
    fn fetch(
        &mut self,
        lookup: Lookup,
        from: usize,
        labels: Vec<Label>,
        effects: &mut Vec<Effect>,
    ) {
        let labels = self.profitable(&lookup, from, labels);
        let bytes = labels.iter().map(|label| label.bytes).sum();
        let mut copies = BTreeSet::new();
        for label in labels {
            let known = self.remote.fetch_of(&label);
            copies.insert(known.unwrap_or_else(|| {
                let copy = self.catalog.name_fetch();
                self.remote.push(copy, label);
                copy
            }));
        }
        if copies.is_empty() {
            return self.look_up_here(lookup, effects);
        }
        let until = self.now.saturating_add(self.wait_for(&lookup, from, bytes));
        self.asks.add_fetching(lookup, copies, until);
    }

    /// How long a lookup waits for copies of so many bytes: as long as computing takes, if that is
    /// known.
    fn wait_for(&self, lookup: &Lookup, from: usize, bytes: usize) -> Duration {
        let tokens = u32::try_from(lookup.tokens.len() - from).unwrap_or(u32::MAX);
        let wait = match lookup.token_time {
            Some(time) => time.saturating_mul(tokens),
            None => self.remote.fetch_time(bytes).saturating_mul(4),
        };
        let remote = self.config.remote.as_ref();
        wait.max(remote.map_or(Duration::ZERO, |remote| remote.answer_timeout))
    }

    /// Handles the end of a fetch job.
    pub(super) fn fetch_ended(&mut self, done: &Done, effects: &mut Vec<Effect>) {
        let name = done.copy;
        match &done.result {
            Ok(()) => {
                let bytes = self.catalog.found(name).label().bytes;
                self.remote.has_fetched(bytes, done.took, self.now);
                self.stats.fetched += 1;
                self.catalog.fetched(name);
                self.catalog.touch(name);
                for lookup in self.asks.fetched(name) {
                    self.look_up_here(lookup, effects);
                }
            }
            Err(error) => {
                if error.is_lost {
                    let label = self.catalog.found(name).label();
                    self.missing.add(label, self.now);
                } else {
                    self.remote.fetch_failed(self.now);
                }
                self.not_fetched(name, effects);
            }
        }
        self.drop_unawaited_fetches();
    }

    /// Handles the end of a send job.
    pub(super) fn send_ended(&mut self, done: &Done) {
        let sent = self.remote.take_sent();
        let succeeded = done.result.is_ok();
        self.catalog.send_ended(done.copy, succeeded);
        self.stats.sent += u64::from(succeeded);
        let is_lost = done.result.as_ref().is_err_and(|error| error.is_lost);
        if is_lost {
            // The tier has dropped copies of the path. One that drops them again is too small.
            self.catalog.unshare(&sent.path);
            if !sent.is_repeated {
                self.queue_sends(&[&sent.path[..], &[done.copy]].concat(), true);
            }
            return;
        }
        self.remote.has_sent(succeeded, self.now);
        if let Some(copy) = self.catalog.get(done.copy).filter(|_| succeeded) {
            self.missing.remove(copy.label());
        }
    }

    /// Queues the copies of these tokens that the remote tier did not get.
    pub(super) fn share(&mut self, key: KeyDigest, tokens: &[TokenId]) {
        let remote = self.config.remote.as_ref();
        if !remote.is_some_and(|remote| remote.shares(key.salt)) {
            return;
        }
        let whole = !self.spec.resumes_anywhere();
        let chain = self.catalog.chain(key, tokens, 0, whole);
        let names: Vec<CopyId> = chain.iter().map(|link| link.copy).collect();
        self.queue_sends(&names, false);
    }

    /// Queues the copies of a path that the remote tier did not get, each after those before it.
    fn queue_sends(&mut self, names: &[CopyId], is_repeated: bool) {
        let mut path: Vec<(CopyId, Arc<Label>)> = Vec::new();
        for name in names {
            let Some(copy) = self.catalog.get(*name) else {
                return;
            };
            let label = Arc::clone(copy.label());
            if self.catalog.can_send(*name) {
                self.remote.push_send(QueuedSend {
                    copy: *name,
                    path: path.clone(),
                    is_repeated,
                });
            }
            path.push((*name, label));
        }
    }

    /// Ends the wait of a sequence for the remote tier. Returns false if it does not wait.
    pub(super) fn stop_asking(&mut self, sequence: SequenceId) -> bool {
        let waited = self.asks.take(sequence).is_some();
        if waited {
            self.drop_unawaited_fetches();
        }
        waited
    }

    /// Ends the waits that are due, and those for a tier that does not work.
    pub(super) fn check_remote(&mut self, effects: &mut Vec<Effect>) {
        let (expired, was_asked) = self.asks.expired(self.now);
        if was_asked {
            self.remote.fetch_failed(self.now);
        }
        if self.remote.check(self.now) || was_asked {
            self.stats.failed += 1;
        }
        let mut waited = expired;
        if !self.remote.works() {
            waited.extend(self.asks.take_all());
        }
        if !waited.is_empty() {
            for lookup in waited {
                self.look_up_here(lookup, effects);
            }
            self.drop_unawaited_fetches();
        }
    }

    /// Removes a copy that will not come; lookups go on without it.
    pub(super) fn not_fetched(&mut self, name: CopyId, effects: &mut Vec<Effect>) {
        self.catalog.end_fetch(name);
        for lookup in self.asks.not_fetched(name) {
            self.look_up_here(lookup, effects);
        }
    }

    /// Removes queued fetches that no lookup waits for any more.
    pub(super) fn drop_unawaited_fetches(&mut self) {
        let asks = &self.asks;
        self.remote.retain(|name| asks.waits_for(name));
    }

    /// Returns the number of the lookup's first tokens that are on the device, or in copies here.
    fn reach(&self, lookup: &Lookup) -> usize {
        let resident = lookup.resident_tokens();
        let whole = !self.spec.resumes_anywhere();
        let chain = self
            .catalog
            .chain(lookup.key, &lookup.tokens, resident, whole);
        let available = chain.iter().take_while(|one| self.is_available(one.copy));
        available.last().map_or(resident, |one| one.shared)
    }

    /// Whether copies of these tokens are expected to come sooner than they are computed.
    fn is_faster_than_computing(&self, lookup: &Lookup, from: usize, last: usize) -> bool {
        let Some(token_time) = lookup.token_time else {
            return true;
        };
        let (bytes, _) = (self.sizes)(SegmentSize::whole(last - from));
        let computing = token_time.as_secs_f64() * (last - from) as f64;
        computing > self.remote.fetch_time(bytes).as_secs_f64()
    }

    /// Returns the first labels, as many as save most time, perhaps none.
    fn profitable(&self, lookup: &Lookup, from: usize, mut labels: Vec<Label>) -> Vec<Label> {
        let mut host_bytes = self.catalog.host_bytes_max();
        let mut fetched_bytes = 0;
        let mut best = (0.0, 0);
        let whole = !self.spec.resumes_anywhere();
        let mut prefix = PrefixHasher::new(lookup.key);
        let (mut hashed, mut reach) = (0, from);
        for (index, label) in labels.iter().enumerate() {
            let Some(before) = lookup.tokens.get(hashed..label.start) else {
                break;
            };
            prefix.update(before);
            hashed = label.start;
            let (bytes, precision) = (self.sizes)(label.segment_size());
            // The tier is code of others: it must not mix sequences up.
            let is_ours = label.key == lookup.key.at(label.start + 1)
                && label.before == prefix.digest()
                && !label.tokens.is_empty()
                && (label.bytes, label.precision) == (bytes, precision);
            let fits = host_bytes.checked_sub(footprint::host_bytes(bytes));
            let Some(left) = fits.filter(|_| is_ours && !self.missing.contains(label, self.now))
            else {
                break;
            };
            let rest = &lookup.tokens[label.start..];
            let alike = lookup.key.tokens_alike(label.start).min(rest.len());
            let shared = common_prefix(&label.tokens, &rest[..alike]);
            if label.start > reach || whole && shared < label.tokens.len() {
                break;
            }
            reach = reach.max(label.start + shared);
            host_bytes = left;
            fetched_bytes += bytes;
            let saved = reach - from;
            let gain = lookup.token_time.map_or(saved as f64, |time| {
                time.as_secs_f64() * saved as f64
                    - self.remote.fetch_time(fetched_bytes).as_secs_f64()
            });
            if gain > best.0 {
                best = (gain, index + 1);
            }
        }
        labels.truncate(best.1);
        labels
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{PagerConfig, RemoteConfig};
    use crate::pager::{JobError, Message, OffloadCandidate, PagerEvent, Precision, Task};
    use motet_protocol::PrefixKey;
    use motet_protocol::lease::LeaseCount;
    use motet_protocol::{LayerKind, ModelSpec, Salt, SegmentId};

    const ANSWER_TIMEOUT: Duration = Duration::from_millis(250);
    const TOKENS: [TokenId; 9] = [1, 2, 3, 4, 5, 6, 7, 8, 9];
    const BYTES: usize = 100;

    fn pager() -> PagerCore {
        let config = PagerConfig {
            host_bytes_max: 1 << 20,
            remote: Some(RemoteConfig {
                grid_tokens: 4,
                answer_timeout: ANSWER_TIMEOUT,
                ..RemoteConfig::default()
            }),
            ..PagerConfig::default()
        };
        let spec = ModelSpec::with_layer_kinds(&[LayerKind::Full]);
        let sizes = |_| (BYTES, Precision::Full);
        PagerCore::new(spec, config, Box::new(sizes), Vec::new())
    }

    /// Looks a sequence up, and returns the question to the tier, if there is one.
    fn look_up(core: &mut PagerCore, now: Duration, token_time: Duration) -> Option<Ask> {
        let lookup = Lookup {
            sequence: SequenceId(1),
            key: PrefixKey::default().digest(),
            tokens: Arc::from(TOKENS),
            resident: Vec::new(),
            seen_tokens: 0,
            token_time: Some(token_time),
        };
        let effects = core.handle(now, Message::Lookup(lookup));
        core.check_integrity();
        match &effects[..] {
            [Effect::Ask(ask)] => Some(ask.clone()),
            [Effect::Notify(PagerEvent::Miss { .. })] => None,
            other => panic!("a question or a miss, not {other:?}"),
        }
    }

    fn answer(core: &mut PagerCore, now: Duration, ask: Ask, labels: Vec<Label>) -> Vec<Effect> {
        let asked = Asked {
            ask,
            result: Ok(labels),
            took: Duration::from_millis(1),
        };
        let effects = core.handle(now, Message::Asked(asked));
        core.check_integrity();
        effects
    }

    #[test]
    fn tokens_that_are_computed_faster_are_not_asked_for() {
        for (micros, asks) in [(1, false), (10_000, true)] {
            let token_time = Duration::from_micros(micros);
            let ask = look_up(&mut pager(), Duration::ZERO, token_time);
            assert_eq!(ask.is_some(), asks, "{micros} microseconds for a token");
        }
    }

    /// A late answer serves no lookup, and does not end the tier's rest.
    #[test]
    fn a_late_answer_is_not_waited_for_again() {
        let (mut core, slow) = (pager(), Duration::from_secs(1));
        let ask = look_up(&mut core, Duration::ZERO, slow).expect("the tier is asked");
        assert_eq!(core.wakes_at(), Some(ANSWER_TIMEOUT));
        let effects = core.handle(ANSWER_TIMEOUT, Message::TimePassed);
        assert!(
            matches!(&effects[..], [Effect::Notify(PagerEvent::Miss { .. })]),
            "{effects:?}"
        );
        let late = ANSWER_TIMEOUT + Duration::from_millis(1);
        let label = Label::new(ask.key, &TOKENS, 0, 0, Precision::Full, BYTES);
        assert!(answer(&mut core, late, ask, vec![label]).is_empty());
        assert!(look_up(&mut core, late, slow).is_none(), "the tier rests");
        let rested = late + Duration::from_secs(10);
        core.handle(rested, Message::TimePassed);
        assert!(look_up(&mut core, rested, slow).is_some());
    }

    /// Copies of other sequences, of another size, or after a gap are not fetched.
    #[test]
    fn labels_that_do_not_fit_the_sequence_are_not_fetched() {
        let key = PrefixKey::default().digest();
        let label = |key, tokens: &[TokenId], start, bytes| {
            Label::new(key, tokens, start, 0, Precision::Full, bytes)
        };
        let other = PrefixKey::of(Salt::new("other")).digest();
        for (label, is_fetched) in [
            (label(key, &TOKENS, 0, BYTES), true),
            (label(other, &TOKENS, 0, BYTES), false),
            (label(key, &[9, 2, 3, 4, 5, 6], 2, BYTES), false),
            (label(key, &TOKENS, 4, BYTES), false),
            (label(key, &TOKENS, 0, BYTES + 1), false),
            (label(key, &TOKENS, 9, BYTES), false),
        ] {
            let mut core = pager();
            let slow = Duration::from_secs(1);
            let ask = look_up(&mut core, Duration::ZERO, slow).expect("the tier is asked");
            let effects = answer(&mut core, Duration::ZERO, ask, vec![label.clone()]);
            let fetches = matches!(&effects[..], [Effect::Do(_)]);
            assert_eq!(fetches, is_fetched, "{label:?}: {effects:?}");
        }
    }

    /// Cancelled lookups count as long as their questions are not answered.
    #[test]
    fn questions_are_bounded() {
        let (mut core, slow) = (pager(), Duration::from_secs(1));
        let mut asks = Vec::new();
        while let Some(ask) = look_up(&mut core, Duration::ZERO, slow) {
            let sequence = ask.sequence;
            asks.push(ask);
            core.handle(Duration::ZERO, Message::Cancel { sequence });
        }
        assert_eq!(asks.len(), 32);
        let ask = asks.pop().expect("there are some");
        answer(&mut core, Duration::ZERO, ask, Vec::new());
        assert!(look_up(&mut core, Duration::ZERO, slow).is_some());
    }

    /// A tier that has dropped copies gets them again, once: it may be too small.
    #[test]
    fn dropped_copies_are_sent_again_once() {
        let mut core = pager();
        let lease_count = LeaseCount::new(SegmentId(1));
        let key = PrefixKey::default().digest();
        let tokens: Arc<[TokenId]> = Arc::from(TOKENS);
        let candidate = OffloadCandidate {
            lease: lease_count.lease().expect("it is not being evicted"),
            key,
            segment_size: SegmentSize::whole(tokens.len()),
            tokens: Arc::clone(&tokens),
            retention: 0,
        };
        core.handle(Duration::ZERO, Message::OffloadCandidate(candidate));
        let done = |task, result| {
            Message::Done(Done {
                copy: CopyId(1),
                task,
                result,
                took: Duration::from_millis(1),
                bytes: BYTES,
            })
        };
        core.handle(Duration::ZERO, done(Task::Pack, Ok(())));
        let mut effects = core.handle(Duration::ZERO, Message::Share { key, tokens });
        let mut sends = 0;
        while let [Effect::Do(job)] = &effects[..] {
            assert_eq!(job.task, Task::Send);
            sends += 1;
            let dropped = JobError {
                what: "its path is gone".into(),
                is_lost: true,
            };
            effects = core.handle(Duration::ZERO, done(Task::Send, Err(dropped)));
            core.check_integrity();
        }
        assert_eq!(sends, 2);
    }
}
