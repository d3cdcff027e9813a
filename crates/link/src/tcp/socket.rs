//! A TCP connection of a link, with TLS or without.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::TlsStream;
use tonic::transport::server::Connected;

use crate::tcp::tls::Tls;

/// The first byte of a TLS handshake.
const TLS: u8 = 22;
/// The first byte of HTTP/2.
const HTTP_2: u8 = b'P';

/// A connection whose peer may speak.
pub struct Socket {
    bytes: Bytes,
    peer: Peer,
    trouble: Trouble,
}

/// Bytes in both directions.
enum Bytes {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Who is at the other end.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    pub(crate) address: SocketAddr,
    /// Whether it has shown a certificate that this process trusts.
    pub(crate) is_member: bool,
}

/// The first failure of a connection in its own words, which HTTP/2 above it does not pass on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trouble(Arc<OnceLock<String>>);

impl Trouble {
    pub fn text(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }

    fn note(&self, error: &io::Error) {
        // The first one counts.
        let _ = self.0.set(error.to_string());
    }
}

impl Socket {
    /// The listener's end. A peer without TLS is let through, for the gate above to tell it why it gets nothing.
    ///
    /// # Errors
    /// When the peer speaks something else, or shows no certificate of the right authority.
    pub(crate) async fn accept(socket: TcpStream, tls: Option<&Tls>) -> io::Result<Self> {
        let mut first = [0];
        if socket.peek(&mut first).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let address = socket.peer_addr()?;
        let (bytes, is_member) = match (tls, first[0]) {
            (Some(tls), TLS) => (Bytes::Tls(Box::new(tls.accept(socket).await?)), true),
            (None, TLS) => return Err(io::Error::other("it speaks TLS, and there is no --link-ssl-certfile here")),
            (_, HTTP_2) => (Bytes::Plain(socket), false),
            _ => return Err(io::Error::other("it speaks neither TLS nor HTTP/2")),
        };
        Ok(Self { bytes, peer: Peer { address, is_member }, trouble: Trouble::default() })
    }

    /// The dialer's end, of `authority` (`host:port`). What fails is noted in `trouble`.
    ///
    /// # Errors
    /// When the peer cannot be reached, or shows no certificate of the right authority.
    pub(crate) async fn connect(authority: &str, tls: Option<&Tls>, trouble: Trouble) -> io::Result<Self> {
        let socket = TcpStream::connect(authority).await?;
        socket.set_nodelay(true)?;
        let address = socket.peer_addr()?;
        let Some(tls) = tls else {
            return Ok(Self { bytes: Bytes::Plain(socket), peer: Peer { address, is_member: false }, trouble });
        };
        let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let shaken = tls.connect(host, socket).await.map_err(explained).inspect_err(|error| trouble.note(error))?;
        Ok(Self { bytes: Bytes::Tls(Box::new(shaken)), peer: Peer { address, is_member: true }, trouble })
    }

    fn bytes(&mut self) -> Pin<&mut dyn Duplex> {
        Pin::new(match &mut self.bytes {
            Bytes::Plain(socket) => socket,
            Bytes::Tls(stream) => &mut **stream,
        })
    }
}

/// A peer that ends the connection instead of shaking hands does not take TLS.
fn explained(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            io::Error::other("the peer ended the TLS handshake; has it a --link-ssl-certfile?")
        }
        _ => error,
    }
}

trait Duplex: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Duplex for T {}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = self.bytes().poll_read(cx, buffer);
        if let (Bytes::Tls(_), Poll::Ready(Err(error))) = (&self.bytes, &read) {
            self.trouble.note(error);
        }
        read
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.bytes().poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.bytes().poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.bytes {
            Bytes::Plain(socket) => socket.is_write_vectored(),
            Bytes::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.bytes().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.bytes().poll_shutdown(cx)
    }
}

impl Connected for Socket {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer
    }
}
