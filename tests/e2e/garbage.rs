//! Whatever a client sends, the answer is a clear 4xx that names the field, and the server lives.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    time::Duration,
};

use anyhow::{Context, ensure};
use e2e_tests::{Server, descendants};
use serde_json::{Value, json};

/// What must not go through, and a word that the error must say.
fn refused() -> Vec<(&'static str, Value, &'static str)> {
    let chat = "/v1/chat/completions";
    let text = "/v1/completions";
    let hi = json!([{"role": "user", "content": "hi"}]);
    vec![
        (text, json!({}), "prompt"),
        (text, json!({"prompt": null}), "prompt"),
        (text, json!({"prompt": ""}), "prompt"),
        (text, json!({"prompt": []}), "prompt"),
        (text, json!({"prompt": [[]]}), "prompt"),
        (text, json!({"prompt": [1, "two"]}), "prompt"),
        (text, json!({"prompt": [99_999_999]}), "token"),
        (text, json!({"prompt": [-1]}), "prompt"),
        (text, json!({"prompt": "hi", "n": 0}), "n"),
        (text, json!({"prompt": "hi", "max_tokens": 0}), "max_tokens"),
        (text, json!({"prompt": "hi", "max_tokens": -5}), "max_tokens"),
        (text, json!({"prompt": "hi", "max_tokens": 100_000}), "max_tokens"),
        (text, json!({"prompt": "hi", "max_tokens": "many"}), "max_tokens"),
        (text, json!({"prompt": "hi", "temperature": -1}), "temperature"),
        (text, json!({"prompt": "hi", "temperature": "hot"}), "temperature"),
        (text, json!({"prompt": "hi", "top_p": 0}), "top_p"),
        (text, json!({"prompt": "hi", "top_p": 1.5}), "top_p"),
        (text, json!({"prompt": "hi", "top_k": -7}), "top_k"),
        (text, json!({"prompt": "hi", "min_p": 2}), "min_p"),
        (text, json!({"prompt": "hi", "presence_penalty": 3}), "presence_penalty"),
        (text, json!({"prompt": "hi", "repetition_penalty": 0}), "repetition_penalty"),
        (text, json!({"prompt": "hi", "logprobs": 1000}), "logprobs"),
        (text, json!({"prompt": "hi", "logit_bias": {"x": 1}}), "logit_bias"),
        (text, json!({"prompt": "hi", "stop": 5}), "stop"),
        (text, json!({"prompt": "hi", "best_of": 4}), "best_of"),
        (text, json!({"prompt": "hi", "suffix": "end"}), "suffix"),
        (text, json!({"prompt": "hi", "use_beam_search": true, "stop": "x"}), "stop"),
        (text, json!({"prompt": "hi", "guided_json": {"type": "objekt"}}), "guided_json"),
        (text, json!({"prompt": "hi", "guided_choice": []}), "guided_choice"),
        (text, json!({"prompt": "hi", "structured_outputs": {"regex": "(a"}}), "structured_outputs"),
        (text, json!({"prompt": "long ".repeat(3000)}), "maximum context length"),
        (chat, json!({}), "messages"),
        (chat, json!({"messages": []}), "messages"),
        (chat, json!({"messages": "hi"}), "messages"),
        (chat, json!({"messages": [{"content": "hi"}]}), "role"),
        (chat, json!({"messages": hi, "response_format": {"type": "yaml"}}), "response_format"),
        (chat, json!({"messages": hi, "top_logprobs": 3}), "logprobs"),
        (chat, json!({"messages": hi, "stream_options": {"include_usage": true}}), "stream_options"),
        (chat, json!({"messages": hi, "chat_template": "{{ raise_exception('no') }}"}), "chat_template"),
    ]
}

#[tokio::test]
async fn bad_requests_get_a_clear_4xx() -> anyhow::Result<()> {
    let server = Server::start(&[]).await?;
    let client = server.client();
    for (path, body, word) in refused() {
        let (status, answer) = client.post(path, &body).await?;
        let short: String = body.to_string().chars().take(120).collect();
        ensure!((400..500).contains(&status), "{path} {short}: {status} {answer}");
        let error = &answer["error"];
        let says = format!("{} {}", error["message"].as_str().unwrap_or_default(), error["param"]);
        ensure!(says.contains(word), "{path} {short}: the error does not say `{word}`: {answer}");
        ensure!(error["code"] == status && error["type"].is_string(), "{answer}");
    }
    unscathed(&server).await
}

