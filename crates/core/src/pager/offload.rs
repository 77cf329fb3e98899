//! Offload: copies cold segments of the device ahead of need.

use super::PagerCore;
use super::footprint;
use motet_protocol::pager::{Done, Effect, OffloadCandidate, PagerEvent};
use motet_protocol::{CopyId, TokenId};
use motet_protocol::{KeyDigest, Label};
use motet_sync::injected::{self, Bug};

impl PagerCore {
    /// Starts to copy a cold segment out, unless a copy exists or memory is short.
    pub(super) fn offload(&mut self, candidate: OffloadCandidate, effects: &mut Vec<Effect>) {
        let segment = candidate.lease.segment();
        let end = candidate.tokens.len();
        let start = end - candidate.segment_size.tokens;
        let state_lag = candidate.segment_size.state_lag;
        if let Some(copy) = self.covers(candidate.key, &candidate.tokens, start, state_lag) {
            self.catalog.touch(copy);
            effects.push(Effect::Notify(PagerEvent::Offloaded { segment, copy }));
            return;
        }
        let (payload_bytes, precision) = (self.sizes)(candidate.segment_size);
        let bytes = footprint::host_bytes(payload_bytes);
        let label_bytes = Label::host_bytes(candidate.segment_size.tokens);
        let fits = self
            .catalog
            .free_for_copy(label_bytes, bytes, candidate.retention, effects);
        if !fits {
            self.stats.rejected += 1;
            effects.push(Effect::Notify(PagerEvent::Rejected { segment }));
            return;
        }
        let label = Label::new(
            candidate.key,
            &candidate.tokens,
            start,
            state_lag,
            precision,
            payload_bytes,
        );
        let job = self
            .catalog
            .add_export(label, candidate.retention, candidate.lease);
        let copy = job.copy;
        effects.push(Effect::Do(job));
        effects.push(Effect::Notify(PagerEvent::Export { segment, copy }));
    }

    /// Handles the end of a pack job.
    pub(super) fn packed(&mut self, done: &Done, effects: &mut Vec<Effect>) {
        let name = done.copy;
        let Some(copy) = self.catalog.get(name) else {
            // The export was cancelled or the device was reset.
            return;
        };
        let segment = copy
            .exported_segment()
            .expect("a copy is leased while it is packed");
        if done.result.is_err() {
            let given_up = self.catalog.end_export(name);
            if injected::is_injected(Bug::LostLease) {
                std::mem::forget(given_up);
            }
            self.stats.rejected += 1;
            effects.push(Effect::Notify(PagerEvent::Rejected { segment }));
            return;
        }
        self.memory.observe(copy.host_bytes(), done.took);
        self.catalog.packed(name);
        self.stats.packed += 1;
        effects.push(Effect::Notify(PagerEvent::Offloaded {
            segment,
            copy: name,
        }));
    }

    /// Cancels the export of a segment, which may have been exported already.
    pub(super) fn cancel_export(&mut self, name: CopyId, effects: &mut Vec<Effect>) {
        if self.catalog.end_export(name).is_some() {
            effects.push(Effect::Forget(name));
        }
    }

    /// Returns a copy that holds this range too.
    fn covers(
        &self,
        key: KeyDigest,
        tokens: &[TokenId],
        start: usize,
        state_lag: usize,
    ) -> Option<CopyId> {
        let anywhere = self.spec.resumes_anywhere();
        let chain = self.catalog.chain(key, tokens, start, !anywhere);
        let whole = chain.first().filter(|one| one.shared == tokens.len())?;
        let serves = anywhere || self.catalog.found(whole.copy).label().state_lag <= state_lag;
        (serves && self.is_available(whole.copy)).then_some(whole.copy)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::{DiskConfig, PagerConfig};
    use crate::pager::{Message, Precision};
    use motet_protocol::SaltDigest;
    use motet_protocol::lease::LeaseCount;
    use motet_protocol::{LayerKind, ModelSpec, SegmentSize};
    use motet_protocol::{SegmentId, TokenId};

    const KEY: KeyDigest = KeyDigest::of(SaltDigest([0; 32]));
    const TOKENS: [TokenId; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

    /// Sends a candidate to a pager whose label budget is used up by a copy on the disk. The
    /// candidate's copy takes 100 bytes of host memory, in whole pages.
    fn after_candidate(host_bytes_max: usize) -> (PagerCore, Vec<Effect>) {
        let config = PagerConfig {
            host_bytes_max,
            label_bytes_max: Some(Label::host_bytes(TOKENS.len())),
            disk: Some(DiskConfig {
                folder: "never touched".into(),
                bytes_max: 1 << 20,
            }),
            ..PagerConfig::default()
        };
        let spec = ModelSpec::with_layer_kinds(&[LayerKind::Full]);
        let sizes = |_: SegmentSize| (100, Precision::Full);
        let label_on_disk = Label::new(KEY, &TOKENS, 0, 0, Precision::Full, 100);
        let found = vec![(CopyId(1), label_on_disk)];
        let mut core = PagerCore::new(spec, config, Box::new(sizes), found);
        assert_eq!(core.stats().disk_copies, 1);
        let lease_count = LeaseCount::new(SegmentId(1));
        let candidate = OffloadCandidate {
            lease: lease_count
                .lease()
                .expect("the segment is not being evicted"),
            key: KEY,
            tokens: TOKENS.iter().map(|token| token + 100).collect(),
            segment_size: SegmentSize::whole(TOKENS.len()),
            retention: 0,
        };
        let effects = core.handle(Duration::ZERO, Message::OffloadCandidate(candidate));
        core.check_integrity();
        (core, effects)
    }

    #[test]
    fn rejected_candidate_evicts_no_copy() {
        let (core, effects) = after_candidate(footprint::host_bytes(100) - 1);
        let [Effect::Notify(PagerEvent::Rejected { .. })] = effects[..] else {
            panic!("{effects:?}");
        };
        let stats = core.stats();
        assert_eq!((stats.rejected, stats.copies, stats.disk_copies), (1, 1, 1));
    }

    /// When host memory suffices, the older copy is evicted for the label.
    #[test]
    fn fitting_candidate_evicts_a_colder_copy() {
        let (core, effects) = after_candidate(footprint::host_bytes(100));
        let is_lost =
            |one: &Effect| matches!(one, Effect::Notify(PagerEvent::Lost { copy: CopyId(1) }));
        assert!(effects.iter().any(is_lost), "{effects:?}");
        let stats = core.stats();
        assert_eq!((stats.rejected, stats.copies, stats.disk_copies), (0, 1, 0));
    }
}
