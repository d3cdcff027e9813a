//! ZMTP 3.0, the protocol of ZeroMQ, as far as a publisher and answers to readers need it.
//!
//! ```text
//!  both   greeting   ff 00×8 7f, version 3 0, mechanism "NULL" in 20 bytes, 00×32
//!  both   command    READY, Socket-Type = PUB | ROUTER | SUB | REQ | …
//!  both   messages   frames: flags (1 more, 2 long, 4 command), length in 1 byte or, where long, 8; the bytes
//! ```
//!
//! It is our own because the pure-Rust crate (`zeromq` 0.7) makes room for as many bytes as the header of a peer's
//! frame says, so that nine bytes from anybody end the process. Here a peer may send little, and is hung up on beyond
//! that.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};

/// Bytes of a frame, and frames of a message, that a peer may send: topics, and numbers of batches.
const MAX_FRAME: u64 = 4096;
const MAX_FRAMES: usize = 8;

const GREETING: usize = 64;
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// What a peer sends.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Incoming {
    /// The frames of a message.
    Message(Vec<Vec<u8>>),
    /// A question whether this end lives, with what the answer repeats.
    Ping(Vec<u8>),
}

/// The incoming direction.
pub(super) struct Incomings<R>(BufReader<R>);

/// Both directions of a connection.
pub(super) type Halves<S> = (Incomings<tokio::io::ReadHalf<S>>, tokio::io::WriteHalf<S>);

/// Greets a peer and is greeted, as a socket of type `ours`. One that is of none of the types `theirs` is refused.
pub(super) async fn connect<S>(stream: S, ours: &str, theirs: &[&str]) -> io::Result<Halves<S>>
where
    S: AsyncRead + AsyncWrite,
{
    let (reader, mut writer) = tokio::io::split(stream);
    let mut incoming = Incomings(BufReader::new(reader));
    writer.write_all(&greeting()).await?;
    incoming.greeting().await?;
    writer.write_all(&ready(ours)).await?;
    let (flags, body) = incoming.frame().await?;
    let kind = (flags & COMMAND != 0).then(|| socket_type(&body)).flatten();
    match kind {
        Some(kind) if theirs.contains(&kind.as_str()) => Ok((incoming, writer)),
        Some(kind) => {
            let reason = format!("a {kind} socket has no use for a {ours} socket");
            writer.write_all(&command("ERROR", &short(reason.as_bytes()))).await?;
            Err(invalid(reason))
        }
        None => Err(invalid("not ready as a ZeroMQ peer")),
    }
}

/// A message as it travels.
pub(super) fn message(frames: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(frames.iter().map(|frame| frame.len() + 9).sum());
    for (index, frame) in frames.iter().enumerate() {
        let more = if index + 1 < frames.len() { MORE } else { 0 };
        push(&mut bytes, more, frame);
    }
    bytes
}

/// The answer to [`Incoming::Ping`].
pub(super) fn pong(context: &[u8]) -> Vec<u8> {
    command("PONG", context)
}

impl<R: AsyncRead + Unpin> Incomings<R> {
    /// What comes next. Not cancel-safe.
    pub(super) async fn next(&mut self) -> io::Result<Incoming> {
        let mut frames = Vec::new();
        loop {
            let (flags, body) = self.frame().await?;
            if flags & COMMAND != 0 {
                match body.strip_prefix(b"\x04PING") {
                    // Two bytes say how long the peer waits.
                    Some(rest) => return Ok(Incoming::Ping(rest.get(2..).unwrap_or_default().to_vec())),
                    None => continue,
                }
            }
            frames.push(body);
            if flags & MORE == 0 {
                return Ok(Incoming::Message(frames));
            }
            if frames.len() == MAX_FRAMES {
                return Err(invalid("a message of too many frames"));
            }
        }
    }

    async fn greeting(&mut self) -> io::Result<()> {
        let mut theirs = [0; GREETING];
        // What does not speak ZeroMQ may send less than a greeting, and wait.
        self.0.read_exact(&mut theirs[..10]).await?;
        if theirs[0] != 0xff || theirs[9] & 1 == 0 {
            return Err(invalid("not ZeroMQ"));
        }
        self.0.read_exact(&mut theirs[10..]).await?;
        if theirs[10] < 3 {
            return Err(invalid(format!("version {} of ZeroMQ's protocol; 3 is spoken here", theirs[10])));
        }
        if theirs[12..32] != greeting()[12..32] {
            return Err(invalid("a mechanism other than NULL"));
        }
        Ok(())
    }

