//! The documentation that the gateway serves is of the routes that it has.

use http::Method;
use serde_json::{Value, json};

use crate::{client::request, stage::Stage};

/// Paths and the methods that they are documented with.
fn operations(document: &Value) -> Vec<(String, Vec<String>)> {
    let paths = document["paths"].as_object().expect("paths");
    let methods = |item: &Value| item.as_object().expect("an item").keys().map(|key| key.to_uppercase()).collect();
    paths.iter().map(|(path, item)| (path.clone(), methods(item))).collect()
}

#[tokio::test]
async fn every_route_has_the_methods_that_are_documented() {
    let stage = Stage::new(&["--server-dev-mode", "--enable-tokenizer-info-endpoint"]).await;
    let document = stage.client.get("/openapi.json").await.json();
    let operations = operations(&document);
    assert!(operations.len() > 12, "{document}");
    for (path, methods) in operations {
        let path = path.replace("{model}", "wren").replace("{id}", "x");
        for method in [Method::GET, Method::POST, Method::PUT, Method::DELETE, Method::PATCH] {
            let answer = stage.client.send(request(method.clone(), &path, "{}".into())).await;
            let documented = methods.contains(&method.to_string());
            assert_eq!(answer.status != 405, documented, "{method} {path}: {}", answer.status);
        }
    }
}

#[tokio::test]
async fn the_document_resolves_its_references() {
    let stage = Stage::new(&["--api-key", "k", "--root-path", "/llm"]).await;
    let answer = stage.client.get("/openapi.json").await;
    let document = answer.json();
    assert_eq!((&document["openapi"], &document["servers"]), (&json!("3.1.0"), &json!([{"url": "/llm"}])));
    for part in answer.text().split("\"#/components/schemas/").skip(1) {
        let name = part.split('"').next().unwrap();
        assert!(document["components"]["schemas"][name].is_object(), "{name} is not described");
    }
    let chat = &document["paths"]["/v1/chat/completions"]["post"];
    assert_eq!(chat["security"], json!([{"bearer": []}, {"api_key": []}]));
    assert!(chat["responses"]["401"].is_object() && document["paths"]["/health"]["get"]["security"].is_null());
    let fields = &document["components"]["schemas"]["ChatCompletionRequest"];
    assert_eq!(fields["required"], json!(["messages"]));
    let temperature = &fields["properties"]["temperature"];
    assert_eq!((&temperature["minimum"], &temperature["maximum"]), (&json!(0), &json!(2)));
}

#[tokio::test]
async fn the_document_is_of_this_server() {
    let stage = Stage::new(&["--max-logprobs", "7", "--trust-request-chat-template"]).await;
    let document = stage.client.get("/openapi.json").await.json();
    let schemas = &document["components"]["schemas"];
    assert_eq!(schemas["ChatCompletionRequest"]["properties"]["top_logprobs"]["maximum"], 7);
    assert_eq!(schemas["ChatCompletionRequest"]["properties"]["model"]["enum"], json!(["wren", null]));
    assert_eq!(schemas["MessagesRequest"]["additionalProperties"], false);
    assert!(schemas["ChatCompletionRequest"]["properties"]["chat_template"]["maxLength"].is_null());
    let plain = Stage::new(&[]).await.client.get("/openapi.json").await.json();
    let template = &plain["components"]["schemas"]["ChatCompletionRequest"]["properties"]["chat_template"];
    assert_eq!(template["maxLength"], 0, "{template}");
}

#[tokio::test]
async fn the_page_is_for_people_and_needs_nothing_else() {
    let stage = Stage::new(&[]).await;
    let page = stage.client.get("/docs").await;
    assert_eq!(page.headers["content-type"], "text/html; charset=utf-8");
    for part in ["POST /v1/chat/completions", "<code>temperature</code>", "number in [0, 2]", "href=\"openapi.json\""] {
        assert!(page.text().contains(part), "{part}");
    }
    for part in ["<script", "http://", "https://"] {
        assert!(!page.text().contains(part), "{part}");
    }
}

#[tokio::test]
async fn documentation_may_be_switched_off() {
    let stage = Stage::new(&["--disable-fastapi-docs"]).await;
    for path in ["/docs", "/openapi.json"] {
        assert_eq!(stage.client.get(path).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn routes_of_vllm_that_are_missing_say_why() {
    let stage = Stage::new(&[]).await;
    let answer = stage.client.post("/v1/realtime", &json!({"input": "x"})).await;
    assert_eq!((answer.status.as_u16(), answer.error().0.contains("are not served")), (404, true));
}
