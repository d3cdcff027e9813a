//! Sends one request and notes when its tokens come.

use std::time::{Duration, Instant};

use serde::Deserialize;

use super::http::{Connection, HttpError, Target};
use crate::sse::{DONE, Events};

/// How one request went.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// When it was sent, since the start of the run.
    pub start: Duration,
    /// When its answer was complete, or failed.
    pub end: Duration,
    /// From sending to the first token.
    pub ttft: Option<Duration>,
    /// Gaps between the events that brought tokens, seconds.
    pub gaps: Vec<f32>,
    /// Tokens of the prompt, from the server's usage.
    pub input_tokens: usize,
    /// Tokens of the answer, from the server's usage; without one, the events.
    pub output_tokens: usize,
    /// What went wrong, if anything.
    pub error: Option<String>,
}

impl Outcome {
    /// From sending to the end.
    pub fn latency(&self) -> Duration {
        self.end.saturating_sub(self.start)
    }

    /// Time per output token after the first; none for answers of one token.
    pub fn tpot(&self) -> Option<Duration> {
        let after_first = u32::try_from(self.output_tokens.checked_sub(1)?).ok().filter(|count| *count > 0)?;
        Some(self.latency().saturating_sub(self.ttft?) / after_first)
    }
}

/// Connections that wait for their next request.
#[derive(Default)]
pub struct Pool {
    idle: std::cell::RefCell<Vec<Connection>>,
}

/// One request, as it is sent.
#[derive(Clone, Debug)]
pub struct Request {
    /// Head and body.
    pub bytes: Vec<u8>,
    /// What a good answer is.
    pub answer: Answer,
}

/// What a good answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Events that bring tokens, then `[DONE]`.
    Stream,
    /// One JSON object with `usage`; nothing is generated.
    Whole,
}

/// Sends `request` and reads its answer to the end.
pub async fn measure(target: &Target, pool: &Pool, request: &Request, run_start: Instant, limit: Duration) -> Outcome {
    let mut watch = Watch::new(run_start, request.answer);
    let failed = match tokio::time::timeout(limit, exchange(target, pool, request, &mut watch)).await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!("no answer within {} s", limit.as_secs())),
    };
    match request.answer {
        Answer::Stream => watch.stream_outcome(failed),
        Answer::Whole => watch.whole_outcome(failed),
    }
}

async fn exchange(target: &Target, pool: &Pool, request: &Request, watch: &mut Watch) -> Result<(), HttpError> {
    let used = pool.idle.borrow_mut().pop();
    if let Some(mut connection) = used {
        // The server may have closed it meanwhile; that shows before the first byte of an answer.
        if let Ok(head) = connection.send(&request.bytes).await {
            return read(connection, head, pool, watch).await;
        }
    }
    let mut connection = Connection::open(target).await?;
    let head = connection.send(&request.bytes).await?;
    read(connection, head, pool, watch).await
}

async fn read(
    mut connection: Connection,
    head: super::http::Head,
    pool: &Pool,
    watch: &mut Watch,
) -> Result<(), HttpError> {
    let again = if head.status == 200 {
        match watch.answer {
            Answer::Stream => connection.body(head, |bytes| watch.bytes(bytes)).await?,
            Answer::Whole => connection.body(head, |bytes| watch.text.extend_from_slice(bytes)).await?,
        }
    } else {
        let mut text = Vec::new();
        let again = connection.body(head, |bytes| text.extend_from_slice(bytes)).await?;
        watch.error = Some(refusal(head.status, &text));
        again
    };
    if again {
        pool.idle.borrow_mut().push(connection);
    }
    Ok(())
}

/// The message in an error body, or the beginning of the body.
fn refusal(status: u16, body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let message = serde_json::from_str::<Event>(&text).ok().and_then(|event| event.error).map(|error| error.message);
    let message = message.unwrap_or_else(|| text.chars().take(200).collect());
    format!("HTTP {status}: {message}")
}

