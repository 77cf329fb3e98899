//! A model's files are checked while the engine runs, and before an identity is computed from
//! them.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::small;
use motet::config::DiskConfig;
use motet::error::{StartError, SubmitError};
use motet::model::ModelError;
use motet::model::oracle::{Oracle, OracleConfig};
use motet::{Engine, EngineBuilder, Request, Shutdown};
use motet_testkit::folder::Folder;

/// An engine whose model's file has changed once `changed` is set.
fn builder(changed: &Arc<AtomicBool>) -> EngineBuilder {
    let changed = Arc::clone(changed);
    let oracle = || Ok(Oracle::new(OracleConfig::default()).expect("a valid oracle"));
    Engine::builder(oracle).check_files(move || {
        if !changed.load(Ordering::SeqCst) {
            return Ok(());
        }
        Err(ModelError::FileChanged {
            path: PathBuf::from("tiny.gguf"),
        })
    })
}

#[tokio::test]
async fn health_names_a_file_that_has_changed_and_new_work_is_rejected() {
    let changed = Arc::new(AtomicBool::new(false));
    let mut config = small();
    config.scheduler.unread_tokens_max = 4;
    let engine = builder(&changed).config(config).start().await;
    let engine = engine.expect("the engine starts");
    let request = || Request::tokens([1, 2, 3]).output_tokens_max(100);
    // Time passes as soon as nothing else is to be done.
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(engine.health().files_changed, None);
    let inside = engine.submit(request()).await.expect("it is admitted");
    changed.store(true, Ordering::SeqCst);
    let mut reason = None;
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_secs(6)).await;
        reason = engine.health().files_changed;
        if reason.is_some() {
            break;
        }
    }
    let reason = reason.expect("it is told");
    assert!(reason.contains("tiny.gguf has changed"), "{reason}");
    tokio::time::resume();
    // The request inside goes on, and no new one is admitted.
    let completion = inside.collect().await.expect("it goes on");
    assert_eq!(completion.tokens.len(), 100);
    let rejected = engine.submit(request()).await.expect_err("new work");
    assert!(
        matches!(&rejected, SubmitError::Broken { reason } if reason.contains("tiny.gguf")),
        "{rejected}"
    );
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn files_that_have_changed_give_no_identity() {
    let folder = Folder::new("changed-identity");
    let mut config = small();
    config.pager.host_bytes_max = 1 << 20;
    config.pager.disk = Some(DiskConfig {
        folder: folder.0.clone(),
        bytes_max: 1 << 20,
    });
    let changed = Arc::new(AtomicBool::new(true));
    let started = builder(&changed).config(config).start().await;
    let error = started.expect_err("copies would have the identity of other files");
    assert!(
        matches!(error, StartError::Model(ModelError::FileChanged { .. })),
        "{error}"
    );
}
