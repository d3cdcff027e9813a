//! What a worker computes on fails: clients hear why within seconds, `/health` says it, and the service returns when
//! the device does.
//!
//! The faults are real ones (see `tests/faults`). Those of GPUs need one: they run where `QUIRE_TEST_DEVICE` is `cuda`.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use e2e_tests::{
    Client, MOST_RANKS_OF_WREN, Needs, Server, descendants, faults, group_sizes, is_on_gpu, lacks, root, zoo,
};
use futures::future::join_all;
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// What came back for a request, and when.
type Answered = (anyhow::Result<(u16, Value)>, Instant);

/// Within this, clients must have heard, and `/health` must say why.
pub const HEARD: Duration = Duration::from_secs(5);
/// Within this, the service must be back once the device is (debug builds load slowly).
const BACK: Duration = Duration::from_secs(60);
/// Requests that run when the fault comes.
const REQUESTS: usize = 20;
/// Failed starts after which a worker was given up before it had ever been ready.
const ATTEMPTS: usize = 6;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_is_tried_until_what_it_lacks_is_back() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let (model, away) = (folder.path().join("model"), folder.path().join("away"));
    copy(&default_model(), &model)?;
    let mut server = start(&model, &[]).await?;
    // The others have what they need of it in memory.
    fs::rename(&model, &away)?;
    let answers = under_load(&server, Signal::KILL).await?;
    ensure!(answers.iter().all(|answer| answer.contains("worker 0 was lost")), "{answers:?}");
    unhealthy_because(&server, &model.display().to_string()).await?;
    refused_because(&server.client(), &model.display().to_string()).await?;
    let tries = || server.log().matches("starting it again").count();
    eventually("another try", || async { tries() > ATTEMPTS }).await?;
    fs::rename(&away, &model)?;
    serves_again(&mut server).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kernel_that_traps_is_told_and_survived() -> anyhow::Result<()> {
    if lacks(Needs::Gpu) {
        return Ok(());
    }
    for ranks in group_sizes().filter(|ranks| *ranks <= MOST_RANKS_OF_WREN) {
        let folder = tempfile::tempdir()?;
        let (library, lost) = (faults::break_context(folder.path())?, folder.path().join("lost"));
        let ranks = ranks.to_string();
        let flags = ["--tensor-parallel-size", &ranks];
        let environment =
            [("LD_PRELOAD", library.display().to_string()), ("QUIRE_TEST_LOST", lost.display().to_string())];
        let mut server = start_with(&default_model(), &flags, &environment).await?;
        let answers = under_load(&server, Signal::USR1).await.with_context(|| server.log())?;
        ensure!(answers.iter().all(|answer| answer.contains("CUDA_ERROR")), "{answers:?}");
        serves_again(&mut server).await?;
        // Now the GPU does not come back at once.
        fs::write(&lost, "")?;
        let answers = under_load(&server, Signal::USR1).await.with_context(|| server.log())?;
        ensure!(answers.iter().all(|answer| answer.contains("CUDA_ERROR")), "{answers:?}");
        unhealthy_because(&server, "CUDA_ERROR_NO_DEVICE").await?;
        refused_because(&server.client(), "CUDA_ERROR_NO_DEVICE").await?;
        fs::remove_file(&lost)?;
        serves_again(&mut server).await?;
    }
    Ok(())
}

