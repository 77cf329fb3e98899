//! Those who watch: how many, and one task that serves them all.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use axum::body::Bytes;
use motet::monitor::{Events, Snapshots};
use motet::{HealthState, UserId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::frame::Frame;
use super::latency::Latencies;
use crate::app::App;
use crate::error::ApiError;

/// Pages that may be open at once.
const WATCHERS_MAX: usize = 8;
/// Pages of one key among them: the other seats stay for other keys.
pub(crate) const KEY_WATCHERS_MAX: usize = WATCHERS_MAX / 2;
/// Who finds the room full is told to come again after so long.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// Steps of which a frame tells who was in them; of those before, only how many there were.
const STEPS_MAX: usize = 32;

type Frames = watch::Sender<Bytes>;

/// The room from which one watches.
#[derive(Debug)]
pub(crate) struct Watchers {
    permits: Arc<Semaphore>,
    /// Where frames come from while somebody watches.
    frames: Mutex<Weak<Frames>>,
    /// Users' ids are hashed by it, so that nobody can find out whose they are by guessing.
    secret: RandomState,
}

/// A watcher's place. Frames that it does not take in time are lost to it.
pub(super) struct Watcher {
    frames: watch::Receiver<Bytes>,
    _permit: OwnedSemaphorePermit,
    /// Where there are keys, one of the key's own.
    _key_permit: Option<OwnedSemaphorePermit>,
}

impl Watcher {
    /// The next frame; none when the server ends.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        self.frames.changed().await.ok()?;
        Some(self.frames.borrow_and_update().clone())
    }
}

impl Watchers {
    pub(crate) fn new() -> Self {
        Self {
            permits: Arc::new(Semaphore::new(WATCHERS_MAX)),
            frames: Mutex::default(),
            secret: RandomState::new(),
        }
    }

    /// Takes a watcher in, or not. Where there are keys, `key_permits` are those of its key.
    pub(super) fn add(
        &self,
        app: &Arc<App>,
        key_permits: Option<Arc<Semaphore>>,
    ) -> Result<Watcher, ApiError> {
        let key_permit = key_permits.map(Semaphore::try_acquire_owned).transpose();
        let key_permit = key_permit.map_err(|_| {
            let message = format!(
                "{KEY_WATCHERS_MAX} pages watch with this key already, which is as many as may"
            );
            ApiError::busy(message, RETRY_AFTER)
        })?;
        let permit = Arc::clone(&self.permits).try_acquire_owned();
        let permit = permit.map_err(|_| {
            let message = format!("{WATCHERS_MAX} watch already, which is as many as may");
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
                app: Arc::downgrade(app),
                snapshots: app.engine.snapshots(),
                events: app.engine.events(),
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

    /// What a user is called, to those who may not know who it is.
    pub(super) fn alias(&self, user: UserId) -> String {
        format!("{:06x}", self.secret.hash_one(user) & 0xff_ffff)
    }

    /// True, and nothing is sent any more, where nobody watches.
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

/// Makes the frames, while somebody watches. It keeps the server from nothing.
struct FramePublisher {
    app: Weak<App>,
    snapshots: Snapshots,
    events: Events,
    latencies: Latencies,
}

impl FramePublisher {
    async fn run(mut self, sender: Arc<Frames>) {
        while let Some(snapshot) = self.snapshots.next().await {
            let Some(app) = self.app.upgrade() else {
                return;
            };
            if app.watchers.close_if_unwatched(&sender) {
                return;
            }
            let mut frame = Frame::new(&app, &snapshot, self.events.missed());
            while let Some(event) = self.events.try_next() {
                self.latencies.on_event(snapshot.at, &event);
                frame.on_event(event, STEPS_MAX);
            }
            frame.set_latencies(self.latencies.quantiles(snapshot.at));
            sender.send_replace(frame.event());
            if app.engine.health().state == HealthState::Stopped {
                // The last frame: open pages do not hold up the end.
                return;
            }
        }
    }
}
