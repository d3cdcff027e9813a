//! Keys, paths, methods, headers.

use bytes::Bytes;
use http::{Method, header};
use serde_json::json;

use crate::{client::request, stage::Stage};

#[tokio::test]
async fn keys_guard_the_api_alone() {
    let stage = Stage::new(&["--api-key", "one", "two"]).await;
    for key in [None, Some("three")] {
        let mut question = request(Method::GET, "/v1/models", Bytes::new());
        if let Some(key) = key {
            question.headers_mut().insert(header::AUTHORIZATION, format!("Bearer {key}").parse().unwrap());
        }
        let answer = stage.client.send(question).await;
        assert_eq!((answer.status.as_u16(), answer.text()), (401, r#"{"error":"Unauthorized"}"#));
    }
    let mut question = request(Method::GET, "/v1/models", Bytes::new());
    question.headers_mut().insert(header::AUTHORIZATION, "Bearer two".parse().unwrap());
    assert_eq!(stage.client.send(question).await.status, 200);
    assert_eq!(stage.client.get("/version").await.status, 200);
}

#[tokio::test]
async fn other_paths_and_methods_have_vllms_bodies() {
    let stage = Stage::new(&[]).await;
    let rows = [
        (Method::GET, "/nope", 404, "Not Found"),
        (Method::GET, "/v1/completions", 405, "Method Not Allowed"),
        (Method::DELETE, "/health", 405, "Method Not Allowed"),
        (Method::POST, "/v1/nope", 404, "Not Found"),
    ];
    for (method, path, status, message) in rows {
        let answer = stage.client.send(request(method, path, Bytes::new())).await;
        assert_eq!(answer.status, status, "{path}");
        assert_eq!(answer.error().0, message);
    }
    let unknown = stage.client.post("/v1/completions", &json!({"model": "gpt", "prompt": "x"})).await;
    assert_eq!(unknown.status, 404);
    assert_eq!(unknown.error(), ("The model `gpt` does not exist.".into(), json!("model")));
}

#[tokio::test]
async fn a_proxys_prefix_is_taken_off() {
    let stage = Stage::new(&["--root-path=/llm"]).await;
    assert_eq!(stage.client.get("/llm/v1/models").await.status, 200);
    assert_eq!(stage.client.get("/v1/models").await.status, 200);
    assert_eq!(stage.client.get("/llmx/v1/models").await.status, 404);
}

#[tokio::test]
async fn request_ids_come_and_go() {
    let mut stage = Stage::new(&["--enable-request-id-headers"]).await;
    let mut question = request(Method::POST, "/v1/completions", r#"{"prompt":"x"}"#.into());
    question.headers_mut().insert("x-request-id", "abc\"1".parse().unwrap());
    question
        .headers_mut()
        .insert("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".parse().unwrap());
    let client = stage.client.clone();
    let answer = tokio::spawn(async move { client.send(question).await });
    let request = stage.engine.request().await;
    assert_eq!(request.request_id, "cmpl-abc\"1");
    assert_eq!(request.traceparent, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    stage.engine.answer(&request, &["ok"]).await;
    let answer = answer.await.unwrap();
    assert_eq!(answer.headers["x-request-id"], "abc\"1");
    assert_eq!(answer.json()["id"], "cmpl-abc\"1");
}

#[tokio::test]
async fn browsers_call_from_allowed_origins_only() {
    let ask = |origin: &str| {
        let mut question = request(Method::OPTIONS, "/v1/models", Bytes::new());
        question.headers_mut().insert(header::ORIGIN, origin.parse().unwrap());
        question.headers_mut().insert(header::ACCESS_CONTROL_REQUEST_METHOD, "GET".parse().unwrap());
        question
    };
    let allow = header::ACCESS_CONTROL_ALLOW_ORIGIN;
    let closed = Stage::new(&[]).await;
    assert!(!closed.client.send(ask("http://a")).await.headers.contains_key(&allow));
    let some = Stage::new(&["--allowed-origins=[\"http://a\"]", "--api-key=k"]).await;
    assert_eq!(some.client.send(ask("http://a")).await.headers[&allow], "http://a");
    assert!(!some.client.send(ask("http://b")).await.headers.contains_key(&allow));
    let all = Stage::new(&["--allowed-origins=[\"*\"]", "--allow-credentials"]).await;
    assert_eq!(all.client.send(ask("http://b")).await.headers[&allow], "http://b");
}

#[tokio::test]
async fn model_defaults_give_way_to_flags_and_fields() {
    let mut stage = Stage::new(&["--override-generation-config={\"temperature\":0.3,\"max_new_tokens\":5}"]).await;
    for (body, temperature, max_tokens) in [
        (json!({"prompt": "x"}), 0.3, 5),
        (json!({"prompt": "x", "temperature": 0, "max_tokens": 2}), 0.0, 2),
        (json!({"prompt": "x", "temperature": 0.001, "max_tokens": 100}), 0.01, 5),
    ] {
        let answer = stage.client.spawn("/v1/completions", &body);
        let request = stage.engine.request().await;
        assert_eq!(request.sampling.clone().unwrap().temperature, temperature);
        assert_eq!(request.max_tokens, Some(max_tokens));
        stage.engine.answer(&request, &["ok"]).await;
        assert_eq!(answer.await.unwrap().status, 200);
    }
}
