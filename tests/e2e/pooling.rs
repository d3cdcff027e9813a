//! Models that pool prompts, served whole: outputs are the recorded ones, alone and beside others.

use anyhow::{Context, ensure};
use e2e_tests::{Client, Server, zoo};
use futures::future::try_join_all;
use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value, json};

use crate::pickle::{Form, pickled};

/// A server with a model of the zoo in float32, and what was recorded of it; absent where this zoo lacks it.
async fn served(model: &str, flags: &[&str]) -> anyhow::Result<Option<(Server, Vec<Value>)>> {
    let Some(reference) = zoo::pooled(model) else {
        println!("{model}: not in this zoo");
        return Ok(None);
    };
    let path = zoo::folder().join(model).display().to_string();
    let args = [&[path.as_str(), "--served-model-name", "m", "--dtype", "float32"], flags].concat();
    let inputs = reference["inputs"].as_array().context("inputs")?.clone();
    Ok(Some((Server::start(&args).await?, inputs)))
}

fn numbers(values: &Value) -> Vec<f32> {
    values.as_array().into_iter().flatten().filter_map(Value::as_f64).map(|value| value as f32).collect()
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// Embeds token ids, and compares with what was recorded.
async fn check_embeddings(client: &Client, model: &str, inputs: &[(usize, &Value)]) -> anyhow::Result<()> {
    let ids: Vec<&Value> = inputs.iter().map(|(_, input)| &input["ids"]).collect();
    let (status, answer) = client.post("/v1/embeddings", &json!({"input": ids})).await?;
    ensure!(status == 200, "{answer}");
    for ((index, _), got) in inputs.iter().zip(answer["data"].as_array().context("data")?) {
        let expected = zoo::tensor(model, &format!("input{index}.embedding")).context("recorded")?;
        let got = numbers(&got["embedding"]);
        ensure!(got.len() == expected.len(), "{model}, input {index}: {} numbers", got.len());
        let cosine = cosine(&got, &expected);
        ensure!(cosine >= 0.99999, "{model}, input {index}: cosine {cosine}");
    }
    let tokens: usize = ids.iter().map(|ids| ids.as_array().map_or(0, Vec::len)).sum();
    ensure!(answer["usage"]["prompt_tokens"] == tokens, "{}", answer["usage"]);
    Ok(())
}

#[tokio::test]
async fn embeddings_are_the_recorded_ones() -> anyhow::Result<()> {
    for model in ["bert-embed", "bert-embed-cls", "e5-mistral-embed", "modernbert-embed", "roberta-embed"] {
        let Some((server, inputs)) = served(model, &[]).await? else { continue };
        let client = server.client();
        let all: Vec<(usize, &Value)> = inputs.iter().enumerate().collect();
        check_embeddings(&client, model, &all).await?;
        // Alone, all at once, and each several times so that they meet.
        let alone = all.iter().chain(&all).chain(&all);
        try_join_all(alone.map(|one| check_embeddings(&client, model, std::slice::from_ref(one)))).await?;
        let tokens = client.metric("vllm:prompt_tokens_total", "").await?;
        ensure!(tokens > 0.0, "prompt tokens are counted");
        let (status, answer) = client.post("/v1/completions", &json!({"prompt": "x"})).await?;
        ensure!(status == 400 && answer.to_string().contains("/v1/embeddings"), "{answer}");
    }
    Ok(())
}

/// A decoder's prompts run in chunks, and where its last token counts their prefixes are found again.
#[tokio::test]
async fn a_decoders_prompts_are_cut_and_found_again() -> anyhow::Result<()> {
    let model = "e5-mistral-embed";
    let flags = ["--max-num-batched-tokens", "16", "--max-num-seqs", "4", "--block-size", "4"];
    let flags = [&flags[..], &["--enable-prompt-tokens-details"]].concat();
    let Some((server, inputs)) = served(model, &flags).await? else { return Ok(()) };
    let client = server.client();
    let all: Vec<(usize, &Value)> = inputs.iter().enumerate().collect();
    ensure!(inputs.iter().any(|input| input["ids"].as_array().is_some_and(|ids| ids.len() > 16)), "a long input");
    check_embeddings(&client, model, &all).await?;
    for one in &all {
        check_embeddings(&client, model, std::slice::from_ref(one)).await?;
    }
    let longest = inputs.iter().max_by_key(|input| input["ids"].as_array().map_or(0, Vec::len)).context("an input")?;
    let cached = async |body: Value, path: &str| -> anyhow::Result<u64> {
        let (status, answer) = client.post(path, &body).await?;
        ensure!(status == 200, "{answer}");
        Ok(answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0))
    };
    let found = cached(json!({"input": longest["ids"]}), "/v1/embeddings").await?;
    let each = cached(json!({"input": longest["ids"], "task": "token_embed"}), "/pooling").await?;
    ensure!(found >= 16 && each == 0, "{found} and {each} tokens were found again");
    Ok(())
}

