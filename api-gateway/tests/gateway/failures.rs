//! Processes that die, requests that fail, and a gateway that ends.

use std::time::Duration;

use proto::{FinishReason, failure::Kind};
use serde_json::json;

use crate::{
    client::{events, json as post},
    engine::{admitted, failed, number, text},
    stage::Stage,
};

const PATH: &str = "/v1/completions";

#[tokio::test]
async fn losing_the_tokenizer_fails_what_was_not_admitted() {
    let mut stage = Stage::new(&[]).await;
    let lost = stage.client.spawn(PATH, &json!({"prompt": "lost"}));
    let lost_request = stage.engine.request().await;
    let kept = stage.client.spawn(PATH, &json!({"prompt": "kept"}));
    let kept_request = stage.engine.request().await;
    stage.engine.admit(&kept_request, 1).await;
    // Events are seen in order: this one's answer proves that the admission arrived.
    let probe = stage.client.spawn(PATH, &json!({"prompt": "probe"}));
    let probe_request = stage.engine.request().await;
    stage.engine.answer(&probe_request, &["x"]).await;
    probe.await.unwrap();
    stage.engine.tokenizer_down();
    let answer = lost.await.unwrap();
    assert_eq!(answer.status, 503);
    assert!(answer.headers.contains_key("retry-after"));
    stage.health_is(503).await;
    let refused = stage.client.post(PATH, &json!({"prompt": "x"})).await;
    assert_eq!((refused.status.as_u16(), refused.headers["retry-after"].to_str().unwrap()), (503, "1"));
    stage.engine.send(vec![text(&kept_request, 0, "still here", FinishReason::Stop)]).await;
    assert_eq!(kept.await.unwrap().json()["choices"][0]["text"], "still here");
    // Back again: the first thing that it hears is the abort.
    stage.engine.tokenizer_up().await;
    assert_eq!(stage.engine.abort().await, number(&lost_request));
    stage.healthy().await;
    stage.load_is(0).await;
}

#[tokio::test]
async fn losing_the_detokenizer_fails_everything() {
    let mut stage = Stage::new(&[]).await;
    let streaming = stage.client.spawn(PATH, &json!({"prompt": "s", "stream": true}));
    let request = stage.engine.request().await;
    stage.engine.send(vec![admitted(&request, 1), text(&request, 0, "a", FinishReason::Unspecified)]).await;
    let waiting = stage.client.spawn(PATH, &json!({"prompt": "w"}));
    let second = stage.engine.request().await;
    stage.engine.admit(&second, 1).await;
    stage.load_is(2).await;
    stage.engine.detokenizer_down();
    assert_eq!(waiting.await.unwrap().status, 503);
    let answer = streaming.await.unwrap();
    // The stream may have been opened or not: either way the client is told.
    if answer.status == 200 {
        let last = events(answer.text()).pop().unwrap();
        assert_eq!(last["error"]["code"], 503);
    } else {
        assert_eq!(answer.status, 503);
    }
    let mut aborted = [stage.engine.abort().await, stage.engine.abort().await];
    aborted.sort_unstable();
    assert_eq!(aborted, [number(&request), number(&second)]);
    stage.health_is(503).await;
    stage.engine.detokenizer_up().await;
    stage.healthy().await;
    let again = stage.client.spawn(PATH, &json!({"prompt": "again"}));
    let request = stage.engine.request().await;
    stage.engine.answer(&request, &["ok"]).await;
    assert_eq!(again.await.unwrap().status, 200);
}

#[tokio::test]
async fn answers_come_from_the_server_that_has_the_requests() {
    let mut stage = Stage::without_engine(&[]).await;
    stage.engine.tokenizer_of(1).await;
    // As behind a name that stands for two servers. Each is hung up on, and another one is dialled.
    stage.engine.detokenizer_of(2).await;
    stage.engine.detokenizer_down();
    stage.engine.detokenizer_of(2).await;
    assert_eq!(stage.client.post(PATH, &json!({"prompt": "x"})).await.status, 503);
    stage.engine.detokenizer_down();
    stage.engine.detokenizer_of(1).await;
    stage.healthy().await;
    let waiting = stage.client.spawn(PATH, &json!({"prompt": "w"}));
    let request = stage.engine.request().await;
    stage.engine.admit(&request, 1).await;
    stage.load_is(1).await;
    // Requests go elsewhere: what is open would wait for ever.
    stage.engine.tokenizer_down();
    stage.engine.tokenizer_of(3).await;
    assert_eq!(waiting.await.unwrap().status, 503);
    stage.health_is(503).await;
}

