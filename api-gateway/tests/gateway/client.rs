//! An HTTP client on the gateway's Unix socket.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{net::UnixStream, task::JoinHandle};

/// Opens a connection per request.
#[derive(Clone)]
pub struct Client {
    socket: PathBuf,
}

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("UTF-8")
    }

    /// The error's message and parameter.
    pub fn error(&self) -> (String, Value) {
        let json = self.json();
        let error = &json["error"];
        assert_eq!(error["code"], self.status.as_u16(), "{json}");
        (error["message"].as_str().expect("a message").to_owned(), error["param"].clone())
    }
}

/// An answer whose body is still coming, and the connection that it comes on.
pub struct Open {
    pub response: http::Response<Incoming>,
    connection: JoinHandle<()>,
}

impl Open {
    /// The next bytes of the body.
    pub async fn chunk(&mut self) -> Option<Bytes> {
        let frame = self.response.body_mut().frame().await?;
        frame.expect("the body goes on").into_data().ok()
    }

    /// The rest of the body, as text.
    pub async fn rest(self) -> String {
        let bytes = self.response.into_body().collect().await.expect("the body ends").to_bytes();
        String::from_utf8(bytes.to_vec()).expect("UTF-8")
    }

    /// The client vanishes.
    pub fn leave(self) {
        self.connection.abort();
    }
}

impl Client {
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    pub async fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.socket).await.expect("the gateway listens")
    }

    /// Sends a request; returns when the head of the answer is there.
    pub async fn open(&self, request: Request<Full<Bytes>>) -> Open {
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(self.connect().await)).await.expect("a handshake");
        let connection = tokio::spawn(async move {
            let _ = connection.await;
        });
        let response = sender.send_request(request).await.expect("an answer");
        Open { response, connection }
    }

    pub async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        let open = self.open(request).await;
        let (parts, body) = open.response.into_parts();
        let body = body.collect().await.expect("a whole body").to_bytes();
        Answer { status: parts.status, headers: parts.headers, body }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(request(Method::GET, path, Bytes::new())).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(json(path, body)).await
    }

    /// A request in a task of its own, so that the test can play the engine meanwhile.
    pub fn spawn(&self, path: &str, body: &Value) -> JoinHandle<Answer> {
        let (client, request) = (self.clone(), json(path, body));
        tokio::spawn(async move { client.send(request).await })
    }
}

pub fn request(method: Method, path: &str, body: Bytes) -> Request<Full<Bytes>> {
    let request = Request::builder().method(method).uri(path).header("host", "test");
    request.header("content-type", "application/json").body(Full::new(body)).expect("a request")
}

pub fn json(path: &str, body: &Value) -> Request<Full<Bytes>> {
    request(Method::POST, path, body.to_string().into())
}

/// The JSON of each event of a stream that must end with `[DONE]`.
pub fn events(stream: &str) -> Vec<Value> {
    let mut lines: Vec<&str> = stream.split("\n\n").filter(|line| !line.is_empty() && !line.starts_with(':')).collect();
    assert_eq!(lines.pop(), Some("data: [DONE]"), "{stream}");
    let json = |line: &&str| serde_json::from_str(line.strip_prefix("data: ").expect("data")).expect("JSON");
    lines.iter().map(json).collect()
}
