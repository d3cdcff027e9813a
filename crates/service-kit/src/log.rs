//! Log lines on stderr, and spans to an OTLP collector when one is named.

use std::io::IsTerminal;

use anyhow::Context;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::{Resource, propagation::TraceContextPropagator, trace::SdkTracerProvider};
use tracing_subscriber::{EnvFilter, Layer, Registry, layer::SubscriberExt, util::SubscriberInitExt};

use crate::{
    CommonArgs, LogFormat,
    profile::{Recorder, RequestSpans},
};

/// Keeps the exporter; flush it before the process ends.
pub(crate) struct Logs {
    traces: Option<SdkTracerProvider>,
}

impl Logs {
    /// Sends what is left to the collector.
    pub(crate) async fn flush(self) {
        if let Some(provider) = self.traces {
            // The exporter blocks on its own thread's answer; this thread may be the runtime's only one.
            let _ = tokio::task::spawn_blocking(move || provider.shutdown()).await;
        }
    }
}

/// Sets up the process's subscriber; profiles get the spans of requests. A second call in the same process (tests)
/// changes nothing.
pub(crate) fn init(service: &'static str, args: &CommonArgs, profile: &Recorder) -> anyhow::Result<Logs> {
    let filter = EnvFilter::try_new(&args.log_level)
        .with_context(|| format!("--log-level {}: not a log filter", args.log_level))?;
    let traces = args.otlp_traces_endpoint.as_deref().map(|url| exporter(service, url)).transpose()?;
    let spans = traces.as_ref().map(|provider| {
        // Spans are cheap to export selectively: only ours, whatever the log filter says.
        let ours = EnvFilter::new(
            "warn,api_gateway=info,tokenizer_svc=info,scheduler_svc=info,worker_svc=info,detokenizer_svc=info",
        );
        tracing_opentelemetry::layer().with_tracer(provider.tracer(service)).with_filter(ours)
    });
    let lines = match args.log_format {
        LogFormat::Text => tracing_subscriber::fmt::layer()
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal())
            .boxed(),
        LogFormat::Json => tracing_subscriber::fmt::layer()
            .json()
            .flatten_event(true)
            .with_current_span(true)
            .with_span_list(false)
            .with_writer(std::io::stderr)
            .boxed(),
    };
    let profiled = RequestSpans::layer(profile);
    let _ = Registry::default().with(lines.with_filter(filter)).with(spans).with(profiled).try_init();
    Ok(Logs { traces })
}

fn exporter(service: &'static str, url: &str) -> anyhow::Result<SdkTracerProvider> {
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_tonic()
        .with_endpoint(url)
        .build()
        .with_context(|| format!("--otlp-traces-endpoint {url}"))?;
    opentelemetry::global::set_text_map_propagator(TraceContextPropagator::new());
    let resource = Resource::builder().with_service_name(service).build();
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}