    async fn frame(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let flags = self.0.read_u8().await?;
        let length = match flags & LONG {
            0 => self.0.read_u8().await?.into(),
            _ => self.0.read_u64().await?,
        };
        if length > MAX_FRAME {
            return Err(invalid(format!("a frame of {length} bytes; {MAX_FRAME} are taken")));
        }
        let mut body = vec![0; length as usize];
        self.0.read_exact(&mut body).await?;
        Ok((flags, body))
    }
}

fn greeting() -> [u8; GREETING] {
    let mut bytes = [0; GREETING];
    (bytes[0], bytes[9], bytes[10]) = (0xff, 0x7f, 3);
    bytes[12..16].copy_from_slice(b"NULL");
    bytes
}

fn ready(socket_type: &str) -> Vec<u8> {
    let mut properties = Vec::new();
    for (name, value) in [("Socket-Type", socket_type), ("Identity", "")] {
        properties.extend(short(name.as_bytes()));
        properties.extend((value.len() as u32).to_be_bytes());
        properties.extend(value.as_bytes());
    }
    command("READY", &properties)
}

/// The type that a peer's READY names.
fn socket_type(ready: &[u8]) -> Option<String> {
    let mut properties = ready.strip_prefix(b"\x05READY")?;
    while let Some((&length, rest)) = properties.split_first() {
        let (name, rest) = rest.split_at_checked(length.into())?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return String::from_utf8(value.to_vec()).ok();
        }
        properties = rest;
    }
    None
}

fn command(name: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    push(&mut bytes, COMMAND, &[&short(name.as_bytes())[..], body].concat());
    bytes
}

/// With its length, which is below 256, in front.
fn short(text: &[u8]) -> Vec<u8> {
    [&[text.len() as u8][..], text].concat()
}

fn push(bytes: &mut Vec<u8>, flags: u8, frame: &[u8]) {
    match u8::try_from(frame.len()) {
        Ok(length) => bytes.extend([flags, length]),
        Err(_) => {
            bytes.push(flags | LONG);
            bytes.extend((frame.len() as u64).to_be_bytes());
        }
    }
    bytes.extend(frame);
}

fn invalid(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    async fn pair(theirs: &str) -> (io::Result<Halves<DuplexStream>>, io::Result<Halves<DuplexStream>>) {
        let (here, there) = duplex(1 << 16);
        tokio::join!(connect(here, "PUB", &["SUB", "XSUB"]), connect(there, theirs, &["PUB"]))
    }

    #[tokio::test]
    async fn peers_greet_and_send_messages() {
        let (here, there) = pair("SUB").await;
        let ((mut incoming, _), (_there, mut writer)) = (here.unwrap(), there.unwrap());
        let long = vec![7; 300];
        let frames: [&[u8]; 3] = [b"topic", &long, b""];
        writer.write_all(&message(&frames)).await.unwrap();
        writer.write_all(&command("PING", b"\0\x09again")).await.unwrap();
        assert_eq!(incoming.next().await.unwrap(), Incoming::Message(frames.map(<[u8]>::to_vec).to_vec()));
        assert_eq!(incoming.next().await.unwrap(), Incoming::Ping(b"again".to_vec()));
    }

    #[tokio::test]
    async fn a_socket_of_another_type_is_refused() {
        let (here, _) = pair("PUSH").await;
        assert!(here.err().unwrap().to_string().contains("PUSH"));
    }

    /// What strangers send is refused before there is room for it.
    #[tokio::test]
    async fn strangers_are_hung_up_on() {
        for sent in
            [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), [&greeting()[..], &[LONG, 0x3f], &[0xff; 7]].concat()]
        {
            let (here, mut there) = duplex(1 << 16);
            there.write_all(&sent).await.unwrap();
            assert_eq!(connect(here, "PUB", &["SUB"]).await.err().unwrap().kind(), io::ErrorKind::InvalidData);
        }
        let (here, there) = pair("SUB").await;
        let ((mut incoming, _), (_there, mut writer)) = (here.unwrap(), there.unwrap());
        writer.write_all(&message(&[&[0; 8]; MAX_FRAMES + 1].map(|frame| &frame[..]))).await.unwrap();
        assert!(incoming.next().await.is_err());
    }
}
