//! The handshake: who may talk to whom, and its form on a Unix socket.
//!
//! The dialer says [`Hello`], the listener answers [`Welcome`] with its own. Each side judges the other. On a socket,
//! each message is a little-endian `u32` length and as many bytes; a ring's descriptors follow the welcome.

use prost::Message;
use proto::{Hello, Welcome};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

use crate::error::LinkError;

/// A handshake message is short; a longer one is from somebody else.
const LONGEST: usize = 64 << 10;

/// Why these two must not talk, in words for a person; `None` when they may.
pub(crate) fn objection(mine: &Hello, theirs: &Hello) -> Option<String> {
    let (me, them) = (name(mine), name(theirs));
    if mine.protocol_version != theirs.protocol_version {
        let (my, their) = (mine.protocol_version, theirs.protocol_version);
        return Some(format!("{them} speaks protocol version {their}, {me} speaks version {my}"));
    }
    if mine.channel != theirs.channel {
        let (my, their) = (&mine.channel, &theirs.channel);
        return Some(format!("{them} wants the channel `{their}`, {me} has the channel `{my}` here"));
    }
    let (my, their) = (&mine.model_fingerprint, &theirs.model_fingerprint);
    if !my.is_empty() && !their.is_empty() && my != their {
        return Some(format!("{them} has the model {their}, {me} has the model {my}"));
    }
    None
}

/// The listener's answer to a hello.
pub(crate) fn answer(mine: &Hello, theirs: &Hello) -> Welcome {
    let reason = objection(mine, theirs);
    Welcome { accepted: reason.is_none(), reason: reason.unwrap_or_default(), hello: Some(mine.clone()) }
}

/// What a dialer makes of the answer: the listener's hello, or why there is no link.
pub(crate) fn judge(mine: &Hello, welcome: Welcome) -> Result<Hello, LinkError> {
    if !welcome.accepted {
        return Err(LinkError::Refused { reason: welcome.reason });
    }
    let Some(theirs) = welcome.hello else {
        return Err(LinkError::Protocol { what: "a welcome without a hello".to_owned() });
    };
    match objection(mine, &theirs) {
        Some(reason) => Err(LinkError::Refused { reason }),
        None => Ok(theirs),
    }
}

fn name(hello: &Hello) -> String {
    format!("{} (pid {})", if hello.service.is_empty() { "the peer" } else { &hello.service }, hello.pid)
}

/// Writes one handshake message.
pub(crate) async fn write(socket: &mut UnixStream, message: &impl Message) -> Result<(), LinkError> {
    let body = message.encode_to_vec();
    let mut frame = (body.len() as u32).to_le_bytes().to_vec();
    frame.extend(body);
    socket.write_all(&frame).await.map_err(gone_or("saying hello"))
}

/// Reads one handshake message, and not a byte more.
pub(crate) async fn read<M: Message + Default>(socket: &mut UnixStream) -> Result<M, LinkError> {
    let length = socket.read_u32_le().await.map_err(gone_or("waiting for a hello"))? as usize;
    if length > LONGEST {
        return Err(LinkError::TooLarge { bytes: length, limit: LONGEST });
    }
    let mut body = vec![0; length];
    socket.read_exact(&mut body).await.map_err(gone_or("waiting for a hello"))?;
    Ok(M::decode(body.as_slice())?)
}

fn gone_or(doing: &'static str) -> impl FnOnce(std::io::Error) -> LinkError {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    move |source| match source.kind() {
        UnexpectedEof | BrokenPipe | ConnectionReset => LinkError::PeerGone,
        _ => LinkError::Io { doing, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(version: u32, channel: &str, fingerprint: &str) -> Hello {
        Hello {
            protocol_version: version,
            service: "worker-svc".into(),
            channel: channel.into(),
            model_fingerprint: fingerprint.into(),
            pid: 7,
            ..Hello::default()
        }
    }

    fn check(mine: Hello, theirs: Hello, words: &[&str]) {
        match (objection(&mine, &theirs), words) {
            (None, []) => {}
            (Some(reason), [_, ..]) => assert!(words.iter().all(|word| reason.contains(word)), "{reason}"),
            (objection, _) => panic!("expected {words:?}, got {objection:?}"),
        }
    }

    #[test]
    fn who_may_talk_to_whom() {
        check(hello(1, "steps", ""), hello(1, "steps", ""), &[]);
        check(hello(1, "steps", "a"), hello(1, "steps", "a"), &[]);
        check(hello(1, "steps", "a"), hello(1, "steps", ""), &[]);
        check(hello(1, "steps", ""), hello(1, "steps", "b"), &[]);
        check(hello(1, "steps", "aa"), hello(1, "steps", "bb"), &["model", "aa", "bb"]);
        check(hello(1, "steps", ""), hello(2, "steps", ""), &["protocol version 2", "version 1"]);
        check(hello(1, "steps", ""), hello(1, "tokens", ""), &["`tokens`", "`steps`"]);
    }

    #[test]
    fn a_dialer_judges_the_listener_too() {
        let mine = hello(1, "steps", "");
        let accepts_anything = |theirs| Welcome { accepted: true, reason: String::new(), hello: theirs };
        assert!(judge(&mine, accepts_anything(Some(hello(1, "steps", "")))).is_ok());
        let other = judge(&mine, accepts_anything(Some(hello(2, "steps", ""))));
        assert!(matches!(other, Err(LinkError::Refused { .. })));
        assert!(matches!(judge(&mine, accepts_anything(None)), Err(LinkError::Protocol { .. })));
    }
}
