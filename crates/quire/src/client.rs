//! A client of OpenAI's API, for `quire chat` and `quire complete`.

use std::{collections::VecDeque, time::Duration};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use serde_json::{Map, Value, json};

use crate::sse::{DONE, Events};

/// Which server to talk to, and how answers are generated.
#[derive(Args, Clone, Debug)]
pub struct ClientArgs {
    /// The server's API
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8000/v1")]
    pub url: String,
    /// Model to ask for [default: the first that the server lists]
    #[arg(long, alias = "model-name")]
    pub model: Option<String>,
    /// Key to present
    #[arg(long, value_name = "KEY", env = "OPENAI_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Tokens to generate at most [default: the server's]
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<u32>,
    /// 0 always takes the likeliest token [default: the model's]
    #[arg(long)]
    pub temperature: Option<f64>,
    /// Ask this once and end
    #[arg(short, long, value_name = "TEXT")]
    pub quick: Option<String>,
}

/// A server that answers.
pub struct Client {
    http: reqwest::Client,
    base: String,
    key: Option<String>,
    /// Fields of every request.
    fields: Map<String, Value>,
}

/// A streamed answer.
pub struct Answer {
    response: reqwest::Response,
    events: Events,
    waiting: VecDeque<Vec<u8>>,
}

impl Client {
    /// Connects and finds out which model to ask for.
    pub async fn connect(args: &ClientArgs) -> anyhow::Result<Self> {
        let mut http = reqwest::Client::builder().connect_timeout(Duration::from_secs(10));
        if ["://127.0.0.1", "://localhost", "://[::1]"].iter().any(|host| args.url.contains(host)) {
            http = http.no_proxy(); // a proxy cannot reach this machine's loopback
        }
        let mut client = Self {
            http: http.build()?,
            base: args.url.trim_end_matches('/').to_owned(),
            key: args.api_key.clone(),
            fields: Map::new(),
        };
        let model = match &args.model {
            Some(model) => model.clone(),
            None => client.first_model().await?,
        };
        client.fields.insert("model".to_owned(), json!(model));
        client.fields.insert("stream".to_owned(), json!(true));
        client.fields.extend(args.max_tokens.map(|count| ("max_tokens".to_owned(), json!(count))));
        client.fields.extend(args.temperature.map(|value| ("temperature".to_owned(), json!(value))));
        Ok(client)
    }

    /// The model that is asked for.
    pub fn model(&self) -> &str {
        self.fields["model"].as_str().unwrap_or_default()
    }

    /// Asks `path` with one more field and streams the answer.
    pub async fn ask(&self, path: &str, field: &str, value: Value) -> anyhow::Result<Answer> {
        let mut body = self.fields.clone();
        body.insert(field.to_owned(), value);
        let request = self.http.post(format!("{}{path}", self.base)).json(&body);
        let response = self.send(request).await?;
        Ok(Answer { response, events: Events::default(), waiting: VecDeque::new() })
    }

    async fn first_model(&self) -> anyhow::Result<String> {
        let response = self.send(self.http.get(format!("{}/models", self.base))).await?;
        let list: Value = response.json().await?;
        let model = list["data"][0]["id"].as_str().map(str::to_owned);
        model.ok_or_else(|| anyhow!("{} lists no models; pass --model", self.base))
    }

    async fn send(&self, mut request: reqwest::RequestBuilder) -> anyhow::Result<reqwest::Response> {
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        let response = request.send().await;
        let response =
            response.with_context(|| format!("no answer from {} (start one with `quire serve`)", self.base))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let text = response.text().await.unwrap_or_default();
        bail!("{status}: {}", message_of(&text).unwrap_or(text))
    }
}

impl Answer {
    /// The next piece of text; `None` at the end.
    pub async fn text(&mut self) -> anyhow::Result<Option<String>> {
        loop {
            while let Some(payload) = self.waiting.pop_front() {
                if payload == DONE {
                    return Ok(None);
                }
                if let Some(text) = text_of(&payload)? {
                    return Ok(Some(text));
                }
            }
            let Some(bytes) = self.response.chunk().await.context("the answer broke off")? else { return Ok(None) };
            self.events.feed(&bytes, |payload| self.waiting.push_back(payload.to_vec()));
        }
    }
}

/// The text of a stream event of either API.
fn text_of(payload: &[u8]) -> anyhow::Result<Option<String>> {
    let event: Value = serde_json::from_slice(payload).context("the server sent an event that is not JSON")?;
    if let Some(message) = event["error"]["message"].as_str() {
        bail!("{message}");
    }
    let choice = &event["choices"][0];
    let text = choice["text"].as_str().or_else(|| choice["delta"]["content"].as_str());
    Ok(text.filter(|text| !text.is_empty()).map(str::to_owned))
}

/// The message of an error body; vLLM's wrong-key body holds the message alone.
fn message_of(body: &str) -> Option<String> {
    let body: Value = serde_json::from_str(body).ok()?;
    body["error"]["message"].as_str().or_else(|| body["error"].as_str()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_both_apis() {
        for (event, text) in [
            (r#"{"choices": [{"text": "a"}]}"#, Some("a")),
            (r#"{"choices": [{"delta": {"content": "b"}}]}"#, Some("b")),
            (r#"{"choices": [{"delta": {"role": "assistant", "content": ""}}]}"#, None),
            (r#"{"choices": [], "usage": {}}"#, None),
        ] {
            assert_eq!(text_of(event.as_bytes()).unwrap().as_deref(), text, "{event}");
        }
        assert_eq!(text_of(br#"{"error": {"message": "lost"}}"#).unwrap_err().to_string(), "lost");
        assert_eq!(message_of(r#"{"error": "Unauthorized"}"#).as_deref(), Some("Unauthorized"));
        assert_eq!(message_of("<html>"), None);
    }
}
