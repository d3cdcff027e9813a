//! A Hugging Face hub on loopback: enough of the protocol to download from, and a few ways to misbehave.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use sha2::{Digest, Sha256};

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// How the hub behaves.
#[derive(Clone, Default)]
pub struct Behaviour {
    /// Files need this token.
    pub token: Option<&'static str>,
    /// This many downloads of weights break off in the middle.
    pub breaks: usize,
    /// The weights arrive with one byte changed.
    pub damage: bool,
}

pub struct FakeHub {
    pub endpoint: String,
    /// Every request line with its Range header, in order.
    pub requests: Arc<Mutex<Vec<String>>>,
}

struct State {
    files: BTreeMap<&'static str, Vec<u8>>,
    behaviour: Behaviour,
    broken: AtomicUsize,
    requests: Arc<Mutex<Vec<String>>>,
}

struct Request {
    method: String,
    path: String,
    range_from: Option<usize>,
    token: Option<String>,
}

impl FakeHub {
    /// Serves one model, `owner/name`, with these files, until the test ends.
    pub fn start(files: BTreeMap<&'static str, Vec<u8>>, behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let state = Arc::new(State { files, behaviour, broken: AtomicUsize::new(0), requests: requests.clone() });
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = state.clone();
                thread::spawn(move || state.converse(&stream));
            }
        });
        Self { endpoint, requests }
    }

    pub fn seen(&self, part: &str) -> usize {
        self.requests.lock().unwrap().iter().filter(|line| line.contains(part)).count()
    }
}

impl State {
    fn converse(&self, stream: &TcpStream) {
        if let Some(request) = read_request(stream) {
            let range = request.range_from.map_or(String::new(), |from| format!(" from {from}"));
            self.requests.lock().unwrap().push(format!("{} {}{range}", request.method, request.path));
            self.answer(stream, &request);
        }
    }

    fn answer(&self, stream: &TcpStream, request: &Request) {
        let path = request.path.as_str();
        if let Some(revision) = path.strip_prefix("/api/models/owner/name/revision/") {
            return match revision {
                "main" | COMMIT => respond(stream, "200 OK", &[], self.listing().as_bytes(), true),
                _ => respond(stream, "404 Not Found", &["X-Error-Code: RevisionNotFound"], b"", true),
            };
        }
        if let Some(name) = path.strip_prefix(&format!("/owner/name/resolve/{COMMIT}/")) {
            return self.resolve(stream, request, name);
        }
        if let Some(name) = path.strip_prefix("/storage/") {
            return self.send(stream, request, name);
        }
        respond(stream, "401 Unauthorized", &["X-Error-Code: RepoNotFound"], b"", true);
    }

    fn listing(&self) -> String {
        let names: Vec<_> = self.files.keys().map(|name| format!("{{\"rfilename\": \"{name}\"}}")).collect();
        format!("{{\"sha\": \"{COMMIT}\", \"siblings\": [{}]}}", names.join(","))
    }

    /// Small files directly, weights by way of a redirect, as the real hub does.
    fn resolve(&self, stream: &TcpStream, request: &Request, name: &str) {
        let Some(content) = self.files.get(name) else { return respond(stream, "404 Not Found", &[], b"", true) };
        if self.behaviour.token.is_some() && request.token.as_deref() != self.behaviour.token {
            return respond(stream, "401 Unauthorized", &["X-Error-Code: GatedRepo"], b"", true);
        }
        if !name.ends_with(".safetensors") {
            let etag = format!("ETag: \"{:040x}\"", content.len() * 1000 + name.len());
            return respond(stream, "200 OK", &[&etag], content, request.method == "GET");
        }
        let hash: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
        let headers = [
            format!("X-Linked-Etag: \"{hash}\""),
            format!("X-Linked-Size: {}", content.len()),
            format!("Location: http://{}/storage/{name}", stream.local_addr().unwrap()),
        ];
        respond(stream, "302 Found", &headers.each_ref().map(String::as_str), b"", true);
    }

    fn send(&self, stream: &TcpStream, request: &Request, name: &str) {
        let mut content = self.files[name].clone();
        if self.behaviour.damage {
            content[0] ^= 1;
        }
        let from = request.range_from.unwrap_or(0);
        let rest = &content[from..];
        let status = if from > 0 { "206 Partial Content" } else { "200 OK" };
        if self.broken.fetch_add(1, Ordering::SeqCst) >= self.behaviour.breaks {
            return respond(stream, status, &[], rest, true);
        }
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", rest.len());
        let mut stream = stream;
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&rest[..rest.len() / 2]));
    }
}

fn read_request(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next()?.ok()?;
    let mut words = first.split(' ').map(str::to_owned);
    let mut request = Request { method: words.next()?, path: words.next()?, range_from: None, token: None };
    for line in lines.map_while(Result::ok).take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(": ")?;
        match name.to_ascii_lowercase().as_str() {
            "range" => request.range_from = value.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok(),
            "authorization" => request.token = value.strip_prefix("Bearer ").map(str::to_owned),
            _ => {}
        }
    }
    Some(request)
}

fn respond(mut stream: &TcpStream, status: &str, headers: &[&str], body: &[u8], with_body: bool) {
    let mut text = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n", body.len());
    for header in headers {
        text.push_str(header);
        text.push_str("\r\n");
    }
    text.push_str("\r\n");
    let _ = stream.write_all(text.as_bytes());
    if with_body {
        let _ = stream.write_all(body);
    }
}
