//! Streams: their chunks, their ends, and clients that leave or read slowly.

use std::time::Duration;

use proto::FinishReason;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    client::{Open, events, json as post},
    engine::{admitted, text},
    stage::Stage,
};

/// Opens a stream and admits its request.
async fn open(stage: &mut Stage, path: &str, body: &Value) -> (Open, proto::Request) {
    let client = stage.client.clone();
    let request = post(path, body);
    let open = tokio::spawn(async move { client.open(request).await });
    let request = stage.engine.request().await;
    stage.engine.admit(&request, 3).await;
    (open.await.expect("opened"), request)
}

#[tokio::test]
async fn a_stream_is_the_answer_in_pieces() {
    let mut stage = Stage::new(&[]).await;
    let pieces = ["Hello", "", ", \"wor", "ld\"\u{1f600}\n", "."];
    for path in ["/v1/chat/completions", "/v1/completions"] {
        let body = json!({"prompt": "x", "messages": [{"role": "user", "content": "x"}], "n": 2, "stream": true,
                          "stream_options": {"include_usage": true}});
        let (open, request) = open(&mut stage, path, &body).await;
        assert_eq!(open.response.headers()["content-type"], "text/event-stream; charset=utf-8");
        for (index, piece) in pieces.iter().enumerate() {
            let finish = if index == 4 { FinishReason::Length } else { FinishReason::Unspecified };
            let both = vec![text(&request, 0, piece, finish), text(&request, 1, piece, finish)];
            stage.engine.send(both).await;
        }
        let chunks = events(&open.rest().await);
        let usage = chunks.last().unwrap();
        assert_eq!(usage["choices"], json!([]));
        assert_eq!(usage["usage"]["completion_tokens"], 10);
        let mut texts = [String::new(), String::new()];
        let mut finishes = Vec::new();
        for chunk in &chunks[..chunks.len() - 1] {
            assert_eq!(chunk["id"], request.request_id);
            let choice = &chunk["choices"][0];
            let piece = choice["delta"]["content"].as_str().or(choice["text"].as_str()).expect("text");
            texts[choice["index"].as_u64().unwrap() as usize].push_str(piece);
            finishes.extend(choice["finish_reason"].as_str().map(str::to_owned));
        }
        assert_eq!(texts, [pieces.concat(), pieces.concat()]);
        assert_eq!(finishes, ["length", "length"]);
        if path.contains("chat") {
            assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
            assert_eq!(chunks[0]["object"], "chat.completion.chunk");
        }
    }
}

#[tokio::test]
async fn usage_comes_with_each_chunk_when_asked() {
    let mut stage = Stage::new(&[]).await;
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let body = json!({"messages": [{"role": "user", "content": "x"}], "stream": true, "stream_options": options});
    let (mut open, request) = open(&mut stage, "/v1/chat/completions", &body).await;
    let role = open.chunk().await.unwrap();
    assert!(String::from_utf8_lossy(&role).contains("\"usage\":{\"prompt_tokens\":3,"));
    let finish = [FinishReason::Unspecified, FinishReason::Stop];
    stage.engine.send(finish.map(|finish| text(&request, 0, "a", finish)).to_vec()).await;
    let chunks = events(&open.rest().await);
    // Both deltas came in one batch and were merged.
    assert_eq!(chunks[0]["usage"]["completion_tokens"], 2);
    assert_eq!(chunks[0]["choices"][0]["delta"]["content"], "aa");
    assert_eq!(chunks[1]["usage"]["total_tokens"], 5);
}

#[tokio::test]
async fn a_client_that_leaves_aborts_its_request() {
    let mut stage = Stage::new(&[]).await;
    let body = json!({"prompt": "x", "stream": true});
    let (mut gone, request) = open(&mut stage, "/v1/completions", &body).await;
    stage.engine.send(vec![text(&request, 0, "a", FinishReason::Unspecified)]).await;
    assert!(gone.chunk().await.is_some());
    gone.leave();
    assert_eq!(stage.engine.abort().await, request.key.unwrap().number);
    stage.load_is(0).await;
    let series = r#"vllm:request_success_total{model_name="wren",engine="0",finished_reason="abort"}"#;
    assert_eq!(stage.metric(series).await, 1.0);
    // What was on its way is dropped.
    stage.engine.send(vec![text(&request, 0, "b", FinishReason::Stop)]).await;
    stage.healthy().await;
}

