//! Start of the pager, where there is one.

use std::sync::Arc;
use std::time::Duration;

use kameo::actor::{ActorRef, Spawn, WeakActorRef};
use kameo::mailbox;
use tokio::sync::{mpsc, oneshot};

use crate::actors::cache::{AttachPager, CacheActor};
use crate::actors::pager::{ASKED_MAX, DONE_MAX, PAGER_MAILBOX_MAX, PagerActor, PagerArgs};
use crate::copy_workers::{CopyWorkers, Reports, Stores};
use crate::error::StartError;
use crate::runtime::{EngineRuntime, Runtime};
use crate::telemetry::Telemetry;
use motet_core::config::{ConfigError, PagerConfig, Precision, RecoveryConfig};
use motet_core::pager::{Asked, Done, Label, PagerCore, RecoveryLog, Sizes};
use motet_core::recovery::Breaker;
use motet_device::HostEnd;
use motet_model::{DetachedState, Model, Packer};
use motet_protocol::CopyId;
use motet_protocol::remote::{RemoteModel, RemoteTier};
use motet_protocol::{ModelError, ModelSpec, SegmentSize};
use motet_storage::copy_worker::{Host, SharedTier};
use motet_storage::tiers::precision::EightBits;
use motet_storage::tiers::{BufferPool, DiskLimits, DiskTier};

/// Most host memory kept for the next copy, as a fraction of the whole (one part in this many).
const IDLE_BUFFERS_DIVISOR: usize = 8;

/// Copies from an earlier run.
type FoundCopies = Vec<(CopyId, Label)>;

/// The parts of a pager.
pub(super) struct PagerParts {
    core: PagerCore,
    recovery_log: RecoveryLog,
    copy_workers: CopyWorkers,
    done: mpsc::Receiver<Done>,
    asked: mpsc::Receiver<Asked>,
    found: bool,
    flush_time: Duration,
    gone: oneshot::Receiver<()>,
    runtime: EngineRuntime,
}

impl PagerParts {
    /// Creates the parts; `None` where the settings have no pager. `identity` is the packer's: it
    /// is needed where there is a tier on disk, or a remote one.
    pub(super) fn new<M: Model>(
        spec: &ModelSpec,
        (config, remote): (&PagerConfig, Option<Arc<dyn RemoteTier>>),
        (packer, identity): (M::Packer, Option<u64>),
        host_end: HostEnd<DetachedState<M>>,
        export_timeout: Duration,
        runtime: EngineRuntime,
    ) -> Result<Option<Self>, StartError> {
        if config.host_bytes_max == 0 {
            return Ok(None);
        }
        if !M::Packer::HAS_STATE {
            let what = "`pager.host_bytes_max` above 0: it exports no state";
            return Err(ModelError::NotSupported { what }.into());
        }
        // Memory kept for the next copy counts as host memory too.
        let idle_bytes = config.host_bytes_max / IDLE_BUFFERS_DIVISOR;
        let pool = BufferPool::new(idle_bytes);
        // Labels of copies count too.
        let label_bytes = config.label_bytes_max();
        let mut config = PagerConfig {
            host_bytes_max: config.host_bytes_max - idle_bytes - label_bytes,
            label_bytes_max: Some(label_bytes),
            ..config.clone()
        };
        let (disk, found) = open_disk(identity, &mut config, pool.clone())?;
        let has_copies = !found.is_empty();
        let sizes = sizes(packer.clone(), config.precision)?;
        let recovery_log = RecoveryLog::new(&found);
        let core = PagerCore::new(spec.clone(), config.clone(), sizes, found);
        let stores = Stores {
            pool,
            host: Host::new(config.host_bytes_max),
            disk,
            remote: shared_tier(remote, spec, &config, identity),
            export_timeout,
        };
        let (done_sender, done) = mpsc::channel(DONE_MAX);
        let (asked_sender, asked) = mpsc::channel(ASKED_MAX);
        let reports = Reports {
            done: done_sender,
            asked: asked_sender,
        };
        let (alive, gone) = oneshot::channel();
        let alive = Arc::new(alive);
        let copy_workers = CopyWorkers::start(packer, host_end, stores, reports, &alive, &runtime)
            .map_err(StartError::Pager)?;
        Ok(Some(Self {
            core,
            recovery_log,
            copy_workers,
            runtime,
            done,
            asked,
            found: has_copies,
            flush_time: config.flush_time,
            gone,
        }))
    }

    /// Whether copies from an earlier run were found.
    pub(super) fn found(&self) -> bool {
        self.found
    }

