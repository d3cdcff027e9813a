//! The control plane over a real socket, from both ends.

use std::{sync::Arc, time::Duration};

use service_kit::{
    Address, LoadProgress, Process,
    control::{ControlClient, ControlServer, Handler},
};

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
    ControlServer::new(&process, Arc::new(Busy)).spawn(Some(&address(&dir))).await.unwrap();
    let client = ControlClient::new(&address(&dir)).unwrap();

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
    ControlServer::new(&first, Arc::new(())).spawn(Some(&address(&dir))).await.unwrap();
    let client = ControlClient::new(&address(&dir)).unwrap();
    assert!(client.health().await.is_ok());
    let refused = ControlServer::new(&second, Arc::new(())).spawn(Some(&address(&dir))).await.unwrap_err();
    assert!(refused.to_string().contains("another process listens there"), "{refused}");

    first.shutdown.cancel();
    // The socket's file stays, but soon nobody listens behind it.
    let bound = async {
        while ControlServer::new(&second, Arc::new(())).spawn(Some(&address(&dir))).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), bound).await.unwrap();
    // The same client finds the new process by itself.
    let found = async { while client.health().await.is_err() {} };
    tokio::time::timeout(Duration::from_secs(10), found).await.unwrap();
}