/// Collects what a stream brings.
struct Watch {
    run_start: Instant,
    answer: Answer,
    /// The answer so far, of one that is no stream.
    text: Vec<u8>,
    sent: Instant,
    last: Instant,
    ttft: Option<Duration>,
    gaps: Vec<f32>,
    events: Events,
    token_events: usize,
    usage: Option<Usage>,
    done: bool,
    error: Option<String>,
}

/// The parts of a stream event that matter here.
#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<ServerError>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    delta: Option<serde_json::Map<String, serde_json::Value>>,
}

#[derive(Deserialize)]
struct Usage {
    #[serde(default)]
    prompt_tokens: usize,
    #[serde(default)]
    completion_tokens: usize,
}

#[derive(Deserialize)]
struct ServerError {
    message: String,
}

/// What an event is, as far as timing goes.
enum Kind {
    Token,
    Other,
}

impl Watch {
    fn new(run_start: Instant, answer: Answer) -> Self {
        let now = Instant::now();
        Self {
            run_start,
            answer,
            text: Vec::new(),
            sent: now,
            last: now,
            ttft: None,
            gaps: Vec::new(),
            events: Events::default(),
            token_events: 0,
            usage: None,
            done: false,
            error: None,
        }
    }

    /// Takes bytes of the stream. All events of one read came at the same time.
    fn bytes(&mut self, bytes: &[u8]) {
        let mut events = std::mem::take(&mut self.events);
        let now = Instant::now();
        events.feed(bytes, |payload| self.event(payload, now));
        self.events = events;
    }

    fn event(&mut self, payload: &[u8], now: Instant) {
        if payload == DONE {
            self.done = true;
            return;
        }
        let kind = quick_kind(payload).unwrap_or_else(|| self.parse(payload));
        if let Kind::Token = kind {
            self.token_events += 1;
            match self.ttft {
                None => self.ttft = Some(now - self.sent),
                Some(_) => self.gaps.push((now - self.last).as_secs_f32()),
            }
            self.last = now;
        }
    }

    fn parse(&mut self, payload: &[u8]) -> Kind {
        let event: Event = match serde_json::from_slice(payload) {
            Ok(event) => event,
            Err(error) => {
                self.error.get_or_insert_with(|| format!("an event is not understood: {error}"));
                return Kind::Other;
            }
        };
        if let Some(error) = event.error {
            self.error.get_or_insert(error.message);
        }
        if event.usage.is_some() {
            self.usage = event.usage;
        }
        if event.choices.iter().any(Choice::has_tokens) { Kind::Token } else { Kind::Other }
    }

    fn stream_outcome(mut self, failed: Option<String>) -> Outcome {
        let mut error = self.error.take().or(failed);
        if error.is_none() && !self.done {
            error = Some("the stream ended without [DONE]".to_owned());
        }
        if error.is_none() && self.ttft.is_none() && self.usage.as_ref().is_none_or(|usage| usage.completion_tokens > 0)
        {
            error = Some("the stream brought no tokens".to_owned());
        }
        self.outcome(error)
    }

    /// Of an answer that is no stream. Of what it says, `usage` counts.
    fn whole_outcome(mut self, failed: Option<String>) -> Outcome {
        // The whole answer came before this; reading it is not the server's time.
        let end = self.run_start.elapsed();
        let mut error = self.error.take().or(failed);
        if error.is_none() {
            match serde_json::from_slice::<Event>(&self.text) {
                Ok(Event { usage: Some(usage), .. }) => self.usage = Some(usage),
                Ok(_) => error = Some("the answer has no usage".to_owned()),
                Err(problem) => error = Some(format!("the answer is not understood: {problem}")),
            }
        }
        Outcome { end, ..self.outcome(error) }
    }

    fn outcome(self, error: Option<String>) -> Outcome {
        Outcome {
            start: self.sent - self.run_start,
            end: self.run_start.elapsed(),
            ttft: self.ttft,
            gaps: self.gaps,
            input_tokens: self.usage.as_ref().map_or(0, |usage| usage.prompt_tokens),
            output_tokens: self.usage.as_ref().map_or(self.token_events, |usage| usage.completion_tokens),
            error,
        }
    }
}

