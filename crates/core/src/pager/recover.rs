//! A core takes the place of one that has panicked.
//!
//! Nothing but the [`Ledger`] is believed. What was on its way goes on where that costs
//! nothing: what leaves the device, reads, writes. Whoever waited for copies computes
//! instead: what had been brought is thrown away first, and a parcel that is still being made
//! when it is done, so that the device has the room which the cache counts on.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::copies::{Budgets, Copies, Copy, Place};
use super::footprint;
use super::ledger::{Ledger, Standing};
use super::message::{Effect, Task, Told};
use super::{PagerCore, PagerStats, Sizes};
use crate::CopyId;

impl PagerCore {
    /// Takes the place of what this was, by what stands in the ledger, and says what follows.
    /// `stats` are the last that anyone was told. Of a core that has panicked nothing is
    /// looked at but what never changes.
    pub fn take_over(&mut self, now: Duration, ledger: &Ledger, stats: PagerStats) -> Vec<Effect> {
        self.begin_anew(now, stats);
        self.copies = Copies::new(Budgets::of(&self.config), ledger.made);
        for (name, standing) in &ledger.copies {
            self.take_in(*name, standing, ledger);
        }
        self.to_remove.extend(&ledger.lost);
        let unpacks = ledger.unpacks.map(|copy| (copy, Task::Unpack));
        self.lanes_are_at(unpacks, ledger.disk);
        self.void_unpack();
        let mut effects: Vec<Effect> = ledger
            .parcels
            .iter()
            .copied()
            .map(Effect::Discard)
            .collect();
        for (name, standing) in &ledger.copies {
            if standing.is_doomed {
                self.doomed.insert(*name);
            }
            if standing.is_withdrawn {
                self.withdraw(*name, &mut effects);
            }
        }
        self.answer(ledger, &mut effects);
        if ledger.reset_due {
            self.reset(&mut effects);
        }
        self.reap(&mut effects);
        self.start_jobs(&mut effects);
        effects
    }

    /// Forgets everything but what it was made of.
    fn begin_anew(&mut self, now: Duration, stats: PagerStats) {
        let unset: Sizes = Box::new(|_| unreachable!("the sizes are put back at once"));
        let sizes = std::mem::replace(&mut self.sizes, unset);
        *self = Self::new(self.spec.clone(), self.config.clone(), sizes, Vec::new());
        self.now = now;
        self.stats = stats;
    }

    /// A copy is where the ledger says, or on its way there.
    fn take_in(&mut self, name: CopyId, standing: &Standing, ledger: &Ledger) {
        let label = Arc::clone(&standing.label);
        let bytes = footprint::host_bytes(label.bytes);
        let mut copy = Copy::new(Arc::clone(&label), label.extent(), bytes, standing.priority);
        let is_at = |task| ledger.disk == Some((name, task));
        let place = |is_here, comes| match (is_here, comes) {
            (true, _) => Place::Here,
            (false, true) => Place::Coming,
            (false, false) => Place::Away,
        };
        let reads = is_at(Task::Read) && !standing.in_host;
        let writes = is_at(Task::Write) && !standing.on_disk;
        copy.host = place(standing.in_host, standing.is_leaving || reads);
        copy.disk = place(standing.on_disk, writes);
        copy.moves = BTreeSet::from_iter(
            [
                (standing.is_leaving, Task::Pack),
                (reads, Task::Read),
                (writes, Task::Write),
                (ledger.unpacks == Some(name), Task::Unpack),
            ]
            .into_iter()
            .filter_map(|(moves, task)| moves.then_some(task)),
        );
        if standing.is_leaving {
            let mut offers = ledger.offers.iter();
            let offered = offers.find(|offered| offered.copy == Some(name));
            let offered = offered.expect("what leaves was offered");
            copy.lease = Some(offered.lease.clone());
        } else {
            self.index.insert(&label, name);
        }
        self.copies.insert(name, copy);
    }

    /// The cache hears what it waits for, each once.
    fn answer(&mut self, ledger: &Ledger, effects: &mut Vec<Effect>) {
        for offered in &ledger.offers {
            let segment = offered.lease.segment();
            let standing = offered
                .copy
                .and_then(|copy| Some((copy, ledger.copies.get(&copy)?)));
            match standing {
                Some((_, standing)) if standing.is_leaving => {}
                Some((copy, _)) => effects.push(Effect::Tell(Told::Kept { segment, copy })),
                None => effects.push(Effect::Tell(Told::Refused { segment })),
            }
        }
        let wants = ledger.wants.iter().copied().map(Told::nothing);
        let cancels = ledger.cancels.iter().copied().map(Told::cancelled);
        for told in wants.chain(cancels) {
            match ledger.unpacks {
                Some(copy) => self.cancelled.push((copy, told)),
                None => effects.push(Effect::Tell(told)),
            }
        }
    }
}