#[tokio::test]
async fn a_model_that_generates_is_converted() -> anyhow::Result<()> {
    let path = zoo::folder().join("llama").display().to_string();
    let generating = Server::start(&[&path, "--dtype", "float32"]).await?;
    let (status, answer) = generating.client().post("/v1/embeddings", &json!({"input": "x"})).await?;
    ensure!(status == 400 && answer.to_string().contains("--runner pooling"), "{answer}");
    drop(generating);
    let server = Server::start(&[
        &path,
        "--dtype",
        "float32",
        "--runner",
        "pooling",
        "--pooler-config",
        "{\"pooling_type\":\"MEAN\"}",
    ])
    .await?;
    let (status, answer) = server.client().post("/v1/embeddings", &json!({"input": [5, 6, 7]})).await?;
    ensure!(status == 200, "{answer}");
    let values = numbers(&answer["data"][0]["embedding"]);
    let length = values.iter().map(|value| value * value).sum::<f32>().sqrt();
    ensure!(values.len() > 1 && (length - 1.0).abs() < 1e-5, "{} numbers of length {length}", values.len());
    Ok(())
}

#[tokio::test]
async fn two_ranks_give_the_same_embeddings() -> anyhow::Result<()> {
    for model in ["e5-mistral-embed", "modernbert-embed", "roberta-embed"] {
        let Some((server, inputs)) = served(model, &["--tensor-parallel-size", "2"]).await? else { continue };
        let all: Vec<(usize, &Value)> = inputs.iter().enumerate().collect();
        check_embeddings(&server.client(), model, &all).await?;
    }
    Ok(())
}

/// The scores that were recorded of a model's pairs.
fn recorded(inputs: &[Value], key: &str) -> Vec<f64> {
    inputs.iter().filter_map(|input| input[key].as_f64()).collect()
}

