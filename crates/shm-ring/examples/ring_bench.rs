//! One-way latency and throughput of a ring between two processes: `cargo run --release -p shm-ring --example
//! ring_bench`.
//!
//! `sleeping` waits as a service does (eventfd through tokio), one record at a time, so each one wakes a sleeper;
//! `spinning` looks at the ring all the time and shows what the ring itself costs. Throughput is one way, in batches of
//! 32. The child is this program again, with a socket's path as its argument. Each process is pinned to one processor.

use std::{
    error::Error,
    process::Command,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use rustix::thread::CpuSet;
use shm_ring::{Receiver, RingError, Sender};
use tokio::net::{UnixListener, UnixStream};

const PINGS: usize = 20_000;
const STREAM: Duration = Duration::from_secs(1);
const BATCH: usize = 32;
const CAPACITY: usize = 4 << 20;
/// First byte of a record: what the child does with it.
const PING: u8 = 0;
const SPIN: u8 = 1;
const SLEEP: u8 = 2;
const STREAMED: u8 = 3;
const COUNT: u8 = 4;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    if let Some(path) = std::env::args_os().nth(1) {
        pin(1);
        let (sender, receiver) = shm_ring::take(UnixStream::connect(path).await?).await?;
        return Ok(child(sender, receiver).await?);
    }
    pin(0);
    let path = std::env::temp_dir().join(format!("ring-bench-{}.sock", std::process::id()));
    let listener = UnixListener::bind(&path)?;
    let mut process = Command::new(std::env::current_exe()?).arg(&path).spawn()?;
    let (socket, _) = listener.accept().await?;
    std::fs::remove_file(&path)?;
    let (mut sender, mut receiver) = shm_ring::offer(socket, CAPACITY).await?;
    println!("{:>6}  {:>10}  {:>9}  {:>9}", "bytes", "mode", "p50 us", "p99 us");
    for (mode, name) in [(SLEEP, "sleeping"), (SPIN, "spinning")] {
        for bytes in [64, 4096] {
            let (p50, p99) = latency(&mut sender, &mut receiver, bytes, mode).await?;
            println!("{bytes:>6}  {name:>10}  {p50:>9.2}  {p99:>9.2}");
        }
    }
    println!("\n{:>6}  {:>12}  {:>8}", "bytes", "records/s", "GB/s");
    for bytes in [64, 4096] {
        let rate = throughput(&mut sender, &mut receiver, bytes).await?;
        println!("{bytes:>6}  {rate:>12.0}  {:>8.2}", rate * bytes as f64 / 1e9);
    }
    drop((sender, receiver));
    process.wait()?;
    Ok(())
}

/// Percentiles of one-way latency, microseconds. The child measures: both processes read the same clock.
async fn latency(
    sender: &mut Sender,
    receiver: &mut Receiver,
    bytes: usize,
    mode: u8,
) -> Result<(f64, f64), RingError> {
    sender.send(&[mode]).await?;
    let (mut record, mut answer, mut times) = (vec![PING; bytes], Vec::new(), Vec::new());
    for _ in 0..PINGS {
        record[8..16].copy_from_slice(&now().to_le_bytes());
        sender.send(&record).await?;
        answer.clear();
        recv(receiver, &mut answer, mode).await?;
        times.push(word(&answer, 0));
    }
    times.sort_unstable();
    Ok((times[PINGS / 2] as f64 / 1e3, times[PINGS * 99 / 100] as f64 / 1e3))
}

/// Records per second, until the child has counted the last one.
async fn throughput(sender: &mut Sender, receiver: &mut Receiver, bytes: usize) -> Result<f64, RingError> {
    sender.send(&[SLEEP]).await?;
    let record = vec![STREAMED; bytes];
    let begin = Instant::now();
    while begin.elapsed() < STREAM {
        for _ in 0..BATCH {
            while !sender.stage(&record)? {
                sender.wait_for_room(bytes).await?;
            }
        }
        sender.publish();
    }
    sender.send(&[COUNT]).await?;
    let mut answer = Vec::new();
    receiver.recv(&mut answer).await?;
    Ok(word(&answer, 0) as f64 / begin.elapsed().as_secs_f64())
}

async fn child(mut sender: Sender, mut receiver: Receiver) -> Result<(), RingError> {
    let (mut mode, mut streamed) = (SLEEP, 0u64);
    let (mut bytes, mut lengths) = (Vec::new(), Vec::new());
    loop {
        bytes.clear();
        lengths.clear();
        let outcome = match mode {
            SPIN => recv(&mut receiver, &mut bytes, SPIN).await.map(|length| lengths.push(length)),
            _ => receiver.recv_many(&mut bytes, &mut lengths, 1024).await,
        };
        match outcome {
            Err(RingError::Gone) => return Ok(()),
            other => other?,
        }
        let mut start = 0;
        for length in &lengths {
            match bytes[start] {
                PING => sender.send(&now().saturating_sub(word(&bytes, start + 8)).to_le_bytes()).await?,
                STREAMED => streamed += 1,
                COUNT => sender.send(&std::mem::take(&mut streamed).to_le_bytes()).await?,
                other => mode = other,
            }
            start += length;
        }
    }
}

async fn recv(receiver: &mut Receiver, out: &mut Vec<u8>, mode: u8) -> Result<usize, RingError> {
    if mode != SPIN {
        return receiver.recv(out).await;
    }
    loop {
        if let Some(length) = receiver.try_recv(out)? {
            return Ok(length);
        }
        std::hint::spin_loop();
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// Keeps this process on one processor, where there is such a one.
fn pin(processor: usize) {
    let mut set = CpuSet::new();
    set.set(processor);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}
