use std::path::PathBuf;

use motet::config::{DiskConfig, EngineConfig};

/// Offloads segments to host memory. At the end, the cache is written to a folder for the next
/// start.
fn with_tiers(folder: PathBuf) -> EngineConfig {
    let mut config = EngineConfig::default();
    config.pager.host_bytes_max = 8 << 30;
    let bytes_max = 64 << 30;
    config.pager.disk = Some(DiskConfig { folder, bytes_max });
    config
}

// The guide shows what stands above.

#[tokio::test]
async fn restart_loads_cached_state() {
    use std::time::Duration;

    use motet::model::oracle::{OracleConfig, StepCost};
    use motet::{Request, Shutdown, TokenId};

    use crate::common::engine;
    use motet_testkit::folder::Folder;

    let folder = Folder::new("guide-tiers");
    let oracle = OracleConfig {
        // Loading is faster than computing.
        cost: StepCost {
            per_token: Duration::from_micros(50),
            ..StepCost::default()
        },
        ..OracleConfig::default()
    };
    let prompt: Vec<TokenId> = (1..200).collect();
    let request = Request::tokens(prompt).output_tokens_max(4);
    let first = engine(&oracle, with_tiers(folder.0.clone())).await;
    let stream = first.submit(request.clone()).await.expect("it is accepted");
    stream.collect().await.expect("an output");
    first.shutdown(Shutdown::Finish).await;

    let second = engine(&oracle, with_tiers(folder.0.clone())).await;
    assert!(second.stats().pager.disk_copies > 0, "a file was found");
    let stream = second.submit(request).await.expect("it is accepted");
    let usage = stream.collect().await.expect("an output").finish.usage;
    assert!(usage.cached_tokens > 100, "{usage:?}");
    assert!(second.stats().pager.read > 0, "it came from the disk");
    second.shutdown(Shutdown::Finish).await;
}
