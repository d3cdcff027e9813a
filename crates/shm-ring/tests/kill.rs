//! A process that is killed while it writes or reads: the other end gets what was published, whole, then learns of it.
//!
//! The children are this test program itself, started again with a socket's path in the environment.
#![cfg(not(any(loom, miri)))]

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use shm_ring::{Receiver, RingError, Sender};
use tokio::net::{UnixListener, UnixStream};

const SOCKET: &str = "SHM_RING_TEST_SOCKET";
const CAPACITY: usize = 1 << 18;

/// Ends the child however the test ends.
struct Killed(Child);

impl Killed {
    fn kill(&mut self) {
        self.0.kill().unwrap();
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn(test: &str, socket: &Path) -> Killed {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]).env(SOCKET, socket).stdout(Stdio::null());
    Killed(command.spawn().unwrap())
}

/// Starts a child that runs `test`, and hands it the rings.
async fn start(test: &str, round: usize) -> (Killed, Sender, Receiver) {
    let path = std::env::temp_dir().join(format!("shm-ring-{}-{test}-{round}.sock", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    let child = spawn(test, &path);
    let (socket, _) = listener.accept().await.unwrap();
    std::fs::remove_file(&path).unwrap();
    let (sender, receiver) = shm_ring::offer(socket, CAPACITY).await.unwrap();
    (child, sender, receiver)
}

/// In a child: its ends of the rings. `None` when this is the test run itself.
async fn inherit() -> Option<(Sender, Receiver)> {
    let path = PathBuf::from(std::env::var_os(SOCKET)?);
    Some(shm_ring::take(UnixStream::connect(path).await.unwrap()).await.unwrap())
}

/// Record `n`: its number, then bytes that all depend on it. Up to 64 KiB, so that most of the time goes into
/// copying, and a kill lands in the middle of one.
fn record(n: u64) -> Vec<u8> {
    let mut record = n.to_le_bytes().to_vec();
    record.resize(8 + (n * 7919 % 65_536) as usize, n as u8);
    record
}

/// A hang is a failure, not a stuck test run.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("hangs")
}

#[tokio::test]
async fn child_writer() {
    let Some((mut sender, _receiver)) = inherit().await else { return };
    for n in 0.. {
        let record = record(n);
        while !sender.stage(&record).unwrap() {
            sender.wait_for_room(record.len()).await.unwrap();
        }
        if n % 3 == 0 {
            sender.publish();
        }
    }
}

#[tokio::test]
async fn child_reader() {
    let Some((_sender, mut receiver)) = inherit().await else { return };
    let mut record = Vec::new();
    while receiver.recv(&mut record).await.is_ok() {
        record.clear();
    }
}

#[tokio::test]
async fn child_sleeper() {
    let Some(_rings) = inherit().await else { return };
    std::future::pending().await
}

#[tokio::test]
async fn a_writer_killed_in_the_middle_leaves_whole_records() {
    for round in 0..150 {
        let (mut child, _sender, mut receiver) = start("child_writer", round).await;
        let kill_at = (round as u64 * 37) % 400;
        let mut got = Vec::new();
        for n in 0.. {
            if n == kill_at {
                child.kill();
            }
            got.clear();
            match soon(receiver.recv(&mut got)).await {
                Ok(_) => assert!(got == record(n), "record {n} is torn or out of order"),
                Err(RingError::Gone) => {
                    assert!(n >= kill_at, "gone before the kill");
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(matches!(receiver.try_recv(&mut got), Err(RingError::Gone)));
    }
}

#[tokio::test]
async fn a_sender_without_room_learns_of_the_death() {
    let (mut child, mut sender, _receiver) = start("child_sleeper", 0).await;
    while sender.try_send(&[7; 4096]).unwrap() {}
    let mut waiting = std::pin::pin!(sender.send(&[7; 4096]));
    assert!(futures_pending(waiting.as_mut()).await);
    child.kill();
    assert!(matches!(soon(waiting).await, Err(RingError::Gone)));
}

#[tokio::test]
async fn a_sender_to_a_killed_reader_ends() {
    let (mut child, mut sender, _receiver) = start("child_reader", 0).await;
    for n in 0..200 {
        soon(sender.send(&record(n))).await.unwrap();
    }
    child.kill();
    let end = async {
        loop {
            if let Err(error) = sender.send(&record(1)).await {
                break error;
            }
        }
    };
    assert!(matches!(soon(end).await, RingError::Gone));
}

/// Whether a future is still pending after one poll.
async fn futures_pending<F: Future>(mut future: std::pin::Pin<&mut F>) -> bool {
    std::future::poll_fn(|context| std::task::Poll::Ready(future.as_mut().poll(context).is_pending())).await
}
