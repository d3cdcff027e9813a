//! What the gateway learns from other processes' control planes: readiness, model facts, metrics, tokenization.

use std::sync::{Arc, atomic::Ordering};

use proto::{
    DetokenizeReply, DetokenizeRequest, ModelInfo, TokenizeReply, TokenizeRequest, prompt,
    tokenizer_service_server::{TokenizerService, TokenizerServiceServer},
};
use serde_json::json;
use service_kit::{
    Process,
    control::{ControlServer, Handler},
};
use tempfile::TempDir;
use tonic::{Request, Response};

use crate::stage::Stage;

/// A tokenizer whose tokens are bytes.
struct Bytewise;

#[tonic::async_trait]
impl TokenizerService for Bytewise {
    async fn tokenize(&self, request: Request<TokenizeRequest>) -> Result<Response<TokenizeReply>, tonic::Status> {
        let request = request.into_inner();
        let text = match request.prompt.and_then(|prompt| prompt.kind) {
            Some(prompt::Kind::Text(text)) => text,
            Some(prompt::Kind::Chat(chat)) => chat.messages_json,
            other => return Err(tonic::Status::invalid_argument(format!("{other:?}"))),
        };
        let tokens = text.bytes().map(u32::from).collect();
        let token_strs = if request.return_token_strs { text.chars().map(String::from).collect() } else { Vec::new() };
        Ok(Response::new(TokenizeReply { tokens, token_strs, failure: None }))
    }

    async fn detokenize(
        &self,
        request: Request<DetokenizeRequest>,
    ) -> Result<Response<DetokenizeReply>, tonic::Status> {
        let bytes: Vec<u8> = request.into_inner().tokens.iter().map(|token| *token as u8).collect();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(Response::new(DetokenizeReply { text, failure: None }))
    }
}

struct Facts;

impl Handler for Facts {
    fn model(&self) -> Option<ModelInfo> {
        Some(ModelInfo {
            max_model_len: 77,
            vocab_size: 256,
            generation_config_json: r#"{"temperature": 0.25}"#.into(),
            ..ModelInfo::default()
        })
    }
}

struct Tokenizer {
    process: Process,
    flag: String,
    _folder: TempDir,
}

impl Tokenizer {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = format!("grpc+unix:{}", folder.path().join("control.sock").display());
        let process = Process::new("tokenizer-svc");
        let server = ControlServer::new(&process, Arc::new(Facts)).with(TokenizerServiceServer::new(Bytewise));
        server.spawn(&[address.parse().unwrap()]).await.unwrap();
        process.status.ready();
        Self { process, flag: format!("--tokenizer-control={address}"), _folder: folder }
    }
}

#[tokio::test]
async fn health_follows_the_other_processes() {
    let tokenizer = Tokenizer::new().await;
    let stage = Stage::new(&[&tokenizer.flag]).await;
    tokenizer.process.status.not_ready("loading the vocabulary");
    stage.health_is(503).await;
    let answer = stage.client.get("/health").await;
    assert!(answer.error().0.contains("tokenizer: loading the vocabulary"), "{}", answer.text());
    tokenizer.process.status.ready();
    stage.healthy().await;
    tokenizer.process.shutdown.cancel();
    stage.health_is(503).await;
}

#[tokio::test]
async fn the_models_facts_are_learned() {
    let tokenizer = Tokenizer::new().await;
    let mut stage = Stage::new(&[&tokenizer.flag]).await;
    while !stage.process.status.is_ready() {
        tokio::task::yield_now().await;
    }
    assert_eq!(stage.client.get("/v1/models").await.json()["data"][0]["max_model_len"], 77);
    let answer = stage.client.post("/v1/completions", &json!({"prompt": [1, 256]})).await;
    assert_eq!((answer.status.as_u16(), answer.error().1), (400, json!("prompt")));
    let answer = stage.client.post("/v1/completions", &json!({"prompt": "x", "logit_bias": {"256": 1}})).await;
    assert_eq!((answer.status.as_u16(), answer.error().1), (400, json!("logit_bias")));
    let answer = stage.client.spawn("/v1/completions", &json!({"prompt": "x"}));
    let request = stage.engine.request().await;
    assert_eq!(request.sampling.clone().unwrap().temperature, 0.25);
    stage.engine.answer(&request, &["ok"]).await;
    assert_eq!(answer.await.unwrap().status, 200);
}

#[tokio::test]
async fn prompts_are_tokenized_and_back() {
    let tokenizer = Tokenizer::new().await;
    let stage = Stage::new(&[&tokenizer.flag]).await;
    while !stage.process.status.is_ready() {
        tokio::task::yield_now().await;
    }
    let answer = stage.client.post("/tokenize", &json!({"prompt": "abc", "return_token_strs": true})).await;
    let expected = json!({"count": 3, "max_model_len": 77, "tokens": [97, 98, 99], "token_strs": ["a", "b", "c"]});
    assert_eq!(answer.json(), expected);
    let chat = stage.client.post("/tokenize", &json!({"messages": [{"role": "user", "content": "x"}]})).await;
    assert!(chat.json()["count"].as_u64() > Some(10));
    let answer = stage.client.post("/detokenize", &json!({"tokens": [104, 105]})).await;
    assert_eq!(answer.json(), json!({"prompt": "hi"}));
    for (path, body, param) in [
        ("/tokenize", json!({"prompt": ["a", "b"]}), "prompt"),
        ("/tokenize", json!({}), "prompt"),
        ("/tokenize", json!({"messages": []}), "messages"),
        ("/detokenize", json!({"tokens": [256]}), "tokens"),
        ("/detokenize", json!({"tokens": "x"}), "tokens"),
        ("/detokenize", json!({}), "tokens"),
    ] {
        let answer = stage.client.post(path, &body).await;
        assert_eq!((answer.status.as_u16(), answer.error().1), (400, json!(param)), "{path} {body}");
    }
}

#[tokio::test]
async fn metrics_of_all_processes_are_one_text() {
    let tokenizer = Tokenizer::new().await;
    let counter = prometheus_client::metrics::counter::Counter::<u64, std::sync::atomic::AtomicU64>::default();
    tokenizer.process.metrics.register(|registry| registry.register("quire_probe", "Probe", counter.clone()));
    counter.inner().store(5, Ordering::Relaxed);
    let stage = Stage::new(&[&tokenizer.flag]).await;
    assert_eq!(stage.metric("quire_probe_total").await, 5.0);
    let text = stage.client.get("/metrics").await;
    assert!(text.text().contains("# TYPE vllm:prompt_tokens_total counter\n"));
    assert!(!text.text().contains("# EOF"));
}
