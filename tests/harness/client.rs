//! A small HTTP client for tests; the official clients have tests of their own.

use std::time::Duration;

use anyhow::Context;
use futures::{StreamExt, stream::BoxStream};
use serde_json::Value;

/// Talks to one server.
#[derive(Clone)]
pub struct Client {
    base: String,
    http: reqwest::Client,
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
        let body = serde_json::json!({
            "model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true,
            "return_token_ids": true, "add_special_tokens": false,
        });
        let (status, answer) = self.post("/v1/completions", &body).await?;
        anyhow::ensure!(status == 200, "{status}: {answer}");
        let ids = answer["choices"][0]["token_ids"].as_array().context("token_ids")?;
        Ok(ids.iter().filter_map(|id| id.as_u64().map(|id| id as u32)).collect())
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
