//! Routes that pool prompts, with a fake scheduler that says what the model gives.

use std::sync::Arc;

use proto::{
    Delta, DeltaDetails, FinishReason, ModelInfo, PoolingInfo, Request, TokenOutputs,
    pooling::Tokens,
    pooling_info::{Activation, Task},
    prompt::Kind,
};
use serde_json::{Value, json};
use service_kit::{
    Process,
    control::{ControlServer, Handler},
};
use tempfile::TempDir;

use crate::{
    engine::{admitted, delta},
    stage::Stage,
};

fn pooled_values(pooled: Vec<f32>) -> Option<Box<DeltaDetails>> {
    Some(DeltaDetails { pooled, ..DeltaDetails::default() }.into())
}

/// What the scheduler says of the model.
struct Facts(PoolingInfo);

impl Handler for Facts {
    fn model(&self) -> Option<ModelInfo> {
        Some(ModelInfo { max_model_len: 77, pooling: Some(self.0.clone()), ..ModelInfo::default() })
    }
}

/// A gateway in front of a model that pools.
struct Pooling {
    stage: Stage,
    _scheduler: Process,
    _folder: TempDir,
}

impl Pooling {
    async fn new(info: PoolingInfo) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let address = format!("grpc+unix:{}", folder.path().join("control.sock").display());
        let scheduler = Process::new("scheduler-svc");
        let server = ControlServer::new(&scheduler, Arc::new(Facts(info)));
        server.spawn(&[address.parse().expect("an address")]).await.expect("a server");
        scheduler.status.ready();
        let stage = Stage::new(&[&format!("--scheduler-control={address}")]).await;
        let pooling = Self { stage, _scheduler: scheduler, _folder: folder };
        pooling.is_known().await;
        pooling
    }

    /// Waits until the gateway knows what the model gives.
    async fn is_known(&self) {
        while self.stage.client.post("/v1/embeddings", &json!({})).await.status == 503 {
            tokio::task::yield_now().await;
        }
    }

    /// Sends a body, answers its prompts with these outputs, and returns the requests and the answer.
    async fn ask(&mut self, path: &'static str, body: &Value, outputs: &[&[f32]]) -> (Vec<Request>, Value) {
        let answer = self.stage.client.spawn(path, body);
        let mut requests = Vec::new();
        for output in outputs {
            let request = self.stage.engine.request().await;
            let (first, rest) = output.split_at(output.len() / 2);
            let part = Delta { details: pooled_values(first.to_vec()), more: true, ..Delta::default() };
            let last =
                Delta { details: pooled_values(rest.to_vec()), finish: FinishReason::Stop.into(), ..Delta::default() };
            let events = vec![admitted(&request, 3), delta(&request, part), delta(&request, last)];
            self.stage.engine.send(events).await;
            requests.push(request);
        }
        let answer = answer.await.expect("an answer");
        assert_eq!(answer.status, 200, "{}", answer.text());
        (requests, answer.json())
    }

    async fn refusal(&self, path: &'static str, body: &Value) -> (String, Value) {
        let answer = self.stage.client.post(path, body).await;
        assert_eq!(answer.status, 400, "{}", answer.text());
        answer.error()
    }
}

fn embeds() -> PoolingInfo {
    PoolingInfo {
        task: Task::Embed.into(),
        tokens: Tokens::Last.into(),
        width: 4,
        normalize: true,
        matryoshka: true,
        ..PoolingInfo::default()
    }
}