#[tokio::test]
async fn a_client_that_leaves_before_the_answer_aborts_too() {
    let mut stage = Stage::new(&[]).await;
    for stream in [false, true] {
        let waiting = stage.client.spawn("/v1/completions", &json!({"prompt": ["x", "y"], "stream": stream}));
        let (first, second) = (stage.engine.request().await, stage.engine.request().await);
        stage.engine.admit(&first, 1).await;
        waiting.abort();
        let _ = waiting.await;
        let mut aborted = [stage.engine.abort().await, stage.engine.abort().await];
        aborted.sort_unstable();
        assert_eq!(aborted, [first.key.unwrap().number, second.key.unwrap().number]);
        stage.load_is(0).await;
    }
}

#[tokio::test]
async fn a_half_closed_socket_is_a_client_that_left() {
    let mut stage = Stage::new(&[]).await;
    let mut socket = stage.client.connect().await;
    let body = r#"{"prompt":"x"}"#;
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    let message = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    socket.write_all(message.as_bytes()).await.unwrap();
    let request = stage.engine.request().await;
    socket.shutdown().await.unwrap();
    assert_eq!(stage.engine.abort().await, request.key.unwrap().number);
    let mut rest = Vec::new();
    socket.read_to_end(&mut rest).await.unwrap();
    stage.load_is(0).await;
}

#[tokio::test]
async fn a_slow_reader_gets_everything_in_fewer_pieces() {
    let mut stage = Stage::new(&[]).await;
    let body = json!({"prompt": "x", "stream": true});
    let (open, request) = open(&mut stage, "/v1/completions", &body).await;
    let piece = "0123456789".repeat(100);
    let count = 3000;
    for _ in 0..count {
        stage.engine.send(vec![text(&request, 0, &piece, FinishReason::Unspecified)]).await;
    }
    stage.engine.send(vec![text(&request, 0, "", FinishReason::Stop)]).await;
    // The engine is through before a byte has been read: the gateway holds the text, not the chunks.
    stage.load_is(1).await;
    let chunks = events(&open.rest().await);
    let text: String = chunks.iter().map(|chunk| chunk["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(text.len(), piece.len() * count);
    assert!(chunks.len() < count, "{} chunks", chunks.len());
    stage.load_is(0).await;
}

#[tokio::test]
async fn silence_is_filled_with_comments() {
    let mut stage = Stage::new(&["--sse-keep-alive-interval=0.01"]).await;
    let body = json!({"messages": [{"role": "user", "content": "x"}], "stream": true});
    let client = stage.client.clone();
    let opening = tokio::spawn(async move { client.open(post("/v1/chat/completions", &body)).await });
    let request = stage.engine.request().await;
    // Not admitted yet, and yet the stream opens.
    let mut open = opening.await.unwrap();
    assert_eq!(open.chunk().await.unwrap(), ": keep-alive\n\n");
    stage.engine.send(vec![admitted(&request, 1), text(&request, 0, "a", FinishReason::Stop)]).await;
    let chunks = events(&tokio::time::timeout(Duration::from_secs(10), open.rest()).await.expect("ends"));
    assert_eq!(chunks.last().unwrap()["choices"][0]["delta"]["content"], "a");
}

#[tokio::test]
async fn a_chat_can_go_on_with_its_last_message() {
    let mut stage = Stage::new(&[]).await;
    let body = json!({
        "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "Well,"}],
        "add_generation_prompt": false, "continue_final_message": true, "echo": true, "stream": true,
    });
    let (open, request) = open(&mut stage, "/v1/chat/completions", &body).await;
    stage.engine.send(vec![text(&request, 0, " no", FinishReason::Stop)]).await;
    let chunks = events(&open.rest().await);
    let text: String = chunks.iter().map(|c| c["choices"][0]["delta"]["content"].as_str().unwrap()).collect();
    assert_eq!(text, "Well, no");
}
