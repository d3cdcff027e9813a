//! Round trip and throughput of a link between two processes, over each transport:
//! `cargo run --release -p link --example link_bench`.
//!
//! A round trip sends one `TokenBatch` of the given size and awaits a short reply. Throughput is one way, once message
//! by message and once in batches of 32, until the peer has counted the last one. The child is this program again.

use std::{
    error::Error,
    time::{Duration, Instant},
};

use link::{Address, Link, LinkError, LinkOptions, Listener, Receiver, Sender};
use proto::{DetokenizerReply, Failed, TokenBatch};
use tokio::process::Command;

type Accepted = Link<DetokenizerReply, TokenBatch>;

const ROUND_TRIPS: usize = 10_000;
const STREAM: Duration = Duration::from_secs(1);
const BATCH: usize = 32;
/// First token of a message: what the child does with it.
const ECHO: u32 = 1;
const STREAMED: u32 = 2;
const COUNT: u32 = 3;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    if let Some(address) = std::env::args().nth(1) {
        return Ok(child(&address.parse()?).await?);
    }
    let folder = std::env::temp_dir().join(format!("link-bench-{}", std::process::id()));
    println!(
        "{:>9}  {:>6}  {:>9}  {:>9}  {:>12}  {:>12}",
        "transport", "bytes", "p50 us", "p99 us", "single/s", "batched/s"
    );
    for (name, address) in [
        ("ring", format!("ring:{}/ring.sock", folder.display())),
        ("grpc+unix", format!("grpc+unix:{}/grpc.sock", folder.display())),
        ("grpc", "grpc://127.0.0.1:0".to_owned()),
    ] {
        measure(name, &address.parse()?).await?;
    }
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

async fn measure(name: &str, address: &Address) -> Result<(), Box<dyn Error>> {
    let hello = link::hello("bench", "bench", "");
    let mut listener = Listener::bind(address, hello, LinkOptions::default()).await?;
    let mut process = Command::new(std::env::current_exe()?).arg(listener.address().to_string()).spawn()?;
    // The child dials, but this end plays the one that sends batches.
    let Link { mut sender, mut receiver, .. } = listener.accept::<TokenBatch, DetokenizerReply>().await?;
    for bytes in [64, 4096] {
        let (p50, p99) = round_trips(&mut sender, &mut receiver, bytes).await?;
        let single = stream(&mut sender, &mut receiver, bytes, 1).await?;
        let batched = stream(&mut sender, &mut receiver, bytes, BATCH).await?;
        println!("{name:>9}  {bytes:>6}  {p50:>9.1}  {p99:>9.1}  {single:>12.0}  {batched:>12.0}");
    }
    drop((sender, receiver));
    // Awaited, not blocked on: a stream's end is sent by this runtime's own tasks.
    process.wait().await?;
    Ok(())
}

/// A message of about `bytes` bytes, most of it text, so that the link is measured and not the coding of numbers.
fn message(task: u32, bytes: usize) -> TokenBatch {
    let text = Failed { request_id: "x".repeat(bytes.saturating_sub(8)), ..Failed::default() };
    TokenBatch { token: vec![task], failed: vec![text], ..TokenBatch::default() }
}

/// Percentiles, microseconds.
async fn round_trips(
    sender: &mut Sender<TokenBatch>,
    receiver: &mut Receiver<DetokenizerReply>,
    bytes: usize,
) -> Result<(f64, f64), LinkError> {
    let message = message(ECHO, bytes);
    let mut times = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let begin = Instant::now();
        sender.send(&message).await?;
        receiver.recv().await?;
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    let micros = |at: usize| times[at].as_nanos() as f64 / 1e3;
    Ok((micros(ROUND_TRIPS / 2), micros(ROUND_TRIPS * 99 / 100)))
}

/// Messages per second.
async fn stream(
    sender: &mut Sender<TokenBatch>,
    receiver: &mut Receiver<DetokenizerReply>,
    bytes: usize,
    batch: usize,
) -> Result<f64, LinkError> {
    let messages = vec![message(STREAMED, bytes); batch];
    let begin = Instant::now();
    while begin.elapsed() < STREAM {
        sender.send_many(&messages).await?;
    }
    sender.send(&message(COUNT, 1)).await?;
    let count = receiver.recv().await?.stopped[0];
    Ok(count as f64 / begin.elapsed().as_secs_f64())
}

async fn child(address: &Address) -> Result<(), LinkError> {
    let hello = link::hello("bench-child", "bench", "");
    let mut link: Accepted = link::connect(address, hello, &LinkOptions::default()).await?;
    let mut streamed = 0;
    loop {
        let batch = match link.receiver.recv().await {
            Err(LinkError::PeerGone) => return Ok(()),
            other => other?,
        };
        match batch.token.first() {
            Some(&STREAMED) => streamed += 1,
            Some(&COUNT) => {
                link.sender
                    .send(&DetokenizerReply { stopped: vec![std::mem::take(&mut streamed)], ..Default::default() })
                    .await?
            }
            _ => link.sender.send(&DetokenizerReply { stopped: vec![0], ..Default::default() }).await?,
        }
    }
}
