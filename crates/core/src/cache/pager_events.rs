//! The pager's answers, and what waits for the memory that they release.
//!
//! Each event goes to the file that asked: offloads, backups or loads. Requests and grants for
//! which memory in transit would suffice are deferred until an answer has released it.

use super::open_slot::WaitPolicy;
use super::paging::{Deferred, Paging, StarvedSlot};
use super::{CacheCore, CopiedBlocks, Effect, OpenSlot};
use crate::config::PagerConfig;
use motet_protocol::Edit;
use motet_protocol::SequenceId;
use motet_protocol::pager::{self, PagerEvent};

impl CacheCore {
    /// Returns the cache with a pager of these settings. Without copies, requests do not look
    /// any up.
    #[must_use]
    pub fn with_pager(mut self, pager: &PagerConfig, has_copies: bool) -> Self {
        self.trie.track_not_offloaded();
        self.paging = Some(Paging::new(pager, has_copies));
        self.copied_blocks = CopiedBlocks::new(pager.label_bytes_max());
        self
    }

    /// Returns the messages to the pager since the last call, in order.
    pub fn take_outbox(&mut self) -> Vec<pager::Message> {
        let paging = self.paging.as_mut();
        paging.map_or_else(Vec::new, Paging::take_outbox)
    }

    /// Handles an event from the pager.
    pub(super) fn pager_event(&mut self, pager_event: PagerEvent, effects: &mut Vec<Effect>) {
        let Some(paging) = self.paging.as_mut() else {
            return;
        };
        if let PagerEvent::Placed { places } = pager_event {
            // Copies outlive a reset of the device.
            for place in places {
                self.copied_blocks
                    .place(place.copy, place.in_host, place.on_disk);
            }
            return;
        }
        if !paging.accepts(&pager_event) {
            return;
        }
        match pager_event {
            PagerEvent::Reset => unreachable!("the pager confirms each reset once"),
            PagerEvent::Placed { .. } => unreachable!("it is handled above"),
            PagerEvent::Gone => self.lose_pager(effects),
            PagerEvent::Export { segment, copy } => {
                if let Some(backup) = paging.take_backup(segment) {
                    self.export_backup(segment, backup, copy, effects);
                } else if paging.accept_export(segment, copy) {
                    effects.push(Effect::Edit(Edit::Export { segment, copy }));
                } else {
                    self.retry_deferred(effects);
                }
            }
            PagerEvent::Offloaded { segment, copy } => {
                self.offload_finished(segment, Some(copy), effects);
            }
            PagerEvent::Rejected { segment } => self.offload_finished(segment, None, effects),
            PagerEvent::Lost { copy } => paging.lose_copy(copy, &mut self.trie),
            PagerEvent::Hit {
                sequence,
                copy_ranges,
            } => self.hit(sequence, copy_ranges, effects),
            PagerEvent::Miss {
                sequence,
                copied_tokens,
            } => self.retry_open_slot(sequence, Some(copied_tokens), effects),
            PagerEvent::Retry { sequence } => self.retry_open_slot(sequence, None, effects),
            PagerEvent::Loaded { sequence, copies } => self.loaded(sequence, &copies, effects),
            PagerEvent::Cancelled { sequence } => {
                if paging.release_confirmed(sequence) {
                    self.retry_deferred(effects);
                }
            }
        }
    }

    /// Whether memory may be released soon.
    pub(super) fn is_memory_leaving(&self) -> bool {
        self.paging.as_ref().is_some_and(Paging::is_memory_leaving)
    }

    /// Defers a request that memory is short for. It is retried when the memory in transit has
    /// been released.
    pub(super) fn defer(&mut self, request: OpenSlot, effects: &mut Vec<Effect>) {
        effects.push(Effect::Deferred {
            sequence: request.sequence,
            tokens: 0,
        });
        self.paging_mut().defer(request);
    }

    /// Defers the extension of a grant if memory is about to be released. Returns whether it
    /// was deferred; it is then answered after the release.
    pub(super) fn defer_grant(&mut self, sequence: SequenceId, tokens_max: usize) -> bool {
        let slot = StarvedSlot {
            sequence,
            tokens_max,
        };
        let paging = self.paging.as_mut();
        paging.is_some_and(|paging| paging.defer_grant(slot))
    }

    /// Retries the deferred requests and extensions after memory was released.
    pub(super) fn retry_deferred(&mut self, effects: &mut Vec<Effect>) {
        let deferred = self.paging_mut().take_deferred();
        self.retry(deferred, effects);
    }

    /// The exchange with the pager.
    ///
    /// # Panics
    ///
    /// If there is no pager. Only a pager's answer, or memory in transit, leads here.
    pub(super) fn paging_mut(&mut self) -> &mut Paging {
        self.paging.as_mut().expect("there is a pager")
    }

    fn retry(&mut self, deferred: Deferred, effects: &mut Vec<Effect>) {
        let (starved, requests) = deferred.into_parts();
        for StarvedSlot {
            sequence,
            tokens_max,
        } in starved
        {
            self.extend_grant(sequence, tokens_max, effects);
        }
        for request in requests {
            self.open_slot(request, WaitPolicy::ALL, effects);
        }
    }

    /// Continues without a pager. Loads that it was asked for are computed instead, and
    /// deferred requests no longer wait for memory in transit. The pager has dropped its
    /// leases.
    fn lose_pager(&mut self, effects: &mut Vec<Effect>) {
        let paging = self.paging.take().expect("there is a pager");
        self.copied_blocks.lose_all();
        let (lookups, deferred) = paging.give_up(&mut self.trie);
        for lookup in lookups {
            self.trie.release(lookup.end);
            self.open_slot(lookup.request, WaitPolicy::ALL, effects);
        }
        self.retry(deferred, effects);
    }
}