#[tokio::test]
async fn embeddings_are_answered() {
    let mut pooling = Pooling::new(embeds()).await;
    let body = json!({"input": ["a", "b"]});
    let (requests, answer) =
        pooling.ask("/v1/embeddings", &body, &[&[3.0, 4.0, 0.0, 0.0], &[0.0, 0.0, 0.0, 2.0]]).await;
    assert_eq!(requests[0].pooling.expect("it pools").tokens(), Tokens::Last);
    assert_eq!((requests[0].n, requests[0].max_tokens), (1, None));
    assert_eq!(answer["object"], "list");
    assert!(answer["id"].as_str().expect("an id").starts_with("embd-"), "{answer}");
    let expected = json!([
        {"index": 0, "object": "embedding", "embedding": [3.0_f32 / 5.0, 4.0_f32 / 5.0, 0.0, 0.0]},
        {"index": 1, "object": "embedding", "embedding": [0.0, 0.0, 0.0, 1.0]},
    ]);
    let close = |a: &Value, b: &Value| (a.as_f64().expect("a number") - b.as_f64().expect("a number")).abs() < 1e-6;
    for (got, wanted) in answer["data"].as_array().expect("data").iter().zip(expected.as_array().expect("data")) {
        let (values, others) = (got["embedding"].as_array().expect("a list"), wanted["embedding"].as_array());
        assert!(values.iter().zip(others.expect("a list")).all(|(a, b)| close(a, b)), "{got}");
        assert_eq!((&got["index"], &got["object"], values.len()), (&wanted["index"], &wanted["object"], 4));
    }
    assert_eq!((&answer["usage"]["prompt_tokens"], &answer["usage"]["total_tokens"]), (&json!(6), &json!(6)));
    let plain = json!({"input": "a", "normalize": false, "dimensions": 2});
    let (_, answer) = pooling.ask("/v1/embeddings", &plain, &[&[3.0, 4.0, 1.0, 1.0]]).await;
    assert_eq!(answer["data"][0]["embedding"], json!([3.0, 4.0]));
    let plain = json!({"input": "a", "use_activation": false, "encoding_format": "base64"});
    let (_, answer) = pooling.ask("/v1/embeddings", &plain, &[&[1.0, -2.5]]).await;
    assert_eq!(answer["data"][0]["embedding"], "AACAPwAAIMA=");
    for (body, param) in [
        (json!({}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": "a", "dimensions": 5}), "dimensions"),
        (json!({"input": "a", "messages": []}), "messages"),
    ] {
        assert_eq!(pooling.refusal("/v1/embeddings", &body).await.1, json!(param), "{body}");
    }
}

#[tokio::test]
async fn a_conversation_is_embedded() {
    let mut pooling = Pooling::new(embeds()).await;
    let body = json!({"messages": [{"role": "user", "content": "x"}]});
    let (requests, _) = pooling.ask("/v1/embeddings", &body, &[&[1.0, 0.0, 0.0, 0.0]]).await;
    let kind = requests[0].prompt.as_ref().and_then(|prompt| prompt.kind.as_ref());
    assert!(matches!(kind, Some(Kind::Chat(chat)) if !chat.add_generation_prompt), "{kind:?}");
}

#[tokio::test]
async fn shared_fields_reach_the_engine() {
    let mut pooling = Pooling::new(embeds()).await;
    let body = json!({
        "model": "wren", "input": [[1, 2, 3]], "priority": -3, "cache_salt": "s", "request_id": "mine", "user": "u",
        "truncate_prompt_tokens": 2, "truncation_side": "right", "add_special_tokens": false,
    });
    let (requests, answer) = pooling.ask("/v1/embeddings", &body, &[&[1.0, 0.0, 0.0, 0.0]]).await;
    let request = &requests[0];
    assert_eq!((request.priority, request.cache_salt.as_str(), request.truncate_prompt_tokens), (-3, "s", Some(2)));
    assert!(request.truncate_keep_first && answer["id"] == "embd-mine");
    assert!(request.prompt.as_ref().is_some_and(|prompt| !prompt.add_special_tokens));
    let (_, param) = pooling.refusal("/v1/embeddings", &json!({"input": "x", "priority": "x"})).await;
    assert_eq!(param, "priority");
}

#[tokio::test]
async fn bytes_come_with_a_description() {
    let mut pooling = Pooling::new(embeds()).await;
    let body = json!({"input": "a", "encoding_format": "bytes", "normalize": false, "endianness": "big"});
    let answer = pooling.stage.client.spawn("/v1/embeddings", &body);
    let request = pooling.stage.engine.request().await;
    let pooled =
        Delta { details: pooled_values(vec![1.0, 0.5]), finish: FinishReason::Stop.into(), ..Delta::default() };
    pooling.stage.engine.send(vec![admitted(&request, 3), delta(&request, pooled)]).await;
    let answer = answer.await.expect("an answer");
    assert_eq!(answer.body.as_ref(), [0x3f, 0x80, 0, 0, 0x3f, 0, 0, 0]);
    let metadata: Value = serde_json::from_str(answer.headers["metadata"].to_str().expect("text")).expect("JSON");
    assert_eq!(metadata["data"][0]["end"], 8);
    assert_eq!(metadata["usage"]["prompt_tokens"], 3);
}

#[tokio::test]
async fn a_model_does_what_it_was_made_for() {
    let pooling = Pooling::new(embeds()).await;
    let (message, _) = pooling.refusal("/v1/completions", &json!({"prompt": "x"})).await;
    assert!(message.contains("/v1/embeddings"), "{message}");
    let generates = Stage::new(&[]).await;
    while generates.client.post("/v1/embeddings", &json!({"input": "x"})).await.status == 503 {
        tokio::task::yield_now().await;
    }
    let answer = generates.client.post("/v1/embeddings", &json!({"input": "x"})).await;
    assert_eq!(answer.status, 400);
    assert!(answer.error().0.contains("--runner pooling"), "{}", answer.text());
}

fn classifies(count: u32) -> PoolingInfo {
    let activation = if count == 1 { Activation::Sigmoid } else { Activation::Softmax };
    PoolingInfo {
        task: Task::Classify.into(),
        width: count,
        activation: activation.into(),
        labels: (0..count).map(|label| format!("L{label}")).collect(),
        score_class: (count == 1).then_some(0),
        ..PoolingInfo::default()
    }
}

#[tokio::test]
async fn texts_are_classified() {
    let mut pooling = Pooling::new(classifies(2)).await;
    let (_, answer) = pooling.ask("/classify", &json!({"input": "a"}), &[&[3.0, 3.0]]).await;
    let expected = json!([{"index": 0, "label": "L1", "probs": [0.5, 0.5], "num_classes": 2}]);
    assert_eq!(answer["data"], expected);
    for name in ["use_activation", "activation"] {
        let (_, answer) = pooling.ask("/classify", &json!({"input": "a", name: false}), &[&[3.0, -1.0]]).await;
        assert_eq!((&answer["data"][0]["probs"], &answer["data"][0]["label"]), (&json!([3.0, -1.0]), &json!("L0")));
    }
    for (path, body) in [("/v1/embeddings", json!({"input": "a"})), ("/score", json!({"text_1": "a", "text_2": "b"}))] {
        let (message, _) = pooling.refusal(path, &body).await;
        assert!(message.contains("The model"), "{message}");
    }
}

#[tokio::test]
async fn pairs_are_scored() {
    let mut pooling = Pooling::new(classifies(1)).await;
    for path in ["/score", "/v1/score"] {
        let body = json!({"text_1": "q", "text_2": ["a", "b"]});
        let (requests, answer) = pooling.ask(path, &body, &[&[0.0], &[2.0]]).await;
        let kind = requests[1].prompt.as_ref().and_then(|prompt| prompt.kind.as_ref());
        assert!(matches!(kind, Some(Kind::Pair(pair)) if (pair.first.as_str(), pair.second.as_str()) == ("q", "b")));
        assert_eq!(answer["data"][0], json!({"index": 0, "object": "score", "score": 0.5}));
        assert!(answer["data"][1]["score"].as_f64() > Some(0.88));
    }
    for [first, second] in [["queries", "documents"], ["queries", "items"], ["data_1", "data_2"]] {
        let body = json!({first: ["q", "r"], second: ["a", {"text": "b"}], "use_activation": false});
        let (_, answer) = pooling.ask("/score", &body, &[&[0.0], &[2.0]]).await;
        assert_eq!(answer["data"][1]["score"], 2.0);
    }
    for (body, param) in [
        (json!({"text_1": "q"}), "text_1"),
        (json!({"text_1": ["q", "r"], "text_2": ["a"]}), "text_1"),
        (json!({"text_1": "q", "text_2": []}), "text_2"),
        (json!({"text_1": "q", "text_2": 3}), "text_2"),
    ] {
        assert_eq!(pooling.refusal("/score", &body).await.1, json!(param), "{body}");
    }
}

#[tokio::test]
async fn documents_are_ranked() {
    let mut pooling = Pooling::new(classifies(1)).await;
    for path in ["/rerank", "/v1/rerank", "/v2/rerank"] {
        let body = json!({"query": "q", "documents": ["a", "b", "c"], "top_n": 2});
        let (_, answer) = pooling.ask(path, &body, &[&[0.0], &[-2.0], &[3.0]]).await;
        let order: Vec<&Value> =
            answer["results"].as_array().expect("results").iter().map(|one| &one["index"]).collect();
        assert_eq!(order, [2, 0]);
        assert_eq!(answer["results"][1]["relevance_score"], 0.5);
        assert_eq!(answer["results"][0]["document"]["text"], "c");
    }
    let body = json!({"query": "q", "documents": ["a"], "return_documents": false});
    let (_, answer) = pooling.ask("/rerank", &body, &[&[0.0]]).await;
    assert_eq!(answer["results"], json!([{"index": 0, "relevance_score": 0.5}]));
    for (body, param) in [
        (json!({"documents": ["a"]}), "query"),
        (json!({"query": "q"}), "documents"),
        (json!({"query": "q", "documents": ["a"], "max_tokens_per_doc": 9}), "max_tokens_per_doc"),
        (json!({"query": "q", "documents": ["a"], "max_tokens_per_query": 9}), "max_tokens_per_query"),
    ] {
        assert_eq!(pooling.refusal("/rerank", &body).await.1, json!(param), "{body}");
    }
}

#[tokio::test]
async fn outputs_of_tokens_are_lists() {
    let rewards = PoolingInfo { task: Task::Reward.into(), width: 2, ..PoolingInfo::default() };
    let mut pooling = Pooling::new(rewards).await;
    let (requests, answer) = pooling.ask("/pooling", &json!({"input": [1, 2]}), &[&[1.0, 2.0, 3.0, 4.0]]).await;
    assert!(requests[0].pooling.is_some_and(|pooling| pooling.each));
    assert_eq!(answer["data"][0]["data"], json!([[1.0, 2.0], [3.0, 4.0]]));
    assert_eq!(pooling.refusal("/pooling", &json!({"input": "x", "task": "embed"})).await.1, "task");
    let mut pooling = Pooling::new(embeds()).await;
    let body = json!({"input": "x", "task": "token_embed", "use_activation": false});
    let (_, answer) = pooling.ask("/pooling", &body, &[&[0.5; 8]]).await;
    assert_eq!(answer["data"][0]["data"], json!([[0.5, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5]]));
    let (requests, answer) = pooling.ask("/pooling", &json!({"input": "x"}), &[&[2.0, 0.0, 0.0, 0.0]]).await;
    assert!(requests[0].pooling.is_some_and(|pooling| !pooling.each));
    assert_eq!(answer["data"][0]["data"], json!([1.0, 0.0, 0.0, 0.0]));
}

#[tokio::test]
async fn what_is_no_text_is_refused() {
    let pooling = Pooling::new(embeds()).await;
    for (path, body) in [
        ("/v1/embeddings", json!({"input": "x", "mm_processor_kwargs": {"a": 1}})),
        ("/score", json!({"text_1": "x", "text_2": "y", "media_io_kwargs": {"image": {}}})),
        ("/score", json!({"text_1": "x", "text_2": "y", "max_tokens_per_doc": 9})),
        ("/pooling", json!({"data": {"a": 1}})),
    ] {
        let (message, param) = pooling.refusal(path, &body).await;
        let named = body.as_object().and_then(|fields| fields.keys().find(|name| param == name.as_str()));
        assert!(named.is_some() && message.contains("not supported"), "{body}: {message}");
    }
}

#[tokio::test]
async fn tokens_of_two_texts_find_each_other() {
    let info = PoolingInfo { task: Task::TokenEmbed.into(), width: 2, normalize: true, ..PoolingInfo::default() };
    let mut pooling = Pooling::new(info).await;
    let (requests, answer) = pooling
        .ask(
            "/score",
            &json!({"text_1": "q", "text_2": ["a", "b"]}),
            &[&[2.0, 0.0, 0.0, 1.0], &[0.0, 3.0], &[0.0, 5.0, 4.0, 0.0]],
        )
        .await;
    assert!(requests.iter().all(|request| request.pooling.is_some_and(|pooling| pooling.each)));
    assert_eq!((&answer["data"][0]["score"], &answer["data"][1]["score"]), (&json!(1.0), &json!(2.0)));
    let (_, answer) = pooling.ask("/pooling", &json!({"input": "x"}), &[&[0.0, 2.0, 3.0, 4.0]]).await;
    assert_eq!(answer["data"][0]["data"], json!([[0.0, 1.0], [0.6, 0.8]]));
    let (message, _) = pooling.refusal("/v1/embeddings", &json!({"input": "x"})).await;
    assert!(message.contains("a vector of each token") && message.contains("/rerank"), "{message}");
}

/// bge-m3: a vector of a prompt, and behind it a vector and a weight of each token; the first token has neither, the
/// last one has no weight.
#[tokio::test]
async fn tokens_have_vectors_and_weights() {
    let outputs = TokenOutputs { vector: 2, bos_token: Some(0), eos_token: Some(9) };
    let info = PoolingInfo { token_outputs: Some(outputs), tokens: Tokens::All.into(), matryoshka: false, ..embeds() };
    let mut pooling = Pooling::new(info).await;
    let columns = |request: &Request| {
        let pooling = request.pooling.expect("it pools");
        (pooling.first_column, pooling.columns, pooling.each)
    };
    let ids = |ids: &[u32]| json!({"input": ids, "task": "token_embed"});
    let (requests, answer) = pooling.ask("/pooling", &ids(&[0, 5, 9]), &[&[7.0, 7.0, 3.0, 4.0, 0.0, 2.0]]).await;
    assert_eq!(columns(&requests[0]), (4, 2, true));
    assert_eq!(answer["data"][0]["data"], json!([[0.6, 0.8], [0.0, 1.0]]));
    let (_, answer) = pooling.ask("/pooling", &ids(&[5]), &[&[0.0, 2.0]]).await;
    assert_eq!(answer["data"][0]["data"], json!([[0.0, 1.0]]));
    let weights = |ids: &[u32], raw: bool| json!({"input": ids, "task": "token_classify", "use_activation": !raw});
    let (requests, answer) = pooling.ask("/pooling", &weights(&[0, 5, 6, 9], false), &[&[7.0, 0.5, -0.5, 7.0]]).await;
    assert_eq!((columns(&requests[0]), &answer["data"][0]["data"]), ((6, 1, true), &json!([0.5, 0.0])));
    let (_, answer) = pooling.ask("/pooling", &weights(&[0, 5, 6], true), &[&[7.0, 0.5, -0.5]]).await;
    assert_eq!(answer["data"][0]["data"], json!([0.5, -0.5]));
    let (_, answer) = pooling.ask("/pooling", &weights(&[0, 9], false), &[&[7.0, 7.0]]).await;
    assert_eq!(answer["data"][0]["data"], json!([]));
    for path in ["/v1/embeddings", "/pooling"] {
        let (requests, _) = pooling.ask(path, &json!({"input": "x"}), &[&[1.0, 0.0, 0.0, 0.0]]).await;
        assert_eq!(columns(&requests[0]), (0, 4, false), "{path}");
    }
    let (message, _) = pooling.refusal("/pooling", &json!({"input": "x", "task": "classify"})).await;
    assert!(message.contains("token_classify"), "{message}");
}

#[tokio::test]
async fn coheres_shapes_are_embeddings() {
    let prompts = [("query".to_owned(), "Q: ".to_owned())].into();
    let mut pooling = Pooling::new(PoolingInfo { prompts, ..embeds() }).await;
    let body = json!({
        "model": "wren", "texts": ["x"], "input_type": "search_query", "embedding_types": ["float", "ubinary"],
        "output_dimension": 2, "truncate": "START",
    });
    let (requests, answer) = pooling.ask("/v2/embed", &body, &[&[3.0, 4.0, 0.0, 0.0]]).await;
    let kind = requests[0].prompt.as_ref().and_then(|prompt| prompt.kind.as_ref());
    assert!(matches!(kind, Some(Kind::Text(text)) if text == "Q: x"), "{kind:?}");
    assert_eq!((requests[0].truncate_prompt_tokens, requests[0].truncate_keep_first), (Some(77), false));
    assert_eq!(answer["embeddings"], json!({"float": [[0.6, 0.8]], "ubinary": [[192]]}));
    assert_eq!(answer["texts"], json!(["x"]));
    for (body, param) in [
        (json!({"texts": []}), "texts"),
        (json!({"texts": ["x"], "images": []}), "images"),
        (json!({"texts": ["x"], "inputs": []}), "inputs"),
        (json!({"texts": ["x"], "embedding_types": ["int8"]}), "embedding_types"),
        (json!({"texts": ["x"], "input_type": "x"}), "input_type"),
    ] {
        assert_eq!(pooling.refusal("/v2/embed", &body).await.1, json!(param), "{body}");
    }
}
