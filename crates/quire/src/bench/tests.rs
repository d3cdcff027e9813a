//! The load generator against a fake server in the same process.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: ServeArgs,
}

/// Serves completions of `max_tokens` tokens; every `refuse`-th request is refused.
struct FakeServer {
    port: u16,
    seen: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    connections: AtomicUsize,
    requests: AtomicUsize,
}

impl FakeServer {
    fn start(refuse: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Counts::default());
        let counts = seen.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let counts = counts.clone();
                thread::spawn(move || converse(&stream, &counts, refuse));
            }
        });
        Self { port, seen }
    }

    async fn bench(&self, flags: &[&str]) -> anyhow::Result<Figures> {
        let port = format!("--port={}", self.port);
        let base = ["bench", &port, "--disable-tqdm", "--random-input-len=4", "--random-output-len=6"];
        let args = Cli::parse_from(base.iter().chain(flags)).args;
        LocalSet::new().run_until(serve(&args)).await
    }
}

fn converse(stream: &TcpStream, counts: &Counts, refuse: usize) {
    counts.connections.fetch_add(1, Ordering::SeqCst);
    let mut reader = BufReader::new(stream);
    loop {
        let (mut first, mut line, mut length) = (String::new(), String::new(), 0);
        if reader.read_line(&mut first).unwrap_or(0) == 0 {
            return;
        }
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line).unwrap();
            if let Some(value) = line.strip_prefix("Content-Length: ") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        if first.starts_with("GET /v1/models ") {
            plain(stream, "200 OK", r#"{"data": [{"id": "fake"}]}"#);
        } else if counts.requests.fetch_add(1, Ordering::SeqCst) % refuse == refuse - 1 {
            plain(stream, "503 Service Unavailable", r#"{"error": {"message": "full"}}"#);
        } else if first.starts_with("POST /v1/embeddings ") {
            let body: Value = serde_json::from_slice(&body).unwrap();
            let count = body["input"].as_array().unwrap().len();
            plain(stream, "200 OK", &format!(r#"{{"data": [], "usage": {{"prompt_tokens": {count}}}}}"#));
        } else {
            tokens(stream, &serde_json::from_slice(&body).unwrap());
        }
    }
}

fn plain(mut stream: &TcpStream, status: &str, body: &str) {
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
}

fn tokens(mut stream: &TcpStream, request: &Value) {
    assert_eq!(request["model"], "fake");
    let prompt = request["prompt"].as_array().unwrap().len();
    let count = request["max_tokens"].as_u64().unwrap();
    let mut text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned();
    let mut event = |payload: &str| {
        let event = format!("data: {payload}\n\n");
        text.push_str(&format!("{:x}\r\n{event}\r\n", event.len()));
    };
    for _ in 0..count {
        event(r#"{"choices":[{"index":0,"text":" word"}]}"#);
    }
    event(&format!(r#"{{"choices":[],"usage":{{"prompt_tokens":{prompt},"completion_tokens":{count}}}}}"#));
    event("[DONE]");
    stream.write_all((text + "0\r\n\r\n").as_bytes()).unwrap();
}

#[tokio::test]
async fn counts_tokens_and_reuses_connections() {
    let server = FakeServer::start(usize::MAX);
    let figures = server.bench(&["--num-prompts=40", "--max-concurrency=4", "--num-warmups=2"]).await.unwrap();
    assert_eq!((figures.completed, figures.failed), (40, 0));
    assert_eq!((figures.input_tokens, figures.output_tokens), (160, 240));
    assert!(figures.peak_concurrent <= 4);
    assert_eq!(server.seen.requests.load(Ordering::SeqCst), 42);
    // One for the list of models, and no more than run at the same time.
    assert!(server.seen.connections.load(Ordering::SeqCst) <= 5);
}

#[tokio::test]
async fn embeddings_have_latencies_and_no_tokens() {
    let server = FakeServer::start(4);
    let flags = ["--backend=openai-embeddings", "--endpoint=/v1/embeddings", "--num-prompts=8"];
    let figures = server.bench(&flags).await.unwrap();
    assert_eq!((figures.completed, figures.failed), (6, 2));
    assert_eq!((figures.input_tokens, figures.output_tokens), (24, 0));
    let args = Cli::parse_from(["bench"].iter().chain(&flags)).args;
    let text = report::text(&args, &figures);
    assert!(text.contains("P99 E2EL") && !text.contains("TTFT") && !text.contains("generated"), "{text}");
}

#[tokio::test]
async fn refusals_are_failures() {
    let server = FakeServer::start(4);
    let figures = server.bench(&["--num-prompts=20", "--request-rate=2000"]).await.unwrap();
    assert_eq!((figures.completed, figures.failed), (15, 5));
}

#[tokio::test]
async fn results_are_saved_as_json() {
    let server = FakeServer::start(usize::MAX);
    let folder = tempfile::tempdir().unwrap();
    let dir = format!("--result-dir={}", folder.path().join("new").display());
    let flags = ["--num-prompts=3", "--save-result", "--save-detailed", &dir, "--result-filename=a.json"];
    server.bench(&[&flags[..], &["--metric-percentiles=50,99.9", "--goodput", "ttft:60000"]].concat()).await.unwrap();
    let text = std::fs::read(folder.path().join("new/a.json")).unwrap();
    let report: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!((report["completed"].as_u64(), report["total_output_tokens"].as_u64()), (Some(3), Some(18)));
    assert_eq!((&report["model_id"], &report["request_rate"]), (&Value::from("fake"), &Value::from("inf")));
    assert_eq!(report["request_goodput"], report["request_throughput"]);
    assert!(report["p99.9_itl_ms"].is_number() && report["mean_e2el_ms"].is_number());
    assert_eq!(report["itls"][0].as_array().unwrap().len(), 5);
}

#[tokio::test]
async fn a_missing_server_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let server = FakeServer { port, seen: Arc::default() };
    let error = server.bench(&[]).await.unwrap_err();
    assert!(format!("{error:#}").contains("is it running?"), "{error:#}");
}
