//! What the checks stand on: an address per test, both ends of a link, and peers in other processes.

use std::{
    process::{Child as Process, Command, Stdio},
    time::Duration,
};

use link::{Address, Link, LinkError, LinkOptions, Listener};
use proto::{DetokenizerReply, Failed, Hello, TokenBatch};
use tempfile::TempDir;

/// The dialer's end.
pub type Dialled = Link<TokenBatch, DetokenizerReply>;
/// The listener's end.
pub type Accepted = Link<DetokenizerReply, TokenBatch>;

/// One test's address and options.
pub struct Bed {
    address: String,
    pub options: LinkOptions,
    /// Holds the sockets.
    _folder: TempDir,
}

impl Bed {
    pub fn new(form: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = form.replace("DIR", &folder.path().display().to_string());
        // Never reached where a check does not mean to.
        let patient = Duration::from_secs(60);
        let options = LinkOptions {
            capacity_bytes: 64 << 10,
            send_deadline: patient,
            connect_deadline: patient,
            ..LinkOptions::default()
        };
        Self { address, options, _folder: folder }
    }

    pub fn with_capacity(mut self, bytes: usize) -> Self {
        self.options.capacity_bytes = bytes;
        self
    }

    pub fn is_ring(&self) -> bool {
        self.address.starts_with("ring:")
    }

    pub async fn listener(&self) -> Listener {
        self.listener_at(&self.address.parse().unwrap()).await
    }

    pub async fn listener_at(&self, address: &Address) -> Listener {
        Listener::bind(address, hello("listener"), self.options.clone()).await.unwrap()
    }

    /// Both ends of a link, and the listener.
    pub async fn link(&self) -> (Dialled, Accepted, Listener) {
        let mut listener = self.listener().await;
        let address = listener.address().clone();
        let (dialled, accepted) = tokio::join!(self.dial(&address), listener.accept());
        (dialled.unwrap(), accepted.unwrap(), listener)
    }

    pub async fn dial(&self, address: &Address) -> Result<Dialled, LinkError> {
        link::connect(address, hello("dialer"), &self.options).await
    }

    /// An address at which another process can listen later.
    pub fn free_address(&self) -> Address {
        if self.address.starts_with("grpc:") {
            let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            return Address::Grpc(format!("127.0.0.1:{port}"));
        }
        self.address.parse().unwrap()
    }
}

pub fn hello(service: &str) -> Hello {
    link::hello(service, "tokens", "")
}

/// A message that carries `n`.
pub fn batch(n: u32) -> TokenBatch {
    TokenBatch { token: vec![n], ..TokenBatch::default() }
}

/// A message with `bytes` bytes of text that carries `n`.
pub fn large_batch(n: u32, bytes: usize) -> TokenBatch {
    let letter = char::from(b'a' + (n % 26) as u8);
    let text = Failed { request_id: String::from_iter(std::iter::repeat_n(letter, bytes)), ..Failed::default() };
    TokenBatch { failed: vec![text], ..batch(n) }
}

/// A hang is a failure, not a stuck test run.
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(120), future).await.expect("hangs")
}

const ROLE: &str = "LINK_TEST_ROLE";
const ADDRESS: &str = "LINK_TEST_ADDRESS";

/// This test program again, as a peer; killed on drop.
pub struct Child(Process);

impl Child {
    /// Starts a peer. `role` is one of those of [`run_child`].
    pub fn spawn(role: &str, address: &Address) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["child", "--exact", "--nocapture"]).env(ROLE, role).env(ADDRESS, address.to_string());
        Self(command.stdout(Stdio::null()).spawn().unwrap())
    }

    /// Ends it with SIGKILL and waits until the kernel has done so.
    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The other process's part.
pub async fn run_child() {
    let (Ok(role), Ok(address)) = (std::env::var(ROLE), std::env::var(ADDRESS)) else { return };
    let address: Address = address.parse().unwrap();
    let bed = Bed::new("ring:unused");
    match role.as_str() {
        // Dials, and sends numbered messages until it is killed.
        "count" => {
            let mut link = bed.dial(&address).await.unwrap();
            for n in 0.. {
                link.sender.send(&large_batch(n, 20_000)).await.unwrap();
            }
        }
        // Dials, and never reads.
        "sleep" => {
            let _link = bed.dial(&address).await.unwrap();
            std::future::pending::<()>().await;
        }
        // Listens, and returns each message's first token.
        "echo" => {
            let mut listener = bed.listener_at(&address).await;
            while let Ok(mut link) = listener.accept::<DetokenizerReply, TokenBatch>().await {
                tokio::spawn(async move {
                    while let Ok(batch) = link.receiver.recv().await {
                        let reply = DetokenizerReply { stopped: vec![batch.token[0].into()], ..Default::default() };
                        link.sender.send(&reply).await.unwrap();
                    }
                });
            }
        }
        other => panic!("no role {other}"),
    }
}
