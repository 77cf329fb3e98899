//! The exporter of spans, and the settings that choose it.

use anyhow::{Context, Result, ensure};
use axum::http::Uri;
use opentelemetry_otlp::{OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchSpanProcessor, SdkTracerProvider};

/// Path of traces below an endpoint.
const TRACES: &str = "v1/traces";

/// Settings of traces. Others have variables of OpenTelemetry only.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Traces")]
pub struct TraceSettings {
    /// Export spans to this collector, as http://localhost:4318; without it none are recorded
    ///
    /// OTLP over HTTP, without TLS. Spans wait in a queue of OTEL_BSP_MAX_QUEUE_SIZE (2,048); those that
    /// find it full are dropped. No request waits for an export. OTEL_TRACES_SAMPLER chooses which
    /// traces are recorded.
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    pub otlp_endpoint: Option<String>,

    /// The service's name in exported spans
    #[arg(long, value_name = "NAME", env = "OTEL_SERVICE_NAME")]
    #[arg(default_value = "motet-server")]
    pub otel_service_name: String,
}

impl TraceSettings {
    /// The provider whose spans are exported; `None` without an endpoint, and where
    /// `OTEL_SDK_DISABLED` is true.
    ///
    /// # Errors
    ///
    /// When the endpoint is no URL that this build can export to.
    pub fn provider(&self) -> Result<Option<SdkTracerProvider>> {
        let is_disabled = variable("OTEL_SDK_DISABLED")
            .is_some_and(|disabled| disabled.eq_ignore_ascii_case("true"));
        let Some(endpoint) = self.traces_endpoint().filter(|_| !is_disabled) else {
            return Ok(None);
        };
        check_endpoint(&endpoint).with_context(|| format!("cannot export to {endpoint:?}"))?;
        let exporter = SpanExporter::builder()
            .with_http()
            .with_endpoint(endpoint)
            .build()
            .context("cannot create the exporter of spans")?;
        let resource = Resource::builder().with_service_name(self.otel_service_name.clone());
        let provider = SdkTracerProvider::builder()
            .with_resource(resource.build())
            .with_span_processor(BatchSpanProcessor::builder(exporter).build());
        Ok(Some(provider.build()))
    }

    /// The URL that spans are sent to: the variable for traces as it is, or the path of traces below
    /// the common endpoint.
    fn traces_endpoint(&self) -> Option<String> {
        variable(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT).or_else(|| {
            let base = self
                .otlp_endpoint
                .as_ref()
                .filter(|base| !base.is_empty())?;
            Some(format!("{}/{TRACES}", base.trim_end_matches('/')))
        })
    }
}

/// Exports the spans that wait, and ends the export. It takes five seconds at most.
///
/// # Cancel safety
///
/// Dropping the future leaves the export to a thread of its own.
pub async fn export_rest(provider: SdkTracerProvider) {
    // It waits for the export.
    let ended = tokio::task::spawn_blocking(move || provider.shutdown()).await;
    if let Ok(Err(error)) = ended {
        tracing::warn!("spans were lost at the end: {error}");
    }
}

/// A variable of the environment; an empty one is not set.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn check_endpoint(endpoint: &str) -> Result<()> {
    let url: Uri = endpoint.parse().context("it is not a URL")?;
    ensure!(
        url.scheme_str() == Some("http") && url.host().is_some(),
        "expected http://HOST:PORT: the server has no TLS of its own; a collector beside it can \
         send on with TLS"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn provider(endpoint: &str) -> Result<Option<SdkTracerProvider>> {
        let settings = TraceSettings {
            otlp_endpoint: Some(endpoint.to_owned()),
            otel_service_name: "a server".into(),
        };
        settings.provider()
    }

    #[test]
    fn endpoint_is_checked_at_the_start() {
        for wrong in [
            "https://collector:4318",
            "collector",
            "http://",
            "ftp://a",
            "http://a b",
        ] {
            let error = provider(wrong).expect_err(wrong);
            assert!(format!("{error:#}").contains("export"), "{error:#}");
        }
        assert!(provider("").expect("an empty one is none").is_none());
        assert!(provider("http://127.0.0.1:9/").expect("a URL").is_some());
    }

    #[test]
    fn traces_have_a_path_of_their_own() {
        for (base, expected) in [
            ("http://a:4318", "http://a:4318/v1/traces"),
            ("http://a:4318/", "http://a:4318/v1/traces"),
            ("http://a/otlp", "http://a/otlp/v1/traces"),
        ] {
            let settings = TraceSettings {
                otlp_endpoint: Some(base.into()),
                ..TraceSettings::default()
            };
            assert_eq!(settings.traces_endpoint().as_deref(), Some(expected));
        }
    }
}
