//! Routes that exist in development mode, or with a flag.

use serde_json::json;

use crate::stage::Stage;

#[tokio::test]
async fn requests_are_ended_by_their_ids() {
    let mut stage = Stage::new(&["--server-dev-mode"]).await;
    let answer = stage.client.spawn("/v1/completions", &json!({"prompt": "x", "request_id": "mine"}));
    let request = stage.engine.request().await;
    let ended = stage.client.post("/abort_requests", &json!({"request_ids": ["cmpl-mine", "cmpl-unknown"]})).await;
    assert_eq!(ended.status, 200);
    let aborted = stage.engine.abort().await;
    assert_eq!(aborted, crate::engine::number(&request));
    answer.abort();
    let refused = stage.client.post("/abort_requests", &json!({"request_ids": "mine"})).await;
    assert_eq!((refused.status.as_u16(), refused.error().1), (400, json!("request_ids")));
}

#[tokio::test]
async fn the_server_tells_what_it_is() {
    let stage = Stage::new(&["--server-dev-mode"]).await;
    let info = stage.client.get("/server_info").await.json();
    assert_eq!((&info["model"], info["processes"].is_array()), (&json!("wren"), true));
    // There is no scheduler's control plane here.
    assert_eq!(stage.client.post("/reset_prefix_cache", &json!({})).await.status, 503);
}

#[tokio::test]
async fn without_the_mode_there_are_no_such_routes() {
    let stage = Stage::new(&[]).await;
    for path in ["/abort_requests", "/reset_prefix_cache", "/server_info", "/tokenizer_info"] {
        assert_eq!(stage.client.post(path, &json!({})).await.status, 404, "{path}");
    }
}