impl Choice {
    fn has_tokens(&self) -> bool {
        let filled = |value: &serde_json::Value| match value {
            serde_json::Value::String(text) => !text.is_empty(),
            serde_json::Value::Array(items) => !items.is_empty(),
            _ => false,
        };
        let delta = || self.delta.iter().flatten().any(|(name, value)| name != "role" && filled(value));
        self.text.as_ref().is_some_and(|text| !text.is_empty()) || delta()
    }
}

/// Knows the usual token event without parsing it; `None` for every other one.
///
/// Inside a JSON string a quote is escaped, so these byte sequences cannot come from generated text.
fn quick_kind(payload: &[u8]) -> Option<Kind> {
    let text = str::from_utf8(payload).ok()?;
    if text.contains("\"error\":") || text.contains("\"usage\":{") || text.contains("\"usage\": {") {
        return None;
    }
    ["\"text\":\"", "\"content\":\""].iter().find_map(|name| {
        let value = &text[text.find(name)? + name.len()..];
        (!value.starts_with('"')).then_some(Kind::Token)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(events: &[&str]) -> Outcome {
        let mut watch = Watch::new(Instant::now(), Answer::Stream);
        for event in events {
            watch.bytes(format!("data: {event}\n\n").as_bytes());
        }
        watch.stream_outcome(None)
    }

    #[test]
    fn events_with_text_count_and_usage_wins() {
        for events in [
            [r#"{"choices":[{"text":""}]}"#, r#"{"choices":[{"text":"a"}]}"#, r#"{"choices": [{"text": "b\"c"}]}"#],
            [
                r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
                r#"{"choices":[{"delta":{"content":"a"}}]}"#,
                r#"{"choices":[{"delta":{"reasoning":"b"}}]}"#,
            ],
        ] {
            let usage = r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}"#;
            let outcome = watch(&[events[0], events[1], events[2], usage, "[DONE]"]);
            assert_eq!(outcome.error, None);
            assert!(outcome.ttft.is_some());
            assert_eq!((outcome.gaps.len(), outcome.input_tokens, outcome.output_tokens), (1, 7, 3));
        }
    }

    #[test]
    fn failures_are_seen() {
        for (events, part) in [
            (&[r#"{"error":{"message":"lost","code":503}}"#, "[DONE]"][..], "lost"),
            (&[r#"{"choices":[{"text":"a"}]}"#], "without [DONE]"),
            (&["[DONE]"], "no tokens"),
            (&["{]", "[DONE]"], "not understood"),
        ] {
            let error = watch(events).error.unwrap();
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(refusal(400, br#"{"error":{"message":"bad"}}"#), "HTTP 400: bad");
        assert_eq!(refusal(502, b"<html>"), "HTTP 502: <html>");
    }

    #[test]
    fn whole_answers_have_usage_and_no_tokens() {
        let outcome = |text: &str| {
            let mut watch = Watch::new(Instant::now(), Answer::Whole);
            watch.text = text.as_bytes().to_vec();
            watch.whole_outcome(None)
        };
        let good = outcome(r#"{"data": [{"embedding": [1, 2]}], "usage": {"prompt_tokens": 7, "total_tokens": 7}}"#);
        assert_eq!((good.error, good.input_tokens, good.output_tokens), (None, 7, 0));
        assert_eq!((good.ttft, good.gaps.len()), (None, 0));
        for (text, part) in [("{}", "no usage"), ("<html>", "not understood")] {
            let error = outcome(text).error.unwrap();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn time_per_token_leaves_the_first_out() {
        let millis = Duration::from_millis;
        let mut outcome = Outcome { end: millis(110), ttft: Some(millis(10)), output_tokens: 11, ..Outcome::default() };
        assert_eq!(outcome.tpot(), Some(millis(10)));
        outcome.output_tokens = 1;
        assert_eq!(outcome.tpot(), None);
    }
}
