//! The control plane over a real socket, from both ends.

use std::{net::TcpListener, path::PathBuf, sync::Arc, time::Duration};

use link::{LinkOptions, Tls, TlsFiles, Token, channel};
use service_kit::{
    Address, LoadProgress, Process,
    control::{ControlClient, ControlServer, Handler},
};
use tonic::Code;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

struct Busy;

#[tonic::async_trait]
impl Handler for Busy {
    async fn drained(&self, deadline: Duration) -> u32 {
        deadline.as_millis() as u32
    }

    async fn abort(&self, request_id: &str) -> bool {
        request_id == "cmpl-1"
    }
}

fn process() -> Process {
    Process::new("test-svc")
}

fn address(dir: &tempfile::TempDir) -> Address {
    Address::GrpcUnix(dir.path().join("deep/er/control.sock"))
}

#[tokio::test]
async fn answers_for_the_process() {
    let (process, dir) = (process(), tempfile::tempdir().unwrap());
    ControlServer::new(&process, Arc::new(Busy)).spawn(&[address(&dir)]).await.unwrap();
    let client = ControlClient::new(&address(&dir), &LinkOptions::default()).unwrap();

    process.status.loading("loading weights", LoadProgress { done: 2, total: 4, bytes_per_s: 0 });
    let ready = client.ready().await.unwrap();
    assert_eq!((ready.ready, ready.reason.as_str()), (false, "loading weights: 50 %"));
    assert_eq!(ready.progress_permille, Some(500));
    process.status.ready();
    process.status.advance();
    assert!(client.ready().await.unwrap().ready);
    let health = client.health().await.unwrap();
    assert_eq!((health.service.as_str(), health.progress), ("test-svc", 1));
    assert_eq!(client.info().await.unwrap().pid, std::process::id());
    assert_eq!(client.metrics().await.unwrap(), "");
    assert!(client.abort("cmpl-1").await.unwrap());
    assert!(!client.abort("cmpl-2").await.unwrap());
    assert_eq!(client.reset_prefix_cache().await.unwrap_err().code(), tonic::Code::Unimplemented);
    assert_eq!(client.drain(Duration::from_millis(70)).await.unwrap(), 70);
    assert_eq!(client.ready().await.unwrap().reason, "draining");
}

#[tokio::test]
async fn a_dead_process_is_replaced_and_a_live_one_is_not() {
    let (first, second, dir) = (process(), process(), tempfile::tempdir().unwrap());
    ControlServer::new(&first, Arc::new(())).spawn(&[address(&dir)]).await.unwrap();
    let client = ControlClient::new(&address(&dir), &LinkOptions::default()).unwrap();
    assert!(client.health().await.is_ok());
    let refused = ControlServer::new(&second, Arc::new(())).spawn(&[address(&dir)]).await.unwrap_err();
    assert!(refused.to_string().contains("another process listens there"), "{refused}");

    first.shutdown.cancel();
    // The socket's file stays, but soon nobody listens behind it.
    let bound = async {
        while ControlServer::new(&second, Arc::new(())).spawn(&[address(&dir)]).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), bound).await.unwrap();
    // The same client finds the new process by itself.
    let found = async { while client.health().await.is_err() {} };
    tokio::time::timeout(Duration::from_secs(10), found).await.unwrap();
}

#[tokio::test]
async fn each_address_asks_for_what_is_asked_there() {
    let dir = tempfile::tempdir().unwrap();
    let host = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (unix, tcp) = (address(&dir), Address::Grpc(host.to_string()));
    let process = Process { links: token("the-token-of-this-engine"), ..process() };
    ControlServer::new(&process, Arc::new(Busy)).spawn(&[unix.clone(), tcp.clone()]).await.unwrap();
    assert_eq!(answers(&unix, &LinkOptions::default()).await, [Ok(()), Ok(())]);
    assert_eq!(answers(&tcp, &process.links).await, [Ok(()), Ok(())]);
    assert_eq!(answers(&tcp, &LinkOptions::default()).await, [Err(Code::Unauthenticated); 2]);
}

/// Serves over TCP with what `links` ask for.
async fn serve_tcp(links: &LinkOptions) -> Address {
    // Nothing else takes the port in the moment between: the kernel gives out others first.
    let host = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let address = Address::Grpc(host.to_string());
    let process = Process { links: links.clone(), ..process() };
    ControlServer::new(&process, Arc::new(Busy)).spawn(std::slice::from_ref(&address)).await.unwrap();
    address
}

/// Whether the control service and the health service answer one who shows `links`.
async fn answers(address: &Address, links: &LinkOptions) -> [Result<(), Code>; 2] {
    let control = ControlClient::new(address, links).unwrap();
    let mut health = HealthClient::new(channel(address, links).unwrap());
    let live = health.check(HealthCheckRequest { service: "live".to_owned() }).await;
    [control.drain(Duration::ZERO).await.map(drop), live.map(drop)].map(|answer| answer.map_err(|status| status.code()))
}

fn token(text: &str) -> LinkOptions {
    LinkOptions { token: Some(Token::new(text).unwrap()), ..LinkOptions::default() }
}

fn certificate(name: &str) -> LinkOptions {
    let file = |name: String| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../link/tests/tls").join(name);
    let (certificate, key) = (file(format!("{name}.pem")), file(format!("{name}.key")));
    let files = TlsFiles { certificate: &certificate, key: &key, authorities: &file("authority.pem".to_owned()) };
    LinkOptions { tls: Some(Tls::read(&files).unwrap()), ..LinkOptions::default() }
}

#[tokio::test]
async fn over_tcp_only_who_shows_the_token_gets_an_answer() {
    let engine = token("the-token-of-this-engine");
    let address = serve_tcp(&engine).await;
    for stranger in [LinkOptions::default(), token("the-token-of-another-one")] {
        assert_eq!(answers(&address, &stranger).await, [Err(Code::Unauthenticated); 2]);
    }
    assert_eq!(answers(&address, &engine).await, [Ok(()); 2]);
}

#[tokio::test]
async fn over_tcp_only_who_has_a_certificate_gets_an_answer() {
    let engine = certificate("node");
    let address = serve_tcp(&engine).await;
    assert_eq!(answers(&address, &LinkOptions::default()).await, [Err(Code::Unauthenticated); 2]);
    // Of another authority.
    for answer in answers(&address, &certificate("stranger")).await {
        assert!(answer.is_err(), "{answer:?}");
    }
    assert_eq!(answers(&address, &engine).await, [Ok(()); 2]);
}
