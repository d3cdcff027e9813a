//! One request can be followed through all processes: by its id in the logs, and as one span tree at a collector.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use e2e_tests::Server;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
    trace_service_server::{TraceService, TraceServiceServer},
};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, transport::Server as GrpcServer};

const PROCESSES: [&str; 5] = ["api-gateway", "tokenizer-svc", "scheduler-svc", "worker-svc", "detokenizer-svc"];

#[tokio::test]
async fn one_id_through_all_logs() -> anyhow::Result<()> {
    let server = Server::start(&["--log-level", "debug", "--log-format", "json"]).await?;
    let (status, answer) =
        server.client().post("/v1/completions", &json!({"prompt": "Hello", "max_tokens": 5})).await?;
    ensure!(status == 200, "{answer}");
    let id = answer["id"].as_str().context("id")?.to_owned();
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let log = server.log();
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(&id)).collect();
        let silent: Vec<_> =
            PROCESSES.iter().filter(|name| !lines.iter().any(|line| line.contains(&name.replace('-', "_")))).collect();
        if silent.is_empty() {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{silent:?} did not log {id}:\n{}", lines.join("\n"));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_span_tree_a_request() -> anyhow::Result<()> {
    let collector = Collector::default();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let endpoint = format!("http://{}", listener.local_addr()?);
    let service = TraceServiceServer::new(collector.clone());
    tokio::spawn(GrpcServer::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener)));
    let server = Server::start(&["--otlp-traces-endpoint", &endpoint]).await?;
    let (status, answer) =
        server.client().post("/v1/completions", &json!({"prompt": "Hello", "max_tokens": 5})).await?;
    ensure!(status == 200, "{answer}");
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let spans = collector.spans.lock().expect("no panic").clone();
        match one_tree(&spans) {
            Ok(()) => return Ok(()),
            Err(why) => ensure!(Instant::now() < deadline, "{why}: {spans:#?}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[derive(Clone)]
struct Span {
    service: String,
    name: String,
    trace: Vec<u8>,
    id: Vec<u8>,
    parent: Vec<u8>,
}

impl std::fmt::Debug for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: {:02x?} in {:02x?}", self.service, self.name, self.id, self.parent)
    }
}

/// All five processes are in one trace, whose spans have one root and no missing parents.
fn one_tree(spans: &[Span]) -> anyhow::Result<()> {
    let traces: HashSet<_> = spans.iter().map(|span| &span.trace).collect();
    ensure!(traces.len() == 1, "{} traces", traces.len());
    for process in PROCESSES {
        ensure!(spans.iter().any(|span| span.service == process), "no span of {process}");
    }
    let roots = spans.iter().filter(|span| span.parent.is_empty()).count();
    ensure!(roots == 1, "{roots} roots");
    let ids: HashSet<_> = spans.iter().map(|span| &span.id).collect();
    ensure!(spans.iter().all(|span| span.parent.is_empty() || ids.contains(&span.parent)), "a parent is missing");
    Ok(())
}

/// Keeps the spans that it is sent.
#[derive(Clone, Default)]
struct Collector {
    spans: Arc<Mutex<Vec<Span>>>,
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut spans = self.spans.lock().expect("no panic");
        for resource in request.into_inner().resource_spans {
            let attributes = resource.resource.unwrap_or_default().attributes;
            let service = attributes.into_iter().find(|attribute| attribute.key == "service.name");
            let service = service.and_then(|attribute| attribute.value).map(|value| format!("{value:?}"));
            let service = PROCESSES
                .iter()
                .find(|name| service.as_ref().is_some_and(|value| value.contains(&format!("\"{name}\""))));
            for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                spans.push(Span {
                    service: service.map_or_else(String::new, |name| (*name).to_owned()),
                    name: span.name,
                    trace: span.trace_id,
                    id: span.span_id,
                    parent: span.parent_span_id,
                });
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}
