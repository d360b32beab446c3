//! Log lines, and traces in builds with the feature `otel`.

use std::io::IsTerminal;

use anyhow::Context;
use clap::{Args, ValueEnum};
use tracing::Subscriber;
use tracing_subscriber::{
    EnvFilter, Layer, layer::SubscriberExt, registry::LookupSpan, util::SubscriberInitExt,
};

/// The log, and traces.
#[derive(Args, Debug)]
#[group(skip)]
pub(crate) struct TelemetryArgs {
    /// Format of log lines. RUST_LOG sets the level (default: info).
    #[arg(long, env = "LESSOR_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,

    /// Collector of traces (OTLP over HTTP), such as http://localhost:4318, in builds with the feature otel. Default: none.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL", value_parser = endpoint)]
    otlp_endpoint: Option<String>,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum LogFormat {
    /// Plain text.
    Text,
    /// One JSON object per line.
    Json,
}

/// Starts logging and tracing, inside of a runtime. The exporter is to be [ended](TraceExporter::end) last.
///
/// # Errors
/// When `RUST_LOG` is invalid, or no exporter can be built.
pub(crate) fn start(args: &TelemetryArgs) -> anyhow::Result<TraceExporter> {
    let lines = lines(args.log_format, filter()?);
    let traces = TraceExporter::new(args.otlp_endpoint.as_deref())?;
    tracing_subscriber::registry().with(lines).with(traces.layer()).init();
    if args.otlp_endpoint.is_some() && !TraceExporter::BUILT_IN {
        tracing::warn!("--otlp-endpoint is set, but this build sends no traces: it needs the feature otel");
    }
    Ok(traces)
}

/// Libraries that log every failed request and every closed watch, without a cause. We log outages with their cause, once in a
/// while.
const NOISY: [&str; 2] = ["kube_client::client", "rustls_platform_verifier"];

fn filter() -> anyhow::Result<EnvFilter> {
    filter_of(&std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_default())
}

/// The filter of these directives, `info` if there are none. Noisy libraries are off unless a directive names them.
fn filter_of(text: &str) -> anyhow::Result<EnvFilter> {
    let mut directives = vec![if text.is_empty() { "info" } else { text }.to_owned()];
    let unnamed =
        NOISY.iter().filter(|noisy| noisy.split("::").next().is_some_and(|name| !text.contains(name)));
    directives.extend(unnamed.map(|noisy| format!("{noisy}=off")));
    EnvFilter::try_new(directives.join(",")).with_context(|| {
        format!(
            "invalid RUST_LOG {text:?}: expected a level such as info, or more, such as info,lessor=debug"
        )
    })
}

fn lines<S: Subscriber + for<'a> LookupSpan<'a>>(format: LogFormat, filter: EnvFilter) -> impl Layer<S> {
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let lines = lines.with_target(false).with_ansi(std::io::stderr().is_terminal());
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    lines.with_filter(filter)
}

fn endpoint(text: &str) -> Result<String, String> {
    let url = text.trim_end_matches('/');
    let host = url.strip_prefix("http://").unwrap_or_default();
    if host.is_empty() || host.contains(|c: char| c.is_whitespace()) {
        return Err(format!("invalid endpoint {text:?}: expected http://HOST:PORT, without TLS"));
    }
    Ok(url.to_owned())
}

#[cfg(feature = "otel")]
mod exporting {
    use anyhow::Context;
    use opentelemetry::{KeyValue, trace::TracerProvider};
    use opentelemetry_otlp::{SpanExporter, WithExportConfig};
    use opentelemetry_sdk::{
        Resource, runtime,
        trace::{SdkTracerProvider, span_processor_with_async_runtime::BatchSpanProcessor},
    };
    use tracing::{Level, Subscriber};
    use tracing_subscriber::{Layer, filter::Targets, registry::LookupSpan};

    /// Sends traces to a collector.
    pub(crate) struct TraceExporter(Option<SdkTracerProvider>);

    impl TraceExporter {
        pub(super) const BUILT_IN: bool = true;

        pub(super) fn new(endpoint: Option<&str>) -> anyhow::Result<Self> {
            let Some(endpoint) = endpoint else { return Ok(Self(None)) };
            let exporter = SpanExporter::builder().with_http().with_endpoint(format!("{endpoint}/v1/traces"));
            let exporter = exporter.build().with_context(|| format!("can't send traces to {endpoint}"))?;
            let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
            let resource = Resource::builder().with_service_name("lessor").with_attribute(version).build();
            let batches = BatchSpanProcessor::builder(exporter, runtime::Tokio).build();
            let provider = SdkTracerProvider::builder().with_span_processor(batches).with_resource(resource);
            Ok(Self(Some(provider.build())))
        }

        /// Exports only our own spans.
        pub(super) fn layer<S: Subscriber + for<'a> LookupSpan<'a>>(&self) -> Option<impl Layer<S> + use<S>> {
            let tracer = self.0.as_ref()?.tracer("lessor");
            let ours = Targets::new().with_target("lessor", Level::DEBUG);
            Some(tracing_opentelemetry::layer().with_tracer(tracer).with_filter(ours))
        }

        /// Sends the remaining spans. To be called outside of the runtime, which sends them.
        pub(crate) fn end(self) {
            if let Some(Err(error)) = self.0.map(|provider| provider.shutdown()) {
                tracing::warn!(%error, "the last traces were not sent");
            }
        }
    }
}

#[cfg(not(feature = "otel"))]
mod exporting {
    use tracing_subscriber::layer::Identity;

    /// Builds without the feature `otel` export nothing.
    pub(crate) struct TraceExporter;

    impl TraceExporter {
        pub(super) const BUILT_IN: bool = false;

        pub(super) fn new(_endpoint: Option<&str>) -> anyhow::Result<Self> {
            Ok(Self)
        }

        pub(super) fn layer(&self) -> Identity {
            Identity::new()
        }

        /// Does nothing.
        pub(crate) fn end(self) {}
    }
}

pub(crate) use exporting::TraceExporter;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noisy_libraries_are_off_unless_they_are_asked_for() {
        let enabled = |text: &str| {
            let subscriber = tracing_subscriber::registry().with(filter_of(text).unwrap());
            tracing::subscriber::with_default(subscriber, || {
                let kube = tracing::enabled!(target: "kube_client::client::builder", tracing::Level::ERROR);
                (kube, tracing::enabled!(target: "lessor::connectivity", tracing::Level::WARN))
            })
        };
        assert_eq!(enabled(""), (false, true));
        assert_eq!(enabled("warn"), (false, true));
        assert_eq!(enabled("kube_client=debug"), (true, false));
        assert!(filter_of("lessor=loud").unwrap_err().to_string().contains("\"lessor=loud\""));
    }

    #[test]
    fn an_endpoint_is_a_url_without_tls() {
        assert_eq!(endpoint("http://localhost:4318/"), Ok("http://localhost:4318".to_owned()));
        for wrong in ["", "localhost:4318", "https://localhost:4318", "http://", "http://a b"] {
            let error = endpoint(wrong).unwrap_err();
            assert!(error.contains(wrong) && error.contains("http://HOST:PORT"), "{error}");
        }
    }
}
