//! Bounds: bodies, requests in flight, messages on the link.

use bytes::Bytes;
use http::Method;
use serde_json::json;

use crate::{client::request, stage::Stage};

const PATH: &str = "/v1/completions";

#[tokio::test]
async fn large_bodies_are_refused_in_words() {
    let stage = Stage::new(&["--max-body-bytes=1000"]).await;
    for size in [1001, 10 << 20] {
        let body = json!({"prompt": "x".repeat(size)}).to_string();
        let answer = stage.client.send(request(Method::POST, PATH, body.into())).await;
        assert_eq!(answer.status, 413);
        assert!(answer.error().0.contains("1000 bytes"));
    }
    stage.healthy().await;
}

#[tokio::test]
async fn what_does_not_fit_the_link_is_refused() {
    let mut stage = Stage::new(&[]).await;
    let body = json!({"prompt": "x".repeat(10 << 20)}).to_string();
    let answer = stage.client.send(request(Method::POST, PATH, Bytes::from(body))).await;
    assert_eq!(answer.status, 400);
    assert!(answer.error().0.contains("too large"));
    // The link is none the worse for it.
    let answer = stage.client.spawn(PATH, &json!({"prompt": "x"}));
    let request = loop {
        if let proto::inbound::Event::Request(request) = stage.engine.next().await {
            break request;
        }
    };
    stage.engine.answer(&request, &["ok"]).await;
    assert_eq!(answer.await.unwrap().status, 200);
}

#[tokio::test]
async fn more_prompts_or_choices_than_there_is_room_for_are_refused() {
    let stage = Stage::new(&["--max-inflight=16"]).await;
    let many: Vec<String> = vec!["x".into(); 17];
    let rows = [
        (json!({"prompt": many}), "prompt"),
        (json!({"prompt": vec![[1]; 17]}), "prompt"),
        (json!({"prompt": many[..16], "n": 16384}), "n"),
    ];
    for (body, field) in rows {
        let answer = stage.client.post(PATH, &body).await;
        assert_eq!((answer.status.as_u16(), answer.error().1), (400, json!(field)));
    }
    stage.healthy().await;
}

#[tokio::test]
async fn past_the_bound_requests_are_refused() {
    let mut stage = Stage::new(&["--max-inflight=2"]).await;
    let first = stage.client.spawn(PATH, &json!({"prompt": "1"}));
    let first_request = stage.engine.request().await;
    let second = stage.client.spawn(PATH, &json!({"prompt": "2"}));
    let second_request = stage.engine.request().await;
    let refused = stage.client.post(PATH, &json!({"prompt": "3"})).await;
    assert_eq!((refused.status.as_u16(), refused.headers["retry-after"].to_str().unwrap()), (503, "1"));
    assert_eq!(refused.json()["error"]["type"], "ServiceUnavailableError");
    assert_eq!(stage.metric(r#"vllm:admission_rejections_total{model_name="wren",reason="max_inflight"}"#).await, 1.0);
    for request in [first_request, second_request] {
        stage.engine.answer(&request, &["ok"]).await;
    }
    assert_eq!((first.await.unwrap().status.as_u16(), second.await.unwrap().status.as_u16()), (200, 200));
    stage.load_is(0).await;
    let third = stage.client.spawn(PATH, &json!({"prompt": "3"}));
    let request = stage.engine.request().await;
    stage.engine.answer(&request, &["ok"]).await;
    assert_eq!(third.await.unwrap().status, 200);
}

#[tokio::test]
async fn hundreds_at_once_are_all_answered() {
    let mut stage = Stage::new(&[]).await;
    let answers: Vec<_> =
        (0..300).map(|index| stage.client.spawn(PATH, &json!({"prompt": "x", "stream": index % 2 == 0}))).collect();
    for _ in 0..300 {
        let request = stage.engine.request().await;
        stage.engine.answer(&request, &["a", "b", "c"]).await;
    }
    for answer in answers {
        assert_eq!(answer.await.unwrap().status, 200);
    }
    stage.load_is(0).await;
    let series = r#"vllm:generation_tokens_total{model_name="wren",engine="0"}"#;
    assert_eq!(stage.metric(series).await, 900.0);
}
