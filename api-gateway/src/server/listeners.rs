//! Where connections come from: TCP, TLS or a Unix socket.

use std::{io, os::unix::net::UnixStream as StdUnixStream, path::Path, pin::Pin, sync::Arc, time::Duration};

use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpSocket, UnixListener, lookup_host},
};
use tokio_rustls::TlsAcceptor;

use crate::{config::ListenArgs, error::ConfigError};

/// Connections that the kernel keeps waiting.
const BACKLOG: u32 = 4096;
/// A client that takes nothing of what was sent for so long is gone (TCP_USER_TIMEOUT).
const UNACKNOWLEDGED: Duration = Duration::from_secs(120);
/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Who is at the other end, for the access log; set on every request of a connection.
#[derive(Clone)]
pub struct PeerAddress(pub Arc<String>);

/// A connection of whatever kind.
pub type Stream = Pin<Box<dyn Duplex>>;

/// Bytes in both directions.
pub trait Duplex: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}

/// Accepts connections.
pub struct Listener {
    socket: Socket,
    tls: Option<TlsAcceptor>,
}

enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A connection that was accepted, but has not shaken hands.
pub struct Accepted {
    stream: Stream,
    tls: Option<TlsAcceptor>,
    /// Who is at the other end.
    pub peer: PeerAddress,
}

impl Listener {
    /// Listens where the flags say.
    pub async fn bind(args: &ListenArgs) -> Result<Self, ConfigError> {
        let tls = tls(args)?;
        let (address, bound) = match &args.uds {
            Some(path) => (path.display().to_string(), bind_unix(path).map(Socket::Unix)),
            None => {
                let address = format!("{}:{}", args.host, args.port);
                let bound = bind_tcp(args).await.map(Socket::Tcp);
                (address, bound)
            }
        };
        let socket = bound.map_err(|source| ConfigError::Listen { address, source })?;
        Ok(Self { socket, tls })
    }

    /// Where it listens, for people: a URL, or a path.
    pub fn address(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        match &self.socket {
            Socket::Tcp(listener) => match listener.local_addr() {
                Ok(address) => format!("{scheme}://{address}"),
                Err(_) => scheme.into(),
            },
            Socket::Unix(listener) => {
                let path = listener.local_addr().ok().and_then(|address| address.as_pathname().map(Path::to_owned));
                format!("unix:{}", path.unwrap_or_default().display())
            }
        }
    }

    /// The next connection.
    pub async fn accept(&self) -> io::Result<Accepted> {
        let (stream, peer): (Stream, String) = match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                rustix::net::sockopt::set_tcp_user_timeout(&stream, UNACKNOWLEDGED.as_millis() as u32)?;
                (Box::pin(stream), peer.to_string())
            }
            Socket::Unix(listener) => (Box::pin(listener.accept().await?.0), "unix".into()),
        };
        Ok(Accepted { stream, tls: self.tls.clone(), peer: PeerAddress(Arc::new(peer)) })
    }
}

impl Accepted {
    /// Shakes hands, when there is TLS.
    pub async fn ready(self) -> io::Result<Stream> {
        let Some(tls) = self.tls else { return Ok(self.stream) };
        match tokio::time::timeout(HANDSHAKE, tls.accept(self.stream)).await {
            Ok(stream) => Ok(Box::pin(stream?)),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

async fn bind_tcp(args: &ListenArgs) -> io::Result<TcpListener> {
    let host = args.host.trim_start_matches('[').trim_end_matches(']');
    let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "the name has no address");
    for address in lookup_host((host, args.port)).await? {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        if args.reuse_port {
            socket.set_reuseport(true)?;
        }
        match socket.bind(address).and_then(|()| socket.listen(BACKLOG)) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Replaces the file of a server that died; a live one is an error.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    if path.exists() {
        if StdUnixStream::connect(path).is_ok() {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there"));
        }
        std::fs::remove_file(path)?;
    }
    UnixListener::bind(path)
}

fn tls(args: &ListenArgs) -> Result<Option<TlsAcceptor>, ConfigError> {
    let (Some(certificate), Some(key)) = (&args.ssl_certfile, &args.ssl_keyfile) else { return Ok(None) };
    let chain = certificates("--ssl-certfile", certificate)?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable("--ssl-keyfile", key, error))?;
    let builder = match client_verifier(args)? {
        Some(verifier) => ServerConfig::builder().with_client_cert_verifier(verifier),
        None => ServerConfig::builder().with_no_client_auth(),
    };
    let mut config =
        builder.with_single_cert(chain, secret).map_err(|error| unusable("--ssl-certfile", certificate, error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}

fn client_verifier(args: &ListenArgs) -> Result<Option<Arc<dyn ClientCertVerifier>>, ConfigError> {
    const FLAG: &str = "--ssl-ca-certs";
    let (Some(path), 1..) = (&args.ssl_ca_certs, args.ssl_cert_reqs) else { return Ok(None) };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(FLAG, path)? {
        roots.add(certificate).map_err(|error| unusable(FLAG, path, error))?;
    }
    let mut builder = WebPkiClientVerifier::builder(Arc::new(roots));
    if args.ssl_cert_reqs == 1 {
        builder = builder.allow_unauthenticated();
    }
    builder.build().map(Some).map_err(|error| unusable(FLAG, path, error))
}

fn certificates(flag: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = read.map_err(|error| unusable(flag, path, error))?;
    if chain.is_empty() { Err(unusable(flag, path, "holds no certificate")) } else { Ok(chain) }
}

fn unusable(flag: &'static str, path: &Path, problem: impl ToString) -> ConfigError {
    ConfigError::Tls { flag, path: path.display().to_string(), problem: problem.to_string() }
}
