//! TLS between hosts: a process without a certificate of the engine's authority gets nothing, and both sides know why.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use link::{Address, Link, LinkError, LinkOptions, Listener, Tls, TlsFiles};
use proto::{Hello, TokenBatch};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tracing::subscriber::DefaultGuard;

type Either = Link<TokenBatch, TokenBatch>;

/// Longer than any handshake here takes.
const LONG: Duration = Duration::from_secs(20);

fn hello() -> Hello {
    link::hello("worker-svc", "steps", "")
}

/// What a process has that was given the certificate `name`, and trusts `authority`.
fn of(name: &str, authority: &str) -> LinkOptions {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/tls");
    let [certificate, key, authorities] =
        [format!("{name}.pem"), format!("{name}.key"), format!("{authority}.pem")].map(|file| folder.join(file));
    let files = TlsFiles { certificate: &certificate, key: &key, authorities: &authorities };
    LinkOptions { tls: Some(Tls::read(&files).unwrap()), ..LinkOptions::default() }
}

fn member() -> LinkOptions {
    of("node", "authority")
}

async fn listen(options: LinkOptions) -> Listener {
    Listener::bind(&Address::Grpc("127.0.0.1:0".to_owned()), hello(), options).await.unwrap()
}

/// Why a dialer gets no link.
async fn refused(address: &Address, options: &LinkOptions) -> LinkError {
    let dialled: Result<Either, _> = timeout(LONG, link::connect(address, hello(), options)).await.unwrap();
    match dialled {
        Ok(_) => panic!("let in"),
        Err(error) => error,
    }
}

/// Passes a batch from a member to the listener, whose first link it is.
async fn serves_members(listener: &mut Listener, options: &LinkOptions) {
    let address = listener.address().clone();
    let (dialled, accepted) = tokio::join!(link::connect(&address, hello(), options), listener.accept());
    let (mut dialled, mut accepted): (Either, Either) = (dialled.unwrap(), accepted.unwrap());
    let batch = TokenBatch { token: vec![7; 100_000], ..TokenBatch::default() };
    dialled.sender.send(&batch).await.unwrap();
    assert_eq!(accepted.receiver.recv().await.unwrap(), batch);
    accepted.sender.send(&batch).await.unwrap();
    assert_eq!(dialled.receiver.recv().await.unwrap(), batch);
}

/// What this thread logs.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn start() -> (Self, DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }

    async fn until(&self, says: &str) {
        let said = async {
            while !self.text().contains(says) {
                tokio::task::yield_now().await;
            }
        };
        assert!(timeout(LONG, said).await.is_ok(), "no `{says}` in {}", self.text());
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn only_members_get_a_link() {
    let (log, _guard) = Log::start();
    let mut listener = listen(member()).await;
    let address = listener.address().clone();
    for (options, dialer_says, listener_says) in [
        (of("stranger", "authority"), "received fatal alert", "UnknownIssuer"),
        (of("expired", "authority"), "received fatal alert", "xpired"),
        (of("node", "another-authority"), "UnknownIssuer", "received fatal alert"),
    ] {
        let error = refused(&address, &options).await;
        assert!(matches!(&error, LinkError::Tls { problem } if problem.contains(dialer_says)), "{error}");
        log.until(listener_says).await;
    }
    assert!(log.text().contains("turned a peer away channel=\"steps\" peer=\"127.0.0.1:"), "{}", log.text());
    serves_members(&mut listener, &member()).await;
}

#[tokio::test]
async fn plain_text_gets_no_link_where_there_is_tls() {
    let (log, _guard) = Log::start();
    let mut listener = listen(member()).await;
    let address = listener.address().clone();
    let error = refused(&address, &LinkOptions::default()).await;
    assert!(matches!(&error, LinkError::Refused { reason } if reason.contains("--link-ssl-certfile")), "{error}");
    log.until("plain text to a port with TLS").await;
    serves_members(&mut listener, &member()).await;
}

#[tokio::test]
async fn tls_gets_no_link_where_there_is_none() {
    let (log, _guard) = Log::start();
    let mut listener = listen(LinkOptions::default()).await;
    let address = listener.address().clone();
    let error = refused(&address, &member()).await;
    assert!(matches!(&error, LinkError::Tls { problem } if problem.contains("--link-ssl-certfile")), "{error}");
    log.until("there is no --link-ssl-certfile here").await;
    serves_members(&mut listener, &LinkOptions::default()).await;
}

#[tokio::test]
async fn a_peer_that_speaks_something_else_or_nothing_delays_no_other() {
    let (log, _guard) = Log::start();
    let mut listener = listen(member()).await;
    let Address::Grpc(host) = listener.address().clone() else { panic!("TCP") };
    let silent = TcpStream::connect(&host).await.unwrap();
    let mut other = TcpStream::connect(&host).await.unwrap();
    other.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    // The connection ends, in order or by a reset.
    let _ = timeout(LONG, other.read_to_end(&mut answer)).await.unwrap();
    assert!(answer.is_empty());
    log.until("neither TLS nor HTTP/2").await;
    serves_members(&mut listener, &member()).await;
    drop(silent);
}
