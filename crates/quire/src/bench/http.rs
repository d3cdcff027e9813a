//! A small HTTP/1.1 client connection for load generation.
//!
//! The load generator shares its cores with the servers it measures, so what it spends on a streamed token counts. A
//! general client hands each chunk from a connection task to a body task; here one task reads the socket and decodes in
//! place. It speaks what a load generator needs: POST and GET, `Content-Length`, chunked bodies, and connections that
//! are used again.

use std::io;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Where requests go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// `host:port`.
    pub authority: String,
    /// Path prefix without a trailing slash; usually empty.
    pub prefix: String,
}

/// Why a request got no whole answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The socket failed.
    #[error("{doing}: {cause}")]
    Io {
        /// "connect", "send" or "receive".
        doing: &'static str,
        /// The system's error.
        cause: io::Error,
    },
    /// The server closed the connection in the middle of an answer.
    #[error("the server closed the connection early")]
    Closed,
    /// What came is not HTTP as this client knows it.
    #[error("not understood: {0}")]
    Malformed(&'static str),
}

/// A connection that is used for one request at a time.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// The part of `buffer` that holds bytes not yet decoded.
    start: usize,
    end: usize,
}

/// The first lines of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// HTTP status code.
    pub status: u16,
    body: Body,
    keep: bool,
}

/// How the end of a body is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    Length(usize),
    Chunked(Chunk),
    UntilClose,
}

/// Where in a chunked body the decoder stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chunk {
    Size,
    Data(usize),
    /// The line end after a chunk's data.
    Gap,
    /// Lines after the last chunk, up to an empty one.
    Trailer,
}

const BUFFER: usize = 64 << 10;
const LONGEST_LINE: usize = 16 << 10;

impl Target {
    /// Reads `http://host:port/prefix`.
    pub fn parse(url: &str) -> Result<Self, String> {
        let rest = url.strip_prefix("http://").ok_or_else(|| format!("`{url}` does not start with http://"))?;
        let (authority, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.is_empty() || authority.contains('@') {
            return Err(format!("`{url}` names no host"));
        }
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let authority = if has_port { authority.to_owned() } else { format!("{authority}:80") };
        let prefix = prefix.trim_matches('/');
        let prefix = if prefix.is_empty() { String::new() } else { format!("/{prefix}") };
        Ok(Self { authority, prefix })
    }

    /// A whole request, ready to be sent.
    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
        let mut text = format!("{method} {}{path} HTTP/1.1\r\nHost: {}\r\n", self.prefix, self.authority);
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str(&format!("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len()));
        let mut request = text.into_bytes();
        request.extend_from_slice(body);
        request
    }
}

impl Connection {
    /// Connects.
    pub async fn open(target: &Target) -> Result<Self, HttpError> {
        let failed = |cause| HttpError::Io { doing: "connect", cause };
        let stream = TcpStream::connect(&target.authority).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        Ok(Self { stream, buffer: vec![0; BUFFER], start: 0, end: 0 })
    }

    /// Sends a request and reads the head of the answer.
    pub async fn send(&mut self, request: &[u8]) -> Result<Head, HttpError> {
        let sent = self.stream.write_all(request).await;
        sent.map_err(|cause| HttpError::Io { doing: "send", cause })?;
        loop {
            let head = self.read_head().await?;
            // 1xx answers announce the real one.
            if head.status >= 200 {
                return Ok(head);
            }
        }
    }

    async fn read_head(&mut self) -> Result<Head, HttpError> {
        let first = self.line().await?;
        let status = first.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or(HttpError::Malformed("status line"))?;
        let mut head = Head { status, body: Body::UntilClose, keep: first.starts_with("HTTP/1.1") };
        if status < 200 || status == 204 {
            head.body = Body::Length(0);
        }
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                return Ok(head);
            }
            let (name, value) = line.split_once(':').ok_or(HttpError::Malformed("header"))?;
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                head.body = Body::Length(value.parse().map_err(|_| HttpError::Malformed("Content-Length"))?);
            } else if name.eq_ignore_ascii_case("transfer-encoding") && value.eq_ignore_ascii_case("chunked") {
                head.body = Body::Chunked(Chunk::Size);
            } else if name.eq_ignore_ascii_case("connection") && value.eq_ignore_ascii_case("close") {
                head.keep = false;
            }
        }
    }

    /// Reads the body, handing over its bytes as they come; tells whether the connection may be used again.
    pub async fn body(&mut self, head: Head, mut bytes: impl FnMut(&[u8])) -> Result<bool, HttpError> {
        let mut body = head.body;
        loop {
            let (used, over) = decode(&mut body, &self.buffer[self.start..self.end], &mut bytes)?;
            self.start += used;
            if over {
                return Ok(head.keep && body != Body::UntilClose);
            }
            if self.fill().await? == 0 {
                return if body == Body::UntilClose { Ok(false) } else { Err(HttpError::Closed) };
            }
        }
    }

    /// The next line, without its end.
    async fn line(&mut self) -> Result<String, HttpError> {
        loop {
            let waiting = &self.buffer[self.start..self.end];
            if let Some((line, used)) = line_of(waiting) {
                let line = str::from_utf8(line).map_err(|_| HttpError::Malformed("head is not text"))?.to_owned();
                self.start += used;
                return Ok(line);
            }
            if waiting.len() > LONGEST_LINE {
                return Err(HttpError::Malformed("endless line"));
            }
            if self.fill().await? == 0 {
                return Err(HttpError::Closed);
            }
        }
    }

    /// Reads once; 0 means that the server has closed.
    async fn fill(&mut self) -> Result<usize, HttpError> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let count = self.stream.read(&mut self.buffer[self.end..]).await;
        let count = count.map_err(|cause| HttpError::Io { doing: "receive", cause })?;
        self.end += count;
        Ok(count)
    }
}