#[tokio::test]
async fn raw_garbage_is_refused() -> anyhow::Result<()> {
    let server = Server::start(&[]).await?;
    let client = server.client();
    let mut large = br#"{"prompt": ""#.to_vec();
    large.resize(80 << 20, b'x');
    let bodies: Vec<(&str, Vec<u8>)> = vec![
        ("no body", vec![]),
        ("half an object", br#"{"prompt": "hi""#.to_vec()),
        ("not JSON", b"hello".to_vec()),
        ("an array", b"[]".to_vec()),
        ("NaN", br#"{"prompt": "hi", "temperature": NaN}"#.to_vec()),
        ("invalid UTF-8", b"{\"prompt\": \"\xff\xfe\"}".to_vec()),
        ("a lone surrogate", br#"{"prompt": "\ud800"}"#.to_vec()),
        ("deep nesting", [b"[".repeat(100_000), b"]".repeat(100_000)].concat()),
        ("80 MB", large),
    ];
    for (name, body) in bodies {
        match client.post_raw("/v1/completions", body).await {
            Ok((status, text)) => ensure!((400..500).contains(&status), "{name}: {status} {text}"),
            // The server may hang up on a body that is too large before all of it is sent.
            Err(error) => ensure!(name == "80 MB", "{name}: {error}"),
        }
    }
    let (status, _) = client.get("/nowhere").await?;
    ensure!(status == 404, "{status}");
    let (status, _) = client.get("/v1/completions").await?;
    ensure!(status == 405, "{status}");
    unscathed(&server).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_sockets_harm_nobody() -> anyhow::Result<()> {
    let server = Server::start(&[]).await?;
    let client = server.client();
    // Bytes that are no HTTP, a request that never ends, a reader that never reads, a socket closed on one side.
    let mut noise = connect(&server)?;
    noise.write_all(&[0, 1, 2, 255, 254, b'\n', b'\n'])?;
    let mut unfinished = connect(&server)?;
    unfinished.write_all(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{\"pro")?;
    let body = json!({"prompt": "Once upon a time", "max_tokens": 500, "ignore_eos": true, "stream": true}).to_string();
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut slow = connect(&server)?;
    slow.write_all(request.as_bytes())?;
    let mut half = connect(&server)?;
    half.write_all(request.as_bytes())?;
    half.shutdown(Shutdown::Write)?;
    let (status, answer) = client.post("/v1/completions", &json!({"prompt": "Hello", "max_tokens": 5})).await?;
    ensure!(status == 200, "{answer}");
    // The half-closed one still reads, so it may get its answer or be taken for gone; either way it ends.
    half.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut answer = Vec::new();
    half.read_to_end(&mut answer).context("a half-closed socket ends")?;
    drop((noise, unfinished, slow));
    unscathed(&server).await
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_blocks() -> anyhow::Result<()> {
    let server = Server::start(&[]).await?;
    let client = server.client();
    let body = json!({"prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": true, "stream": true});
    for _ in 0..8 {
        let (_, mut stream) = client.stream("/v1/completions", &body).await?;
        ensure!(stream.next().await?.is_some(), "it streams");
    }
    // Not streamed: the client hangs up while it waits.
    let whole = json!({"prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": true});
    let waiting = tokio::time::timeout(Duration::from_millis(50), client.post("/v1/completions", &whole)).await;
    ensure!(waiting.is_err(), "900 tokens take longer than that");
    unscathed(&server).await
}

fn connect(server: &Server) -> anyhow::Result<TcpStream> {
    Ok(TcpStream::connect(("127.0.0.1", server.port))?)
}

/// Everybody lives, answers, and holds nothing.
async fn unscathed(server: &Server) -> anyhow::Result<()> {
    let client = server.client();
    let (status, answer) = client.post("/v1/completions", &json!({"prompt": "Hello", "max_tokens": 5})).await?;
    ensure!(status == 200, "{status}: {answer}");
    ensure!(client.health().await == Some(200), "healthy");
    ensure!(descendants(server.pid()).len() >= 5, "all processes live");
    ensure!(!server.log().contains("panicked"), "nothing panicked:\n{}", server.log());
    crate::metrics::settles_at(&client, "vllm:num_requests_running", 0.0).await?;
    crate::metrics::settles_at(&client, "quire:kv_blocks_used", 0.0).await
}