#[tokio::test]
async fn pairs_are_scored_as_recorded() -> anyhow::Result<()> {
    for model in ["bert-rerank", "modernbert-rerank", "xlm-roberta-rerank"] {
        let Some((server, inputs)) = served(model, &[]).await? else { continue };
        let client = server.client();
        let texts = |key: &str| inputs.iter().map(|input| input[key].clone()).collect::<Vec<Value>>();
        let (first, second) = (texts("text"), texts("text_pair"));
        let body = json!({"text_1": first, "text_2": second, "use_activation": false});
        let (status, answer) = client.post("/score", &body).await?;
        ensure!(status == 200, "{answer}");
        let scores: Vec<f64> =
            answer["data"].as_array().context("data")?.iter().filter_map(|one| one["score"].as_f64()).collect();
        let expected = recorded(&inputs, "score");
        ensure!(scores.len() == expected.len() && !scores.is_empty(), "{model}: {answer}");
        for (got, expected) in scores.iter().zip(&expected) {
            ensure!((got - expected).abs() < 1e-3, "{model}: {scores:?}, recorded {expected:?}");
        }
        // One query with each document, in the order of scores.
        let body = json!({"query": first[0], "documents": second});
        let (status, answer) = client.post("/v1/rerank", &body).await?;
        ensure!(status == 200, "{answer}");
        let results = answer["results"].as_array().context("results")?;
        let scores: Vec<f64> = results.iter().filter_map(|one| one["relevance_score"].as_f64()).collect();
        ensure!(scores.len() == second.len() && scores.is_sorted_by(|a, b| a >= b), "{answer}");
        let of_first = results.iter().find(|one| one["index"] == 0).context("the first document")?;
        let sigmoid = |score: f64| 1.0 / (1.0 + (-score).exp());
        let expected = if model == "bert-rerank" { expected[0] } else { sigmoid(expected[0]) };
        ensure!(
            (of_first["relevance_score"].as_f64().context("a score")? - expected).abs() < 1e-3,
            "{model}: {answer}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn classes_and_rewards_are_the_recorded_ones() -> anyhow::Result<()> {
    if let Some((server, inputs)) = served("qwen2-classify", &[]).await? {
        let ids: Vec<&Value> = inputs.iter().map(|input| &input["ids"]).collect();
        let (status, answer) = server.client().post("/classify", &json!({"input": ids})).await?;
        ensure!(status == 200, "{answer}");
        for (input, got) in inputs.iter().zip(answer["data"].as_array().context("data")?) {
            let (probs, expected) = (numbers(&got["probs"]), numbers(&input["probs"]));
            ensure!(probs.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-3), "{got} {expected:?}");
            ensure!(got["label"] == input["label"] && got["num_classes"] == 3, "{got}");
        }
    }
    for (model, width) in [("qwen2-reward", 1), ("qwen2-process-reward", 2)] {
        let Some((server, inputs)) = served(model, &["--max-num-batched-tokens", "40"]).await? else { continue };
        let ids: Vec<&Value> = inputs.iter().map(|input| &input["ids"]).collect();
        let body = json!({"input": ids, "use_activation": false});
        let (status, answer) = server.client().post("/pooling", &body).await?;
        ensure!(status == 200, "{answer}");
        for (index, got) in answer["data"].as_array().context("data")?.iter().enumerate() {
            let expected = zoo::tensor(model, &format!("input{index}.token_scores")).context("recorded")?;
            let rows = got["data"].as_array().context("rows")?;
            let scores: Vec<f32> = rows.iter().flat_map(numbers).collect();
            ensure!(rows.len() * width == expected.len() && scores.len() == expected.len(), "{model}: {got}");
            ensure!(scores.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-3), "{model}, input {index}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn an_encoders_prompt_fits_a_step() -> anyhow::Result<()> {
    let Some((server, _)) = served("bert-embed", &["--max-num-batched-tokens", "64", "--max-num-seqs", "8"]).await?
    else {
        return Ok(());
    };
    let client = server.client();
    let (status, answer) = client.post("/v1/embeddings", &json!({"input": vec![5; 64]})).await?;
    ensure!(status == 200, "{answer}");
    let (status, answer) = client.post("/v1/embeddings", &json!({"input": vec![5; 65]})).await?;
    ensure!(status == 400 && answer.to_string().contains("64"), "{answer}");
    let (status, answer) =
        client.post("/v1/embeddings", &json!({"input": vec![5; 65], "truncate_prompt_tokens": -1})).await?;
    ensure!(status == 200 && answer["usage"]["prompt_tokens"] == 64, "{answer}");
    Ok(())
}

/// Scores of pairs by two tokens' logits are the same, whether `config.json` or the pooler's configuration names them.
#[tokio::test]
async fn keys_of_the_configuration_are_overridden() -> anyhow::Result<()> {
    let path = zoo::folder().join("qwen3").display().to_string();
    let class = r#"{"architectures": ["Qwen3ForSequenceClassification"], "classifier_from_token": [5, 9]}"#;
    let pooler = r#"{"classifier_from_token": [5, 9]}"#;
    let mut scores = Vec::new();
    for flags in [["--hf-overrides", class], ["--pooler-config", pooler]] {
        let server = Server::start(&[&path, "--dtype", "float32", flags[0], flags[1]]).await?;
        let body = json!({"text_1": "what?", "text_2": ["this", "that"]});
        let (status, answer) = server.client().post("/score", &body).await?;
        ensure!(status == 200 && answer["data"].as_array().is_some_and(|data| data.len() == 2), "{answer}");
        scores.push(answer["data"].clone());
    }
    ensure!(scores[0] == scores[1], "{scores:?}");
    let server = Server::start(&[&path, "--dtype", "float32", "--hf-overrides", r#"{"is_causal": false}"#]).await?;
    let (status, answer) = server.client().post("/v1/completions", &json!({"prompt": "x"})).await?;
    ensure!(status == 400 && answer.to_string().contains("/v1/embeddings"), "{answer}");
    Ok(())
}

/// A reranker's template is given by the user; what it makes of a pair is what `/classify` reads as one text.
#[tokio::test]
async fn pairs_are_rendered_by_the_users_template() -> anyhow::Result<()> {
    let path = zoo::folder().join("qwen3").display().to_string();
    let pooler = r#"{"classifier_from_token": [5, 9]}"#;
    let template = "{{ instruction | default('judge') }}|{{ messages[0].content }}|{{ messages[1]['content'] }}";
    let pair = json!({"text_1": "what?", "text_2": "this"});
    let with = |key: &str, value: serde_json::Value| {
        let mut body = pair.clone();
        body[key] = value;
        body
    };
    let flags = [&path, "--dtype", "float32", "--pooler-config", pooler];
    let server = Server::start(&[&flags[..], &["--chat-template", template]].concat()).await?;
    let client = server.client();
    for (body, text) in [
        (pair.clone(), "judge|what?|this"),
        (with("instruction", json!("find")), "find|what?|this"),
        (with("chat_template_kwargs", json!({"instruction": "seek"})), "seek|what?|this"),
    ] {
        let (status, scored) = client.post("/score", &body).await?;
        ensure!(status == 200, "{scored}");
        let (status, classes) = client.post("/classify", &json!({"input": text})).await?;
        ensure!(status == 200, "{classes}");
        let (score, class) = (&scored["data"][0]["score"], &classes["data"][0]["probs"][1]);
        ensure!(score == class && score.is_number(), "{text}: {scored} {classes}");
    }
    drop(server);
    let server = Server::start(&flags).await?;
    let (status, refusal) = server.client().post("/score", &with("instruction", json!("find"))).await?;
    ensure!(status == 400 && refusal.to_string().contains("--chat-template"), "{refusal}");
    Ok(())
}

/// A linear layer that is made up.
struct Layer {
    weight: Vec<f32>,
    bias: Vec<f32>,
    width: usize,
}

impl Layer {
    fn new(rows: usize, width: usize) -> Self {
        let number = |index: usize| (index as f32 * 0.7).sin() / 4.0;
        Self { weight: (0..rows * width).map(number).collect(), bias: (1..=rows).map(number).collect(), width }
    }

    fn of(&self, row: &[f32]) -> Vec<f32> {
        let dot = |(weight, bias): (&[f32], &f32)| weight.iter().zip(row).map(|(a, b)| a * b).sum::<f32>() + bias;
        self.weight.chunks(self.width).zip(&self.bias).map(dot).collect()
    }

    /// Writes it as PyTorch does.
    fn save(&self, file: &std::path::Path) -> anyhow::Result<()> {
        let bytes = |numbers: &[f32]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
        let (weight, bias, rows) = (bytes(&self.weight), bytes(&self.bias), self.bias.len());
        let weight = TensorView::new(Dtype::F32, vec![rows, self.width], &weight)?;
        let bias = TensorView::new(Dtype::F32, vec![rows], &bias)?;
        Ok(std::fs::write(file, pickled(Form::Archive, &[("weight", weight), ("bias", bias)]))?)
    }
}

fn close(got: &[f32], expected: &[f32]) -> bool {
    got.len() == expected.len() && got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-4)
}

/// What `/pooling` gives of each token of a text: rows of numbers, or numbers.
async fn of_tokens(client: &Client, body: &Value) -> anyhow::Result<Vec<Vec<f32>>> {
    let (status, answer) = client.post("/pooling", body).await?;
    ensure!(status == 200, "{answer}");
    let rows = answer["data"][0]["data"].as_array().context("rows")?;
    Ok(rows.iter().map(|row| row.as_f64().map_or_else(|| numbers(row), |number| vec![number as f32])).collect())
}

/// bge-m3: each token's vector and weight are what two layers beside the model's weights make of its hidden state.
#[tokio::test]
async fn tokens_have_vectors_and_weights() -> anyhow::Result<()> {
    const WIDTH: usize = 96;
    let model = zoo::folder().join("xlm-roberta-rerank");
    if !model.is_dir() {
        println!("xlm-roberta-rerank: not in this zoo");
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    for entry in std::fs::read_dir(&model)? {
        let file = entry?.file_name();
        std::os::unix::fs::symlink(model.join(&file), folder.path().join(&file))?;
    }
    let (vector, weight) = (Layer::new(WIDTH, WIDTH), Layer::new(1, WIDTH));
    vector.save(&folder.path().join("colbert_linear.pt"))?;
    weight.save(&folder.path().join("sparse_linear.pt"))?;
    let path = folder.path().display().to_string();
    let serve = async |class: &str| {
        let class = format!("{{\"architectures\": [\"{class}\"]}}");
        Server::start(&[path.as_str(), "--dtype", "float32", "--hf-overrides", &class]).await
    };
    let text = "The cat sat on the mat.";
    let asked = |task: &str| json!({"input": text, "task": task});
    let plain = serve("XLMRobertaModel").await?;
    let mut body = asked("token_embed");
    body["use_activation"] = false.into();
    let hidden = of_tokens(&plain.client(), &body).await?;
    ensure!(hidden.len() > 3 && hidden.iter().all(|row| row.len() == WIDTH), "{} rows", hidden.len());
    let dense = of_tokens(&plain.client(), &asked("embed")).await?;
    drop(plain);

    let server = serve("BgeM3EmbeddingModel").await?;
    let client = server.client();
    ensure!(close(&of_tokens(&client, &asked("embed")).await?.concat(), &dense.concat()), "the prompt's vector");
    let vectors = of_tokens(&client, &asked("token_embed")).await?;
    ensure!(vectors.len() == hidden.len() - 1, "{} vectors of {} tokens", vectors.len(), hidden.len());
    for (got, row) in vectors.iter().zip(&hidden[1..]) {
        let expected = vector.of(row);
        let length = expected.iter().map(|number| number * number).sum::<f32>().sqrt();
        ensure!(close(got, &expected.iter().map(|number| number / length).collect::<Vec<_>>()), "{got:?}");
    }
    let weights = of_tokens(&client, &asked("token_classify")).await?.concat();
    let expected: Vec<f32> = hidden[1..hidden.len() - 1].iter().map(|row| weight.of(row)[0].max(0.0)).collect();
    ensure!(close(&weights, &expected), "{weights:?}, not {expected:?}");
    Ok(())
}
