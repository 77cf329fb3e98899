//! The recorder of the engine's metrics, with the buckets of `docs/metrics.md`.

use std::time::Duration;

use anyhow::{Context, Result};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

/// The interval at which the recorder sorts its samples into buckets.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(5);

/// The suffix of a metric's name, and the upper bounds of its buckets.
const BUCKETS: [(&str, &[f64]); 8] = [
    ("inter_token_latency_seconds", &STEP_BUCKETS),
    ("step_seconds", &STEP_BUCKETS),
    ("device_idle_seconds", &IDLE_BUCKETS),
    ("_seconds", &START_BUCKETS),
    ("decode_time_seconds", &REQUEST_BUCKETS),
    ("e2e_request_latency_seconds", &REQUEST_BUCKETS),
    ("step_tokens", &TOKEN_BUCKETS),
    ("_bytes", &BYTE_BUCKETS),
];
const STEP_BUCKETS: [f64; 15] = [
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5,
];
const IDLE_BUCKETS: [f64; 11] = [
    1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 0.001, 0.0025, 0.005, 0.01, 0.05,
];
const START_BUCKETS: [f64; 17] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0,
    160.0,
];
const REQUEST_BUCKETS: [f64; 16] = [
    0.1, 0.3, 0.5, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 240.0, 480.0,
];
const TOKEN_BUCKETS: [f64; 15] = [
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0,
    16384.0,
];
const BYTE_BUCKETS: [f64; 6] = [1e4, 1e5, 1e6, 1e7, 1e8, 1e9];

/// Installs the recorder of the engine's metrics.
///
/// # Errors
///
/// Fails if the process already has a recorder.
pub(crate) fn install() -> Result<PrometheusHandle> {
    let builder = builder().expect("each metric has buckets");
    let handle = builder.install_recorder();
    let handle = handle.context("another recorder of metrics is installed")?;
    let maintenance = handle.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(MAINTENANCE_INTERVAL).await;
            maintenance.run_upkeep();
        }
    });
    Ok(handle)
}

fn builder() -> Result<PrometheusBuilder, BuildError> {
    let builder = PrometheusBuilder::new();
    BUCKETS
        .into_iter()
        .try_fold(builder, |builder, (suffix, upper_ends)| {
            builder.set_buckets_for_metric(Matcher::Suffix(suffix.into()), upper_ends)
        })
}
