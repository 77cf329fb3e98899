//! Watchers of the page: their limits, and one task that serves them all.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use axum::body::Bytes;
use motet::monitor::{Events, Snapshots};
use motet::{HealthState, UserId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::Page;
use super::frame::Frame;
use super::latency::Latencies;
use crate::error::ApiError;
use crate::keys::KEY_WATCHERS_MAX;

/// Most open pages.
const WATCHERS_MAX: usize = 2 * KEY_WATCHERS_MAX;
/// Time after which a rejected watcher may retry.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// Steps of a frame with their sequences. Earlier steps are only counted.
const STEPS_MAX: usize = 32;

type Frames = watch::Sender<Bytes>;

/// All watchers.
#[derive(Debug)]
pub(super) struct Watchers {
    permits: Arc<Semaphore>,
    /// The channel of frames; it exists while there are watchers.
    frames: Mutex<Weak<Frames>>,
    /// Keys the hash of users' ids, so that users cannot be found by guessing.
    secret: RandomState,
}

/// A watcher. It skips frames that it does not read in time.
pub(super) struct Watcher {
    frames: watch::Receiver<Bytes>,
    _permit: OwnedSemaphorePermit,
    /// A permit of its key, if there are keys.
    _key_permit: Option<OwnedSemaphorePermit>,
}

impl Watcher {
    /// The next frame; `None` when the server shuts down.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        self.frames.changed().await.ok()?;
        Some(self.frames.borrow_and_update().clone())
    }
}

impl Watchers {
    pub(super) fn new() -> Self {
        Self {
            permits: Arc::new(Semaphore::new(WATCHERS_MAX)),
            frames: Mutex::default(),
            secret: RandomState::new(),
        }
    }

    /// Adds a watcher if there is a free permit. `key_permits` are those of its key, if there are
    /// keys.
    pub(super) fn add(
        &self,
        page: &Arc<Page>,
        key_permits: Option<Arc<Semaphore>>,
    ) -> Result<Watcher, ApiError> {
        let key_permit = key_permits.map(Semaphore::try_acquire_owned).transpose();
        let key_permit = key_permit.map_err(|_| {
            let message = format!(
                "this key has {KEY_WATCHERS_MAX} pages open, which is as many as it may have"
            );
            ApiError::busy(message, RETRY_AFTER)
        })?;
        let permit = Arc::clone(&self.permits).try_acquire_owned();
        let permit = permit.map_err(|_| {
            let message =
                format!("{WATCHERS_MAX} pages are open, which is as many as there may be");
            ApiError::busy(message, RETRY_AFTER)
        })?;
        let mut frames = self
            .frames
            .lock()
            .expect("nothing panics while it holds this lock");
        let sender = frames.upgrade().unwrap_or_else(|| {
            let sender = Arc::new(Frames::new(Bytes::new()));
            *frames = Arc::downgrade(&sender);
            let publisher = FramePublisher {
                page: Arc::downgrade(page),
                snapshots: page.app.engine.snapshots(),
                events: page.app.engine.events(),
                latencies: Latencies::default(),
            };
            tokio::spawn(publisher.run(Arc::clone(&sender)));
            sender
        });
        Ok(Watcher {
            frames: sender.subscribe(),
            _permit: permit,
            _key_permit: key_permit,
        })
    }

    /// The name of a user for watchers that may not see its real name.
    pub(super) fn alias(&self, user: UserId) -> String {
        format!("{:06x}", self.secret.hash_one(user) & 0xff_ffff)
    }

    /// Closes the channel and returns true if there are no watchers.
    fn close_if_unwatched(&self, sender: &Frames) -> bool {
        let mut frames = self
            .frames
            .lock()
            .expect("nothing panics while it holds this lock");
        let close_if_unwatched = sender.receiver_count() == 0;
        if close_if_unwatched {
            *frames = Weak::new();
        }
        close_if_unwatched
    }
}

/// Creates the frames while there are watchers. It does not delay the shutdown.
struct FramePublisher {
    page: Weak<Page>,
    snapshots: Snapshots,
    events: Events,
    latencies: Latencies,
}

impl FramePublisher {
    async fn run(mut self, sender: Arc<Frames>) {
        while let Some(snapshot) = self.snapshots.next().await {
            let Some(page) = self.page.upgrade() else {
                return;
            };
            if page.watchers.close_if_unwatched(&sender) {
                return;
            }
            let mut frame = Frame::new(&page, &snapshot, self.events.missed());
            while let Some(event) = self.events.try_next() {
                self.latencies.on_event(snapshot.at, &event);
                frame.on_event(event, STEPS_MAX);
            }
            frame.set_latencies(self.latencies.quantiles(snapshot.at));
            sender.send_replace(frame.event());
            if page.app.engine.health().state == HealthState::Stopped {
                // The last frame: open pages do not delay the shutdown.
                return;
            }
        }
    }
}