    /// Starts the pager for this cache and returns its reference. The receiver resolves when
    /// the pager and its threads are gone.
    pub(super) async fn attach(
        self,
        cache: &ActorRef<CacheActor>,
        telemetry: &Arc<Telemetry>,
        recovery: &RecoveryConfig,
    ) -> (WeakActorRef<PagerActor>, oneshot::Receiver<()>) {
        // Copies from an earlier run count from the start.
        telemetry.pager(self.core.stats());
        let mailbox_max = self.runtime.mailbox_max(PAGER_MAILBOX_MAX);
        let args = PagerArgs {
            core: self.core,
            recovery_log: self.recovery_log,
            breaker: Breaker::new(recovery.clone()),
            copy_workers: self.copy_workers,
            done: self.done,
            asked: self.asked,
            cache: cache.clone().recipient().downgrade(),
            telemetry: Arc::clone(telemetry),
            flush_time: self.flush_time,
            runtime: self.runtime,
        };
        let pager = PagerActor::spawn_with_mailbox(args, mailbox::bounded(mailbox_max));
        let weak_pager = pager.downgrade();
        // A cache that has just been started is alive.
        cache.tell(AttachPager(pager)).send().await.ok();
        (weak_pager, self.gone)
    }
}

/// Opens the disk tier, if there is one, and returns the copies on it. Files that were left in
/// place reduce the disk's bytes in `config`.
fn open_disk(
    identity: Option<u64>,
    config: &mut PagerConfig,
    pool: BufferPool,
) -> Result<(Option<DiskTier>, FoundCopies), StartError> {
    let label_bytes_max = config.label_bytes_max();
    let precision = config.precision;
    let (Some(disk), Some(model)) = (&mut config.disk, identity) else {
        return Ok((None, Vec::new()));
    };
    let identity = identity_of_copies(model, precision);
    let limits = DiskLimits {
        bytes_max: disk.bytes_max,
        label_bytes_max,
    };
    let (tier, found) = DiskTier::open(&disk.folder, limits, identity, pool, CopyId(1))?;
    if let Some(exposed) = &found.exposed {
        tracing::warn!("users' prompts and outputs may be readable by others: {exposed}");
    }
    for (path, why) in &found.removed {
        tracing::warn!("removed: {}: {why}", path.display());
    }
    for (path, why) in &found.left {
        tracing::warn!("not imported, and left in place: {}: {why}", path.display());
    }
    if found.left_bytes > 0 {
        tracing::warn!(
            "{} of the {} bytes of the disk tier are occupied by files left in {}",
            found.left_bytes,
            disk.bytes_max,
            disk.folder.display()
        );
    }
    disk.bytes_max = disk.bytes_max.saturating_sub(found.left_bytes);
    Ok((Some(tier), found.copies))
}

/// Returns the remote tier for this model, if there is one.
fn shared_tier(
    tier: Option<Arc<dyn RemoteTier>>,
    spec: &ModelSpec,
    config: &PagerConfig,
    identity: Option<u64>,
) -> Option<SharedTier> {
    let config_of_tier = config.remote.clone()?;
    let model = RemoteModel {
        identity: identity_of_copies(identity?, config.precision),
        grid_tokens: config_of_tier.grid_tokens,
        whole: !spec.resumes_anywhere(),
    };
    Some(SharedTier {
        tier: tier?,
        model,
        config: config_of_tier,
    })
}

/// Returns the identity of copies of this model's state at this precision.
fn identity_of_copies(model: u64, precision: Precision) -> u64 {
    match precision {
        Precision::Full => model,
        // Copies written with eight bits have lost bits: a run with full precision must not use
        // them.
        Precision::Eight => model.rotate_left(1) ^ 0x9E37_79B9_7F4A_7C15,
    }
}

/// Returns the function that computes the sizes of copies.
fn sizes<K: Packer>(packer: K, precision: Precision) -> Result<Sizes, StartError> {
    let has_floats = !packer.floats(SegmentSize::whole(1)).is_empty();
    if precision == Precision::Eight && !has_floats {
        return Err(StartError::Config(ConfigError {
            field: "pager.precision",
            found: "eight bits".into(),
            expected: "full precision: this model's state cannot be rounded".into(),
        }));
    }
    Ok(Box::new(move |segment_size| {
        let full = packer.packed_bytes(segment_size);
        if precision == Precision::Full {
            return (full, Precision::Full);
        }
        let eight = EightBits(packer.floats(segment_size)).eight_bytes(full);
        match eight.filter(|eight| *eight < full) {
            Some(eight) => (eight, Precision::Eight),
            None => (full, Precision::Full),
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantized_copies_have_another_identity() {
        for model in [0, 1, u64::MAX] {
            let stored =
                [Precision::Full, Precision::Eight].map(|stored| identity_of_copies(model, stored));
            assert_eq!(stored[0], model);
            assert_ne!(stored[0], stored[1]);
        }
    }
}
