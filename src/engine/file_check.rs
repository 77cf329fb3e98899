//! The check that a model's files are as they were when they were opened.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use motet_protocol::ModelError;

/// Time between two checks. A change is found within a few seconds, and a file system that is far
/// away is not asked often.
const INTERVAL: Duration = Duration::from_secs(5);

/// Looks at the files. It may wait for their file system.
pub(super) type CheckFiles = Arc<dyn Fn() -> Result<(), ModelError> + Send + Sync>;

/// The result of the checks: why the files cannot be trusted any more, if so.
#[derive(Clone, Debug, Default)]
pub(super) struct FileState(Arc<OnceLock<String>>);

impl FileState {
    /// Returns the reason. Never waits.
    pub(super) fn reason(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }

    /// Checks the files from time to time, until `engine` is gone. Bytes may be lost after the first
    /// change too, and the check tells its model.
    pub(super) fn watch<T: Send + Sync + 'static>(&self, check: CheckFiles, engine: Weak<T>) {
        let state = self.clone();
        tokio::spawn(async move {
            while engine.strong_count() > 0 {
                tokio::time::sleep(INTERVAL).await;
                state.check_once(Arc::clone(&check)).await;
            }
        });
    }

    async fn check_once(&self, check: CheckFiles) {
        let checked = tokio::task::spawn_blocking(move || check()).await;
        // A check that panics says nothing of the files.
        if let Ok(Err(error)) = checked {
            self.0.get_or_init(|| {
                tracing::error!("the model's answers can no longer be trusted: {error}");
                error.to_string()
            });
        }
    }
}