#[tokio::test]
async fn event_number_zero_means_all() {
    let mut stage = Stage::new(&[]).await;
    let answers: Vec<_> = (0..5).map(|_| stage.client.spawn(PATH, &json!({"prompt": "x"}))).collect();
    for _ in 0..5 {
        stage.engine.request().await;
    }
    stage.engine.send(vec![failed(0, Kind::Unavailable, "the scheduler was lost", "")]).await;
    for answer in answers {
        let answer = answer.await.unwrap();
        assert_eq!(answer.status, 503);
        assert_eq!(answer.error().0, "the scheduler was lost");
    }
    stage.load_is(0).await;
}

#[tokio::test]
async fn failures_have_their_status_before_the_first_event() {
    let mut stage = Stage::new(&[]).await;
    let rows = [(Kind::Invalid, 400), (Kind::Overloaded, 503), (Kind::Unimplemented, 501), (Kind::Internal, 500)];
    for (kind, status) in rows {
        for stream in [false, true] {
            let answer = stage.client.spawn(PATH, &json!({"prompt": "x", "stream": stream}));
            let request = stage.engine.request().await;
            stage.engine.send(vec![failed(number(&request), kind, "no", "prompt")]).await;
            let answer = answer.await.unwrap();
            assert_eq!(answer.status, status);
            assert_eq!(answer.error(), ("no".into(), json!("prompt")));
        }
    }
}

#[tokio::test]
async fn one_failed_prompt_fails_the_answer_and_aborts_the_others() {
    let mut stage = Stage::new(&[]).await;
    let answer = stage.client.spawn(PATH, &json!({"prompt": ["good", "bad"]}));
    let good = stage.engine.request().await;
    let bad = stage.engine.request().await;
    stage.engine.send(vec![admitted(&good, 1), failed(number(&bad), Kind::Invalid, "too long", "prompt")]).await;
    assert_eq!(answer.await.unwrap().status, 400);
    assert_eq!(stage.engine.abort().await, number(&good));
    stage.load_is(0).await;
}

#[tokio::test]
async fn an_error_in_a_stream_is_an_event() {
    let mut stage = Stage::new(&[]).await;
    let client = stage.client.clone();
    let opening = tokio::spawn(async move { client.open(post(PATH, &json!({"prompt": "x", "stream": true}))).await });
    let request = stage.engine.request().await;
    stage.engine.send(vec![admitted(&request, 1), text(&request, 0, "a", FinishReason::Unspecified)]).await;
    let mut open = opening.await.unwrap();
    assert!(open.chunk().await.is_some());
    stage.engine.send(vec![failed(number(&request), Kind::Unavailable, "a worker was lost", "")]).await;
    let chunks = events(&open.rest().await);
    let error = json!({"error": {
        "message": "a worker was lost", "type": "ServiceUnavailableError", "param": null, "code": 503
    }});
    assert_eq!(chunks, [error]);
}

#[tokio::test]
async fn nothing_is_served_without_an_engine() {
    let mut stage = Stage::without_engine(&[]).await;
    assert_eq!(stage.client.get("/health").await.status, 503);
    assert_eq!(stage.client.post(PATH, &json!({"prompt": "x"})).await.status, 503);
    assert_eq!(stage.client.post("/tokenize", &json!({"prompt": "x"})).await.status, 503);
    assert_eq!(stage.client.get("/v1/models").await.status, 200);
    stage.engine.connected().await;
    stage.healthy().await;
}

#[tokio::test]
async fn shutting_down_lets_running_requests_finish() {
    let mut stage = Stage::new(&[]).await;
    let answer = stage.client.spawn(PATH, &json!({"prompt": "x"}));
    let request = stage.engine.request().await;
    stage.process.shutdown.cancel();
    while !stage.process.status.is_draining() {
        tokio::task::yield_now().await;
    }
    stage.engine.answer(&request, &["done"]).await;
    assert_eq!(answer.await.unwrap().json()["choices"][0]["text"], "done");
    tokio::time::timeout(Duration::from_secs(10), stage.gateway).await.expect("ends").unwrap().unwrap();
}

#[tokio::test]
async fn shutting_down_ends_what_does_not_finish() {
    let mut stage = Stage::new(&["--shutdown-timeout=0.05"]).await;
    let client = stage.client.clone();
    let opening = tokio::spawn(async move { client.open(post(PATH, &json!({"prompt": "x", "stream": true}))).await });
    let request = stage.engine.request().await;
    stage.engine.send(vec![admitted(&request, 1), text(&request, 0, "a", FinishReason::Unspecified)]).await;
    let mut open = opening.await.unwrap();
    assert!(open.chunk().await.is_some());
    stage.process.shutdown.cancel();
    let error = events(&open.rest().await).pop().unwrap();
    assert_eq!(error["error"]["code"], 503);
    tokio::time::timeout(Duration::from_secs(10), stage.gateway).await.expect("ends").unwrap().unwrap();
}
