//! The folder is lost while the engine serves from it, and comes back.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use motet::cache::PagerStats;
use motet::{Engine, Shutdown};

use crate::common::{engine, until};
use crate::{config, oracle, serve};
use motet_testkit::folder::Folder;

/// Longer than the pager leaves a failed disk alone.
const REST: Duration = Duration::from_secs(11);
/// More users than fit into host memory, so that most of their state comes from the disk.
const USERS: u32 = 20;

/// Records the gauge of this name; all other metrics are dropped.
struct GaugeRecorder(&'static str, Arc<AtomicU64>);

impl GaugeRecorder {
    fn is_set(&self) -> bool {
        f64::from_bits(self.1.load(Ordering::Relaxed)) > 0.0
    }
}

impl Recorder for GaugeRecorder {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        if key.name() == self.0 {
            Gauge::from_arc(Arc::clone(&self.1))
        } else {
            Gauge::noop()
        }
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// An engine, the folder that it serves from, and the gauge that reports its health.
struct Served {
    folder: Folder,
    engine: Engine,
    gauge: GaugeRecorder,
}

impl Served {
    async fn new(name: &str) -> Self {
        let oracle = oracle(0);
        let folder = Folder::new(name);
        let mut config = config(&oracle, &folder.0);
        // Two pages, beside the labels of copies and the reserve for the next copy.
        config.pager.host_bytes_max = 76 * 4096;
        let gauge = GaugeRecorder("motet_pager_disk_degraded", Arc::default());
        let engine = {
            let _here = metrics::set_default_local_recorder(&gauge);
            engine(&oracle, config).await
        };
        let served = Self {
            folder,
            engine,
            gauge,
        };
        served.serve(0).await;
        served.serve(0).await;
        until("something is written and read", || {
            let stats = served.stats();
            stats.written > 0 && stats.read > 0
        })
        .await;
        assert!(!served.is_degraded(), "{:?}", served.stats());
        served
    }

    fn stats(&self) -> PagerStats {
        self.engine.stats().pager
    }

    /// Serves all users in turn, and some that are new in this round. Each output equals the
    /// reference run's.
    async fn serve(&self, round: u32) {
        let new_users = USERS * (round + 1)..USERS * (round + 2);
        for users in [0..USERS, new_users] {
            serve(&self.engine, &oracle(0), users).await;
        }
    }

    fn is_degraded(&self) -> bool {
        let degraded = self.engine.health().disk_degraded;
        assert_eq!(degraded, self.gauge.is_set(), "the gauge says the same");
        degraded
    }

    /// Serves while the folder is lost, and while it stays lost.
    async fn serve_without_disk(&self) -> PagerStats {
        for round in 1..4 {
            self.serve(round).await;
            until("it says so", || self.engine.health().disk_degraded).await;
            assert!(self.is_degraded());
            rest().await;
            assert!(self.is_degraded(), "it has not worked since");
        }
        self.stats()
    }

    /// Serves until the folder is usable again.
    async fn check_recovery(self) {
        let before = self.stats();
        for round in 4..20 {
            rest().await;
            self.serve(round).await;
            let now = self.stats();
            let works = now.read > before.read && now.written > before.written;
            if works && !self.is_degraded() {
                break;
            }
        }
        let after = self.stats();
        assert!(!self.is_degraded(), "{after:?}");
        assert!(after.read > before.read, "{after:?}");
        assert!(after.written > before.written, "{after:?}");
        let bytes_max = 1 << 20;
        let files = fs::read_dir(&self.folder.0).expect("a folder");
        let bytes = files.map(|file| file.expect("a file").metadata().expect("it is there").len());
        let bytes: u64 = bytes.sum();
        assert!(bytes <= bytes_max, "{bytes} bytes of files");
        self.engine.shutdown(Shutdown::Finish).await;
    }
}

/// Advances the clock while no request is in the engine, and lets the pager see it.
async fn rest() {
    tokio::time::pause();
    tokio::time::advance(REST).await;
    tokio::time::resume();
    tokio::time::sleep(Duration::from_millis(20)).await;
}

/// Path of the folder while it is moved aside.
fn aside(folder: &Path) -> PathBuf {
    folder.with_extension("aside")
}

#[tokio::test]
async fn engine_serves_without_a_removed_folder() {
    let served = Served::new("lost-removed").await;
    fs::remove_dir_all(&served.folder.0).expect("ours");
    served.serve_without_disk().await;
    // A person creates it again: all its files are lost.
    fs::create_dir(&served.folder.0).expect("the file system works");
    served.check_recovery().await;
}

#[tokio::test]
async fn folder_that_returns_is_used_again() {
    let served = Served::new("lost-moved").await;
    let elsewhere = Folder(aside(&served.folder.0));
    let before = served.stats();
    fs::rename(&served.folder.0, &elsewhere.0).expect("ours");
    let without = served.serve_without_disk().await;
    assert_eq!(without.disk_copies, before.disk_copies, "none is given up");
    fs::rename(&elsewhere.0, &served.folder.0).expect("ours");
    served.check_recovery().await;
}

#[tokio::test]
async fn file_in_place_of_the_folder_is_left_alone() {
    let served = Served::new("lost-file").await;
    let elsewhere = Folder(aside(&served.folder.0));
    fs::rename(&served.folder.0, &elsewhere.0).expect("ours");
    fs::write(&served.folder.0, "mine").expect("the file system works");
    served.serve_without_disk().await;
    let mine = fs::read(&served.folder.0).expect("it is there");
    assert_eq!(mine, b"mine");
    fs::remove_file(&served.folder.0).expect("ours");
    fs::rename(&elsewhere.0, &served.folder.0).expect("ours");
    served.check_recovery().await;
}

#[cfg(unix)]
#[tokio::test]
async fn read_only_folder_is_still_read() {
    use crate::unprivileged::{is_bound, permit};
    if !is_bound("lost::read_only_folder_is_still_read") {
        return;
    }
    let served = Served::new("lost-read-only").await;
    let before = served.stats();
    permit(&served.folder.0, 0o555);
    let without = served.serve_without_disk().await;
    assert_eq!(without.written, before.written);
    assert!(without.read > before.read, "{without:?}");
    permit(&served.folder.0, 0o755);
    served.check_recovery().await;
}

#[cfg(unix)]
#[tokio::test]
async fn engine_serves_without_an_inaccessible_folder() {
    use crate::unprivileged::{is_bound, permit};
    if !is_bound("lost::engine_serves_without_an_inaccessible_folder") {
        return;
    }
    let served = Served::new("lost-shut").await;
    let before = served.stats();
    permit(&served.folder.0, 0o000);
    let without = served.serve_without_disk().await;
    assert_eq!(
        (without.read, without.written),
        (before.read, before.written)
    );
    permit(&served.folder.0, 0o755);
    served.check_recovery().await;
}
