//! The rest of the pipeline, faked: a tokenizer and a detokenizer that a test speaks for.

use std::path::Path;

use link::{Address, Hello, Link, LinkOptions, Listener, hello};
use proto::{
    Admitted, Delta, Event, EventBatch, Failure, FinishReason, Inbound, Request, event, failure, inbound::Event as In,
    prompt::Kind,
};

/// Both ends that the gateway dials.
pub struct Engine {
    requests_at: Address,
    events_at: Address,
    requests: Option<(Listener, Link<Inbound, Inbound>)>,
    events: Option<(Listener, Link<EventBatch, Inbound>)>,
}

impl Engine {
    /// Where the gateway finds it.
    pub fn addresses(folder: &Path) -> (Address, Address) {
        (Address::Ring(folder.join("requests.sock")), Address::Ring(folder.join("events.sock")))
    }

    /// Listens; links come with [`Engine::connected`].
    pub fn new(folder: &Path) -> Self {
        let (requests_at, events_at) = Self::addresses(folder);
        Self { requests_at, events_at, requests: None, events: None }
    }

    /// Waits for the gateway on both links.
    pub async fn connected(&mut self) {
        self.tokenizer_up().await;
        self.detokenizer_up().await;
    }

    pub async fn tokenizer_up(&mut self) {
        self.tokenizer_of(0).await;
    }

    /// The tokenizer of a server of this number.
    pub async fn tokenizer_of(&mut self, server: u64) {
        let hello = Hello { server, ..hello("tokenizer-svc", "requests", "") };
        let mut listener = Listener::bind(&self.requests_at, hello, LinkOptions::default()).await.expect("listens");
        let link = listener.accept().await.expect("the gateway dials");
        self.requests = Some((listener, link));
    }

    pub async fn detokenizer_up(&mut self) {
        self.detokenizer_of(0).await;
    }

    /// The detokenizer of a server of this number.
    pub async fn detokenizer_of(&mut self, server: u64) {
        let hello = Hello { server, ..hello("detokenizer-svc", "events", "") };
        let mut listener = Listener::bind(&self.events_at, hello, LinkOptions::default()).await.expect("listens");
        let link = listener.accept().await.expect("the gateway dials");
        self.events = Some((listener, link));
    }

    /// The tokenizer dies.
    pub fn tokenizer_down(&mut self) {
        self.requests = None;
    }

    /// The detokenizer dies.
    pub fn detokenizer_down(&mut self) {
        self.events = None;
    }

    /// The next message that the gateway sends.
    pub async fn next(&mut self) -> In {
        let (_, link) = self.requests.as_mut().expect("the tokenizer is up");
        link.receiver.recv().await.expect("a message").event.expect("an event")
    }

    /// The next message, which must be a request.
    pub async fn request(&mut self) -> Request {
        match self.next().await {
            In::Request(request) => request,
            other => panic!("expected a request, got {other:?}"),
        }
    }

    /// The next message, which must be an abort; its number.
    pub async fn abort(&mut self) -> u64 {
        match self.next().await {
            In::Abort(abort) => abort.key.expect("a key").number,
            other => panic!("expected an abort, got {other:?}"),
        }
    }

    /// Sends events in one batch.
    pub async fn send(&mut self, events: Vec<Event>) {
        let (_, link) = self.events.as_mut().expect("the detokenizer is up");
        link.sender.send(&EventBatch { events }).await.expect("sent");
    }

    /// Admits a request with a prompt of `tokens` tokens.
    pub async fn admit(&mut self, request: &Request, tokens: u32) {
        self.send(vec![admitted(request, tokens)]).await;
    }

    /// Answers a request with these pieces of text, a token each; the last one ends every choice.
    pub async fn answer(&mut self, request: &Request, pieces: &[&str]) {
        let mut events = vec![admitted(request, 3)];
        for choice in 0..request.n {
            for (index, piece) in pieces.iter().enumerate() {
                let last = index + 1 == pieces.len();
                events.push(text(
                    request,
                    choice,
                    piece,
                    if last { FinishReason::Stop } else { FinishReason::Unspecified },
                ));
            }
        }
        self.send(events).await;
    }
}

pub fn number(request: &Request) -> u64 {
    request.key.expect("a key").number
}

pub fn admitted(request: &Request, prompt_tokens: u32) -> Event {
    let kind = request.prompt.as_ref().and_then(|prompt| prompt.kind.as_ref());
    let prompt_ids = match (kind, &request.output) {
        (Some(Kind::Ids(prompt)), Some(output)) if output.return_prompt_token_ids => prompt.ids.clone(),
        _ => Vec::new(),
    };
    let admitted = Admitted { prompt_tokens, cached_tokens: 1, prompt_ids, ..Admitted::default() };
    Event { number: number(request), kind: Some(event::Kind::Admitted(admitted.into())) }
}

/// One token of text.
pub fn text(request: &Request, choice: u32, text: &str, finish: FinishReason) -> Event {
    let finish = finish.into();
    delta(request, Delta { choice, text: text.into(), token_count: 1, finish, ..Delta::default() })
}

pub fn delta(request: &Request, delta: Delta) -> Event {
    Event { number: number(request), kind: Some(event::Kind::Delta(delta)) }
}

pub fn failed(number: u64, kind: failure::Kind, message: &str, param: &str) -> Event {
    let failure = Failure { kind: kind.into(), message: message.into(), param: param.into() };
    Event { number, kind: Some(event::Kind::Failure(failure)) }
}
