//! Tokens a second through the whole process: a scheduler that sends one-token steps for many sequences, a gateway that
//! reads.
//!
//! `cargo run --release -p detokenizer-svc --example throughput -- MODEL_DIR [SEQUENCES] [STEPS] [STOP]`
//!
//! Prints the rate as the gateway sees it, and the processor time of the detokenizer's one thread, links included.

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Instant,
};

use link::{Address, Link, LinkOptions};
use proto::{DetokenizerReply, EventBatch, Inbound, Output, RequestKey, Started, TokenBatch, event::Kind};
use service_kit::Process;

/// The gateway's thread.
type Reading = thread::JoinHandle<anyhow::Result<u64>>;

struct Plan {
    sequences: u64,
    steps: u64,
    stop: Vec<String>,
}

fn main() -> anyhow::Result<()> {
    let mut given = env::args().skip(1);
    let model = PathBuf::from(given.next().unwrap_or_else(|| "crates/default-model/files/model".into()));
    let mut number = |default: u64| given.next().map_or(Ok(default), |text| text.parse());
    let (sequences, steps) = (number(256)?, number(8000)?);
    let plan = Plan { sequences, steps, stop: given.collect() };
    let dir = env::temp_dir().join(format!("detokenizer-throughput-{}", std::process::id()));
    fs::create_dir_all(&dir)?;
    let process = Process::new("bench");
    let serving = serve(&dir, &model, process.clone())?;
    let (connected, is_connected) = mpsc::channel();
    let gateway = {
        let (dir, total) = (dir.clone(), sequences * steps);
        thread::spawn(move || read(&dir, total, &connected))
    };
    // Requests come from connected gateways only.
    is_connected.recv()?;
    let (seconds, messages) = send(&dir, &plan, gateway)?;
    process.shutdown.cancel();
    let busy = serving.join().expect("the detokenizer's thread")?;
    let tokens = (sequences * steps) as f64;
    println!("{tokens} tokens in {seconds:.2} s: {:.0} tokens/s, {messages} messages", tokens / seconds);
    println!("detokenizer: {busy:.2} s on its processor, {:.0} tokens/s of one core", tokens / busy);
    fs::remove_dir_all(&dir)?;
    Ok(())
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Runs the process on a thread of its own; gives that thread's processor time in seconds.
fn serve(dir: &Path, model: &Path, process: Process) -> anyhow::Result<thread::JoinHandle<anyhow::Result<f64>>> {
    let own = |flag: &str, name: &str| format!("--{flag}=ring:{}", dir.join(name).display());
    let model = format!("--model={}", model.display());
    let args = service_kit::parse_flags([
        "bench".into(),
        own("listen-tokens", "tokens"),
        own("listen-events", "events"),
        model,
    ])?;
    Ok(thread::spawn(move || {
        runtime()?.block_on(detokenizer_svc::serve(args, process))?;
        let nanoseconds = fs::read_to_string("/proc/thread-self/schedstat")?;
        Ok(nanoseconds.split(' ').next().unwrap_or("0").parse::<f64>()? * 1e-9)
    }))
}

/// The gateway: counts tokens until it has them all; gives the number of messages.
fn read(dir: &Path, total: u64, connected: &mpsc::Sender<()>) -> anyhow::Result<u64> {
    runtime()?.block_on(async {
        let address = Address::Ring(dir.join("events"));
        let hello = link::hello("api-gateway", "events", "");
        let mut gateway: Link<Inbound, EventBatch> = link::redial(&address, hello, &LinkOptions::default()).await;
        connected.send(())?;
        let (mut seen, mut messages) = (0, 0);
        while seen < total {
            messages += 1;
            for event in gateway.receiver.recv().await?.events {
                if let Some(Kind::Delta(delta)) = event.kind {
                    seen += u64::from(delta.token_count);
                }
            }
        }
        Ok(messages)
    })
}

/// The scheduler: all sequences at once, then one token for each in every step. Gives the seconds until the gateway had
/// them, and its messages.
fn send(dir: &Path, plan: &Plan, gateway_thread: Reading) -> anyhow::Result<(f64, u64)> {
    runtime()?.block_on(async {
        let address = Address::Ring(dir.join("tokens"));
        let hello = link::hello("scheduler-svc", "tokens", "");
        let gateway = hello.instance;
        let mut scheduler: Link<TokenBatch, DetokenizerReply> =
            link::redial(&address, hello, &LinkOptions::default()).await;
        let output = Output { stream: true, skip_special_tokens: true, stop: plan.stop.clone(), ..Output::default() };
        let start = |number: u64| Started {
            key: Some(RequestKey { gateway, number }),
            first_sequence: number,
            n: 1,
            output: Some(output.clone()),
            ..Started::default()
        };
        let started = (1..=plan.sequences).map(start).collect();
        scheduler.sender.send(&TokenBatch { started, ..TokenBatch::default() }).await?;
        let began = Instant::now();
        for step in 0..plan.steps {
            let sequence: Vec<u64> = (1..=plan.sequences).collect();
            // Common words of the vocabulary.
            let token = sequence.iter().map(|number| 300 + ((number * 7 + step * 13) % 3000) as u32).collect();
            scheduler.sender.send(&TokenBatch { sequence, token, ..TokenBatch::default() }).await?;
        }
        // The link stays until the gateway has everything.
        let messages = gateway_thread.join().expect("the gateway's thread")?;
        Ok((began.elapsed().as_secs_f64(), messages))
    })
}