fn line_of(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let line = &bytes[..end];
    Some((line.strip_suffix(b"\r").unwrap_or(line), end + 1))
}

/// Decodes what can be decoded of `input`; returns how much of it is used up and whether the body is over.
fn decode(body: &mut Body, input: &[u8], bytes: &mut impl FnMut(&[u8])) -> Result<(usize, bool), HttpError> {
    match body {
        Body::UntilClose => {
            if !input.is_empty() {
                bytes(input);
            }
            Ok((input.len(), false))
        }
        Body::Length(left) => {
            let count = input.len().min(*left);
            if count > 0 {
                bytes(&input[..count]);
            }
            *left -= count;
            Ok((count, *left == 0))
        }
        Body::Chunked(chunk) => decode_chunks(chunk, input, bytes),
    }
}

fn decode_chunks(chunk: &mut Chunk, input: &[u8], bytes: &mut impl FnMut(&[u8])) -> Result<(usize, bool), HttpError> {
    let mut used = 0;
    loop {
        let rest = &input[used..];
        if let Chunk::Data(left) = chunk {
            let count = rest.len().min(*left);
            if count > 0 {
                bytes(&rest[..count]);
            }
            used += count;
            if count < *left {
                *left -= count;
                return Ok((used, false));
            }
            *chunk = Chunk::Gap;
            continue;
        }
        let Some((line, length)) = line_of(rest) else {
            let endless = rest.len() > LONGEST_LINE;
            return if endless { Err(HttpError::Malformed("endless line")) } else { Ok((used, false)) };
        };
        used += length;
        *chunk = match *chunk {
            Chunk::Trailer if line.is_empty() => return Ok((used, true)),
            Chunk::Trailer => Chunk::Trailer,
            Chunk::Gap if line.is_empty() => Chunk::Size,
            Chunk::Gap => return Err(HttpError::Malformed("chunk end")),
            Chunk::Size | Chunk::Data(_) => match chunk_size(line)? {
                0 => Chunk::Trailer,
                size => Chunk::Data(size),
            },
        };
    }
}

fn chunk_size(line: &[u8]) -> Result<usize, HttpError> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let digits = str::from_utf8(digits).ok();
    digits.and_then(|text| usize::from_str_radix(text, 16).ok()).ok_or(HttpError::Malformed("chunk size"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets() {
        let parsed = |url| Target::parse(url).map(|target| (target.authority, target.prefix));
        assert_eq!(parsed("http://h:1"), Ok(("h:1".to_owned(), String::new())));
        assert_eq!(parsed("http://h/x/"), Ok(("h:80".to_owned(), "/x".to_owned())));
        assert_eq!(parsed("http://[::1]:8000/"), Ok(("[::1]:8000".to_owned(), String::new())));
        assert!(parsed("https://h").is_err() && parsed("http://").is_err());
    }

    #[test]
    fn chunks_decode_however_they_are_cut() {
        let input = b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nTrailer: x\r\n\r\n";
        for size in 1..=input.len() {
            let (mut body, mut text, mut waiting, mut over) =
                (Body::Chunked(Chunk::Size), Vec::new(), Vec::new(), false);
            for part in input.chunks(size) {
                waiting.extend_from_slice(part);
                let (used, end) =
                    decode(&mut body, &waiting, &mut |bytes: &[u8]| text.extend_from_slice(bytes)).unwrap();
                waiting.drain(..used);
                over = end;
            }
            assert!(over && waiting.is_empty(), "cut every {size} bytes");
            assert_eq!(text, b"hello world");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [&b"zz\r\n"[..], b"1\r\nab\r\n", b"-1\r\n"] {
            let mut body = Body::Chunked(Chunk::Size);
            assert!(decode(&mut body, bad, &mut |_: &[u8]| {}).is_err(), "{bad:?}");
        }
    }
}
