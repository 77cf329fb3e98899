//! A tier that several processes share, in memory, with faults.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use motet_core::pager::{Ask, Label, PrefixDigest};
use motet_protocol::common_prefix;
use motet_protocol::remote::{RemoteCall, RemoteError, RemoteModel, RemoteTier};

/// The end of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RemoteFault {
    /// It succeeds.
    #[default]
    None,
    /// It fails.
    Fails,
    /// The copy is gone, or damaged.
    Lost,
    /// It never ends.
    Hangs,
    /// It succeeds after this time.
    Slow(Duration),
}

/// A call of the tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A question.
    Find,
    /// A copy is loaded.
    Load,
    /// A copy is stored.
    Store,
}

/// A shared tier in memory. Clones share one store.
#[derive(Clone, Default)]
pub struct MemoryRemote(Arc<Mutex<Store>>);

#[derive(Default)]
struct Store {
    copies: Vec<(RemoteModel, Label, Vec<u8>)>,
    /// The ends of the next calls.
    faults: VecDeque<RemoteFault>,
    /// Decides about calls after those.
    schedule: Option<Schedule>,
    /// All calls so far.
    calls: Vec<Call>,
}

type Schedule = Box<dyn FnMut(Call) -> RemoteFault + Send>;

impl MemoryRemote {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The next calls, in this order, end so.
    pub fn fault(&self, faults: impl IntoIterator<Item = RemoteFault>) {
        self.store().faults.extend(faults);
    }

    /// Later calls end as this function says.
    pub fn fault_by(&self, schedule: impl FnMut(Call) -> RemoteFault + Send + 'static) {
        self.store().schedule = Some(Box::new(schedule));
    }

    /// Number of such calls so far.
    #[must_use]
    pub fn calls(&self, call: Call) -> usize {
        let store = self.store();
        store.calls.iter().filter(|made| **made == call).count()
    }

    /// Number of the copies that it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.store().copies.len()
    }

    /// Whether it holds no copies.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops the copies whose numbers, in the order in which they came, are not kept.
    pub fn retain(&self, is_kept: impl Fn(usize) -> bool) {
        let mut number = 0;
        self.store().copies.retain(|_| {
            number += 1;
            is_kept(number - 1)
        });
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits as the next fault has it, and returns its error.
    async fn call(&self, call: Call) -> Result<(), RemoteError> {
        let fault = self.store().next_fault(call);
        match fault {
            RemoteFault::None => Ok(()),
            RemoteFault::Fails => Err(RemoteError::Failed {
                what: "a fault".into(),
            }),
            RemoteFault::Lost => Err(RemoteError::Missing),
            RemoteFault::Hangs => std::future::pending().await,
            RemoteFault::Slow(time) => {
                tokio::time::sleep(time).await;
                Ok(())
            }
        }
    }

    fn found(&self, model: &RemoteModel, ask: &Ask) -> Vec<Label> {
        let store = self.store();
        let mut found = Vec::new();
        let mut reach = ask.from;
        loop {
            let reaches = |label: &Label| {
                let before = ask.tokens.get(..label.start)?;
                let is_ours = label.key == ask.key.at(label.start + 1)
                    && label.start <= reach
                    && label.before == PrefixDigest::of(ask.key, before);
                let rest = &ask.tokens[label.start..];
                let alike = ask.key.tokens_alike(label.start).min(rest.len());
                let shared = common_prefix(&label.tokens, &rest[..alike]);
                let serves = is_ours && (!model.whole || shared == label.tokens.len());
                serves.then_some(label.start + shared)
            };
            let copies = store.copies.iter().filter(|(of, ..)| of == model);
            let best = copies.filter_map(|(_, label, _)| Some((reaches(label)?, label)));
            match best.max_by_key(|(end, _)| *end) {
                Some((end, label)) if end > reach => {
                    reach = end;
                    found.push(label.clone());
                }
                _ => return found,
            }
        }
    }
}

impl Store {
    fn next_fault(&mut self, call: Call) -> RemoteFault {
        self.calls.push(call);
        let next = self.faults.pop_front();
        next.or_else(|| self.schedule.as_mut().map(|schedule| schedule(call)))
            .unwrap_or_default()
    }
}

impl RemoteTier for MemoryRemote {
    fn find<'a>(&'a self, model: &'a RemoteModel, ask: &'a Ask) -> RemoteCall<'a, Vec<Label>> {
        Box::pin(async move {
            self.call(Call::Find).await?;
            Ok(self.found(model, ask))
        })
    }

    fn load<'a>(
        &'a self,
        model: &'a RemoteModel,
        label: &'a Label,
        into: &'a mut [u8],
    ) -> RemoteCall<'a, ()> {
        Box::pin(async move {
            self.call(Call::Load).await?;
            let store = self.store();
            let mut copies = store.copies.iter();
            let found = copies.find(|(of, other, _)| of == model && other == label);
            let (.., bytes) = found.ok_or(RemoteError::Missing)?;
            into.copy_from_slice(bytes);
            Ok(())
        })
    }

    fn store<'a>(
        &'a self,
        model: &'a RemoteModel,
        _path: &'a [Arc<Label>],
        label: &'a Label,
        bytes: &'a [u8],
    ) -> RemoteCall<'a, ()> {
        Box::pin(async move {
            self.call(Call::Store).await?;
            let mut store = self.store();
            let mut copies = store.copies.iter();
            if !copies.any(|(of, other, _)| of == model && other == label) {
                store.copies.push((*model, label.clone(), bytes.to_vec()));
            }
            Ok(())
        })
    }
}

impl fmt::Debug for MemoryRemote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryRemote({} copies)", self.len())
    }
}
