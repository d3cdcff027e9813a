//! A small HTTP client for tests; the official clients have tests of their own.

use std::time::Duration;

use anyhow::Context;
use futures::{StreamExt, stream::BoxStream};
use reqwest::header::AUTHORIZATION;
use serde_json::Value;

/// Talks to one server.
#[derive(Clone)]
pub struct Client {
    base: String,
    http: reqwest::Client,
}

/// A greedy completion of token ids.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ask<'a> {
    /// Token ids, taken as they are.
    pub prompt: &'a [u32],
    /// Tokens to generate.
    pub max_tokens: usize,
    /// Keeps the prompt apart from equal ones in the prefix cache.
    pub cache_salt: Option<&'a str>,
    /// Whether to ask for the log-probabilities of the generated tokens.
    pub logprobs: bool,
    /// Whether to ask for those of the prompt.
    pub prompt_logprobs: bool,
}

/// What came back.
#[derive(Clone, Debug, Default)]
pub struct Said {
    /// Generated tokens.
    pub tokens: Vec<u32>,
    /// Their log-probabilities, if asked for.
    pub logprobs: Vec<f64>,
    /// Log-probability and rank of each prompt token from the second on, if asked for.
    pub prompt_logprobs: Vec<(f64, u64)>,
    /// Prompt tokens found in the prefix cache, where the server tells.
    pub cached: Option<u64>,
}

/// A streamed answer, event by event.
pub struct Stream {
    body: BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    buffer: Vec<u8>,
}

impl Client {
    /// A client of the server at `base`, without connection reuse between servers.
    pub fn new(base: String) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().timeout(Duration::from_secs(120)).build().expect("an HTTP client");
        Self { base, http }
    }

    /// The same, presenting a key.
    pub fn with_key(base: String, key: &str) -> anyhow::Result<Self> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let headers = [(AUTHORIZATION, format!("Bearer {key}").parse()?)].into_iter().collect();
        let http = reqwest::Client::builder().timeout(Duration::from_secs(120)).default_headers(headers).build()?;
        Ok(Self { base, http })
    }

    /// Status of `/health`, if the server answers at all.
    pub async fn health(&self) -> Option<u16> {
        let answer = self.http.get(format!("{}/health", self.base)).timeout(Duration::from_secs(5)).send().await;
        answer.ok().map(|answer| answer.status().as_u16())
    }

    /// GET, as text.
    pub async fn get(&self, path: &str) -> anyhow::Result<(u16, String)> {
        let answer = self.http.get(format!("{}{path}", self.base)).send().await?;
        Ok((answer.status().as_u16(), answer.text().await?))
    }

    /// POST of JSON; status and JSON.
    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<(u16, Value)> {
        let (status, text) = self.post_raw(path, serde_json::to_vec(body)?).await?;
        let value = serde_json::from_str(&text).with_context(|| format!("{status}: {text}"))?;
        Ok((status, value))
    }

    /// POST of any bytes as JSON; status and text.
    pub async fn post_raw(&self, path: &str, body: Vec<u8>) -> anyhow::Result<(u16, String)> {
        let request = self.http.post(format!("{}{path}", self.base)).header("content-type", "application/json");
        let answer = request.body(body).send().await?;
        Ok((answer.status().as_u16(), answer.text().await?))
    }

    /// POST whose answer is a stream of server-sent events.
    pub async fn stream(&self, path: &str, body: &Value) -> anyhow::Result<(u16, Stream)> {
        let request = self.http.post(format!("{}{path}", self.base)).header("content-type", "application/json");
        let answer = request.body(serde_json::to_vec(body)?).send().await?;
        let status = answer.status().as_u16();
        Ok((status, Stream { body: answer.bytes_stream().boxed(), buffer: Vec::new() }))
    }

    /// Greedy completion of token ids: the tokens.
    pub async fn greedy(&self, model: &str, prompt: &[u32], max_tokens: usize) -> anyhow::Result<Vec<u32>> {
        Ok(self.complete(model, Ask { prompt, max_tokens, ..Ask::default() }).await?.tokens)
    }

    /// Greedy completion of token ids: all that there is to know.
    pub async fn complete(&self, model: &str, ask: Ask<'_>) -> anyhow::Result<Said> {
        let mut body = serde_json::json!({
            "model": model, "prompt": ask.prompt, "max_tokens": ask.max_tokens, "temperature": 0, "ignore_eos": true,
            "return_token_ids": true, "add_special_tokens": false, "cache_salt": ask.cache_salt,
        });
        if ask.logprobs {
            body["logprobs"] = 0.into();
        }
        if ask.prompt_logprobs {
            body["prompt_logprobs"] = 0.into();
        }
        let (status, answer) = self.post("/v1/completions", &body).await?;
        anyhow::ensure!(status == 200, "{status}: {answer}");
        let choice = &answer["choices"][0];
        let ids = choice["token_ids"].as_array().context("token_ids")?;
        let logprobs = choice["logprobs"]["token_logprobs"].as_array().into_iter().flatten();
        let of_prompt = choice["prompt_logprobs"].as_array().into_iter().flatten().skip(1).zip(&ask.prompt[1..]);
        let scored = |(entry, id): (&Value, &u32)| {
            let entry = &entry[id.to_string()];
            entry["logprob"].as_f64().zip(entry["rank"].as_u64()).context("a prompt token's log-probability")
        };
        Ok(Said {
            tokens: ids.iter().filter_map(|id| id.as_u64().map(|id| id as u32)).collect(),
            logprobs: logprobs.filter_map(Value::as_f64).collect(),
            prompt_logprobs: of_prompt.map(scored).collect::<anyhow::Result<_>>()?,
            cached: answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64(),
        })
    }

    /// Value of a metric, summed over its label sets whose text contains `labels`; 0 when absent.
    pub async fn metric(&self, name: &str, labels: &str) -> anyhow::Result<f64> {
        let (_, text) = self.get("/metrics").await?;
        let samples = text.lines().filter(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])) && line.contains(labels)
        });
        Ok(samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    }
}

impl Stream {
    /// The next event's data: a JSON value, or `None` after `[DONE]` or the end of the body.
    pub async fn next(&mut self) -> anyhow::Result<Option<Value>> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|two| two == b"\n\n") {
                let event: Vec<u8> = self.buffer.drain(..end + 2).collect();
                let event = String::from_utf8(event).context("an event is UTF-8")?;
                let Some(data) = event.trim().strip_prefix("data: ") else { continue };
                if data == "[DONE]" {
                    return Ok(None);
                }
                return Ok(Some(serde_json::from_str(data).with_context(|| data.to_owned())?));
            }
            match self.body.next().await {
                Some(chunk) => self.buffer.extend_from_slice(&chunk?),
                None => return Ok(None),
            }
        }
    }
}
