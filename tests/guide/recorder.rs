use std::time::Duration;

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

/// Call this before the engine starts. The handle's `render()` answers `GET /metrics`.
fn install_recorder() -> Result<PrometheusHandle, BuildError> {
    let seconds = Matcher::Suffix("_seconds".into());
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(seconds, &[0.001, 0.01, 0.1, 1.0, 10.0])?
        .install_recorder()?;
    let recorder = handle.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(5)).await;
            recorder.run_upkeep(); // without it, histograms grow until the next render
        }
    });
    Ok(handle)
}

// The guide shows what stands above.

#[tokio::test]
async fn engine_metrics_are_recorded() {
    use motet::Request;

    let recorder = install_recorder().expect("the first of this process");
    let engine = crate::speaking().await;
    let request = Request::tokens([1, 2, 3]).output_tokens_max(8);
    let stream = engine.submit(request).await.expect("it is accepted");
    stream.collect().await.expect("an output");
    let text = recorder.render();
    let tokens = text
        .lines()
        .find_map(|line| line.strip_prefix("motet_generation_tokens_total "))
        .expect("the series");
    // Engines of other tests may count as well.
    assert!(tokens.parse::<u64>().expect("a number") >= 8, "{tokens}");
    assert!(text.contains("motet_step_seconds_bucket{le=\"0.01\"}"));
}