/// No GPU is needed for this: the driver is a pretended one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_is_lost_is_told_and_waited_for() -> anyhow::Result<()> {
    if lacks(Needs::PretendedGpus) {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let (environment, lost) = pretended(folder.path())?;
    let mut server = start_with(&default_model(), PRETENDED, &environment).await?;
    // What the pretended GPU says.
    let zeros = [0; 20];
    says(&server, &[5, 6, 7], &zeros).await?;
    let answers =
        broken_under_load(&server, HEARD, || Ok(fs::write(&lost, "")?)).await.with_context(|| server.log())?;
    ensure!(answers.iter().all(|answer| answer.contains("CUDA_ERROR_DEVICE_UNAVAILABLE")), "{answers:?}");
    unhealthy_because(&server, "CUDA_ERROR_NO_DEVICE").await?;
    refused_because(&server.client(), "CUDA_ERROR_NO_DEVICE").await?;
    fs::remove_file(&lost)?;
    server.healthy(BACK).await?;
    says(&server, &[5, 6, 7], &zeros).await.with_context(|| server.log())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_that_cannot_meet_end_the_start_with_the_cause() -> anyhow::Result<()> {
    if lacks(Needs::PretendedGpus) {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let (environment, _) = pretended(folder.path())?;
    let flags = [PRETENDED, &["--tensor-parallel-size", "2"]].concat();
    let refused =
        start_with(&default_model(), &flags, &environment).await.err().context("must be refused")?.to_string();
    let last = refused.trim().lines().last().unwrap_or_default();
    ensure!(
        last.starts_with("error: the worker ") && last.contains("NCCL failed: meeting the other ranks"),
        "{refused}"
    );
    ensure!(last.contains("--tensor-parallel-size 1"), "{refused}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_the_gpu_has_no_kernels_for_is_refused_before_it_is_loaded() -> anyhow::Result<()> {
    if lacks(Needs::PretendedGpus) {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let (environment, _) = pretended(folder.path())?;
    let model = folder.path().join("model");
    copy(&default_model(), &model)?;
    let mut config: Value = serde_json::from_slice(&fs::read(model.join("config.json"))?)?;
    config["head_dim"] = json!(640);
    fs::write(model.join("config.json"), config.to_string())?;
    let flags = [PRETENDED, &["--load-format", "dummy"]].concat();
    let refused = start_with(&model, &flags, &environment).await.err().context("must be refused")?.to_string();
    let last = refused.trim().lines().last().unwrap_or_default();
    for words in ["error: ", "v_head_dim = 640", "computes up to 512", "--device cpu"] {
        ensure!(last.contains(words), "{words:?}: {refused}");
    }
    Ok(())
}

/// With nothing compiled yet, a start waits for the kernels of first requests and rehearses them; steps run as one
/// kernel once that is compiled, which no request waits for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_waits_for_kernels_that_only_captures_need() -> anyhow::Result<()> {
    if lacks(Needs::PretendedGpus) {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let (server, notes) = start_on_hopper(folder.path(), &["--max-num-seqs", "32", "--single-kernel-decode"]).await?;
    let noted = |what: &str| notes.join(what).exists();
    for kernel in ["attention_prefill_hopper", "attention_decode", "matmul_skinny", "matmul_skinny_gated"] {
        ensure!(noted(&format!("compiled-{kernel}.cu")), "{kernel} is not compiled");
        ensure!(noted(&format!("launched-{kernel}")), "{kernel} was not rehearsed");
    }
    for _ in 0..2 {
        let answer = says(&server, &[5, 6, 7], &[0; 20]);
        tokio::time::timeout(BACK, answer).await.context("a request that waits for the compiler")??;
    }
    ensure!(noted("launched-graph") && !noted("launched-whole_step"), "{}", server.log());
    fs::write(notes.join("go"), "")?;
    eventually("CUDA graphs of all sizes", || async {
        server.log().contains("CUDA graphs of decode steps are captured")
    })
    .await?;
    eventually("a step as one kernel", || async {
        let answered = server.client().greedy("m", &[5, 6, 7], 20).await;
        answered.is_ok() && noted("launched-whole_step")
    })
    .await
    .with_context(|| server.log())
}

/// Kernels for what a model has none of do not hold up its first start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_compiles_what_its_model_is_made_of() -> anyhow::Result<()> {
    if lacks(Needs::PretendedGpus) {
        return Ok(());
    }
    for flags in [&["--enforce-eager"][..], &["--enforce-eager", "--enable-lora"]] {
        let folder = tempfile::tempdir()?;
        let (server, notes) = start_on_hopper(folder.path(), flags).await?;
        let compiled = |kernel: &str| notes.join(format!("compiled-{kernel}.cu")).exists();
        fs::write(notes.join("go"), "")?;
        says(&server, &[5, 6, 7], &[0; 20]).await?;
        for kernel in ["lora", "expert_lora", "saved"] {
            match flags.contains(&"--enable-lora") {
                true => eventually(kernel, || async { compiled(kernel) }).await?,
                false => ensure!(!compiled(kernel), "{kernel}"),
            }
        }
        for kernel in ["causal_conv", "combine", "delta_rule", "expert_matmul", "head_matmul", "prepare_input"] {
            ensure!(!compiled(kernel), "{kernel}");
        }
        for kernel in ["ranks", "ranks_sum", "rope_and_cache_narrow", "route", "unpack"] {
            ensure!(!compiled(kernel), "{kernel}");
        }
        ensure!(
            ["add_norm", "norm", "rope_and_cache", "sample"].iter().all(|kernel| compiled(kernel)),
            "{}",
            server.log()
        );
    }
    Ok(())
}

/// The model that ships on a pretended Hopper, and the folder where that notes what it compiles and launches.
async fn start_on_hopper(folder: &Path, flags: &[&str]) -> anyhow::Result<(Server, PathBuf)> {
    let (environment, _) = pretended(folder)?;
    let notes = folder.join("notes");
    fs::create_dir(&notes)?;
    let hopper = [environment.as_slice(), &[("QUIRE_TEST_HOPPER", notes.display().to_string())]].concat();
    let environment: Vec<_> = hopper.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let model = default_model().display().to_string();
    let always =
        ["--served-model-name", "m", "--dtype", "bfloat16", "--device", "auto", "--kv-cache-memory-bytes", "64M"];
    let server = Server::start_with(&[&[model.as_str()], &always[..], flags].concat(), &environment).await?;
    Ok((server, notes))
}

/// Flags for servers with pretended GPUs.
pub const PRETENDED: &[&str] = &["--device", "auto", "--enforce-eager", "--kv-cache-memory-bytes", "64M"];

/// Environment variables by which servers find pretended GPUs; and the file that, while it exists, makes them lost.
pub fn pretended(folder: &Path) -> anyhow::Result<([(&'static str, String); 4], PathBuf)> {
    let (libraries, lost) = (faults::pretended_driver(folder)?, folder.join("lost"));
    let text = |path: &Path| path.display().to_string();
    let environment = [
        ("LD_LIBRARY_PATH", text(&libraries)),
        ("QUIRE_CUDA_LIBRARY_PATH", text(&libraries)),
        ("QUIRE_KERNEL_CACHE", text(&folder.join("kernels"))),
        ("QUIRE_TEST_LOST", text(&lost)),
    ];
    Ok((environment, lost))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_that_another_process_holds_is_waited_for() -> anyhow::Result<()> {
    if lacks(Needs::Gpu) {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let mut server = start(&default_model(), &["--gpu-memory-utilization", "0.1"]).await?;
    // The driver takes memory for a kernel when it first runs: what the load needs has run before none is left.
    for answered in join_all(load(&server.client())).await {
        let (status, body) = answered?.0?;
        ensure!(status == 200, "{status}: {body}");
    }
    let holder = faults::MemoryHolder::start(folder.path())?;
    under_load(&server, Signal::KILL).await.with_context(|| server.log())?;
    unhealthy_because(&server, "CUDA_ERROR_OUT_OF_MEMORY").await?;
    refused_because(&server.client(), "CUDA_ERROR_OUT_OF_MEMORY").await?;
    drop(holder);
    serves_again(&mut server).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_without_enough_gpus_is_refused_in_one_line() -> anyhow::Result<()> {
    // Servers of a run on GPUs are told so anyway.
    let device: &[&str] = if is_on_gpu() { &[] } else { &["--device", "cuda"] };
    refused(device, "", "--device cuda: ").await?;
    if is_on_gpu() {
        refused(&["--tensor-parallel-size", "2"], "0", "--tensor-parallel-size 2 needs 2 GPUs").await?;
    }
    Ok(())
}

async fn refused(flags: &[&str], visible: &str, want: &str) -> anyhow::Result<()> {
    let mut server = Server::spawn(flags, &[("CUDA_VISIBLE_DEVICES", visible)]).await?;
    let status = server.ended(BACK)?;
    let log = server.log();
    let last = log.lines().last().unwrap_or_default();
    ensure!(!status.success() && last.starts_with("error: ") && last.contains(want), "{status}: {log}");
    Ok(())
}

pub fn default_model() -> PathBuf {
    root().join("crates/default-model/files/model")
}

pub async fn start(model: &Path, flags: &[&str]) -> anyhow::Result<Server> {
    start_with(model, flags, &[]).await
}

pub async fn start_with(model: &Path, flags: &[&str], environment: &[(&str, String)]) -> anyhow::Result<Server> {
    let model = model.display().to_string();
    let args = [&[model.as_str(), "--served-model-name", "m", "--dtype", "float32"], flags].concat();
    let environment: Vec<_> = environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
    Server::start_with(&args, &environment).await
}

/// Sends the last worker a signal while requests run.
async fn under_load(server: &Server, signal: Signal) -> anyhow::Result<Vec<String>> {
    let hit = || {
        let worker = descendants(server.pid()).into_iter().rev().find(|process| process.role == "worker");
        Ok(kill_process(worker.context("a worker")?.pid, signal)?)
    };
    broken_under_load(server, HEARD, hit).await
}

/// Breaks something while requests run; returns the messages of their 503s, which come within `heard`. Those that were
/// answered before do not count.
pub async fn broken_under_load(
    server: &Server,
    heard: Duration,
    break_it: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<Vec<String>> {
    let client = server.client();
    let requests = load(&client);
    eventually("requests that run", || async {
        client.metric("vllm:num_requests_running", "").await.is_ok_and(|running| running >= REQUESTS as f64 / 4.0)
    })
    .await?;
    break_it()?;
    let hit = Instant::now();
    let mut messages = Vec::new();
    for answered in join_all(requests).await {
        let (answer, at) = answered?;
        let (status, body) = answer?;
        if status == 200 && at < hit + heard {
            continue;
        }
        ensure!(status == 503, "{status}: {body}");
        ensure!(at < hit + heard, "a client heard only after {:?}", at - hit);
        messages.push(body["error"]["message"].as_str().context("a message")?.to_owned());
    }
    ensure!(!messages.is_empty(), "all requests ended before the fault");
    Ok(messages)
}

/// Sends requests that take a while; each ends with its answer and when it came.
fn load(client: &Client) -> Vec<JoinHandle<Answered>> {
    let case = zoo::default_model_cases().remove(0);
    let one = |seed: u64| {
        let (client, prompt) = (client.clone(), case.prompt.clone());
        let body = json!({
            "model": "m", "prompt": prompt, "max_tokens": 400, "ignore_eos": true, "temperature": 1, "seed": seed,
        });
        tokio::spawn(async move { (client.post("/v1/completions", &body).await, Instant::now()) })
    };
    (0..REQUESTS as u64).map(one).collect()
}

/// Waits until `/health` names a cause.
pub async fn unhealthy_because(server: &Server, cause: &str) -> anyhow::Result<()> {
    let client = server.client();
    let said = eventually("/health names the cause", || async {
        client.get("/health").await.is_ok_and(|(status, text)| status == 503 && text.contains(cause))
    });
    said.await.with_context(|| format!("{cause}\n{}", server.log()))
}

/// Waits until requests are refused for a cause.
async fn refused_because(client: &Client, cause: &str) -> anyhow::Result<()> {
    let body = json!({"model": "m", "prompt": [5, 6, 7], "max_tokens": 1});
    eventually("a refusal that names the cause", || async {
        let answer = client.post("/v1/completions", &body).await;
        answer.is_ok_and(|(status, body)| status == 503 && body.to_string().contains(cause))
    })
    .await
    .with_context(|| cause.to_owned())
}

/// Waits until the service is back, by itself, and says what it said before.
pub async fn serves_again(server: &mut Server) -> anyhow::Result<()> {
    server.healthy(BACK).await?;
    let case = zoo::default_model_cases().remove(0);
    says(server, &case.prompt, &case.greedy).await
}

/// What the server says, and that nothing is left of the requests.
pub async fn says(server: &Server, prompt: &[u32], expected: &[u32]) -> anyhow::Result<()> {
    let tokens = server.client().greedy("m", prompt, expected.len()).await?;
    ensure!(tokens == expected, "{tokens:?}");
    crate::metrics::settles_at(&server.client(), "quire:kv_blocks_used", 0.0).await
}

/// Asks again and again; fails after a minute.
pub async fn eventually<Asked: Future<Output = bool>>(what: &str, ask: impl Fn() -> Asked) -> anyhow::Result<()> {
    let deadline = Instant::now() + BACK;
    while !ask().await {
        ensure!(Instant::now() < deadline, "never seen: {what}");
        // What a process says can only be seen from outside by asking again.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}
