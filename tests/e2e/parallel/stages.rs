//! Pipeline stages, on processors or GPUs: greedy tokens equal the references, however layers are divided.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use e2e_tests::{Server, descendants, is_on_gpu, max_workers, zoo};
use futures::future::try_join_all;
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use tokio::time::timeout;

/// Within this, the service must be back (debug builds load slowly).
const BACK: Duration = Duration::from_secs(60);

/// Models of different kinds: learned positions, windows beside full attention, recurrent layers, experts, a tied head.
const MODELS: &[(&str, &[&str])] = &[
    ("gpt2", &["-tp", "2", "-pp", "2"]),
    ("llama", &["-pp", "2"]),
    ("llama", &["-tp", "4", "-pp", "2"]),
    ("llama-head128", &["-tp", "4"]),
    ("qwen3-moe", &["-tp", "2", "-pp", "2"]),
    ("llama-head128", &["-tp", "8"]),
    ("gpt2", &["-pp", "2"]),
    ("deepseek-v3", &["-pp", "2", "--pipeline-layer-partition", "1,2"]),
    ("gpt-oss", &["-pp", "2"]),
    ("gemma3", &["-pp", "3", "--pipeline-layer-partition", "1,2,1", "--max-num-batched-tokens", "64"]),
    ("mamba2", &["-pp", "2"]),
    ("qwen3-moe", &["-pp", "2", "--max-num-batched-tokens", "32", "--max-num-seqs", "16"]),
    ("qwen3-next", &["-pp", "2", "--no-async-scheduling"]),
];

async fn start(model: &str, flags: &[&str]) -> anyhow::Result<Server> {
    let path = zoo::folder().join(model);
    let path = path.to_string_lossy();
    let fixed = [&path, "--served-model-name", model, "--dtype", "float32"];
    Server::start(&[&fixed, flags].concat()).await
}

/// Whether this machine has GPUs for as many workers, where they are to compute on GPUs.
fn has_workers_for(flags: &[&str]) -> bool {
    let sizes = flags.windows(2).filter(|pair| ["-tp", "-pp"].contains(&pair[0]));
    let workers: usize = sizes.map(|pair| pair[1].parse::<usize>().unwrap_or(1)).product();
    !is_on_gpu() || workers <= max_workers()
}

/// Every case alone, cold and warm, then all of them at once.
async fn check(server: &Server, model: &str, cases: &[zoo::Case]) -> anyhow::Result<()> {
    let client = server.client();
    for round in ["cold", "warm"] {
        for (index, case) in cases.iter().enumerate() {
            let tokens = client.greedy(model, &case.prompt, case.greedy.len()).await?;
            ensure!(tokens == case.greedy, "{model}, prompt {index}, {round}: {tokens:?}");
        }
    }
    let at_once = (0..4).flat_map(|_| cases).map(|case| {
        let client = client.clone();
        async move {
            let tokens = client.greedy(model, &case.prompt, case.greedy.len()).await?;
            ensure!(tokens == case.greedy, "{model}, among others: {tokens:?}");
            Ok(())
        }
    });
    try_join_all(at_once).await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stages_say_what_the_references_do() -> anyhow::Result<()> {
    for (model, flags) in MODELS {
        let Some(cases) = zoo::cases(model) else {
            println!("{model}: not in this zoo");
            continue;
        };
        if !has_workers_for(flags) {
            println!("{model} {flags:?}: skipped, QUIRE_TEST_GPUS names fewer GPUs");
            continue;
        }
        println!("{model} {flags:?}");
        let server = start(model, flags).await?;
        check(&server, model, &cases).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beams_choices_and_preempted_sequences_go_through_stages() -> anyhow::Result<()> {
    if !has_workers_for(&["-pp", "2"]) {
        println!("skipped: QUIRE_TEST_GPUS names fewer GPUs");
        return Ok(());
    }
    let cases = zoo::cases("llama").context("in every zoo")?;
    let tight = ["--num-gpu-blocks-override", "24", "--max-model-len", "128"];
    let body = |more: &Value| {
        let mut body = json!({"model": "llama", "prompt": cases[0].prompt, "max_tokens": 12});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        body
    };
    let ways = [
        json!({"use_beam_search": true, "n": 3}),
        json!({"n": 4, "seed": 7, "temperature": 0.9}),
        json!({"temperature": 0, "logprobs": 3, "echo": true}),
        json!({"temperature": 0, "structured_outputs": {"choice": ["yes", "no"]}}),
    ];
    let answers = async |server: &Server| {
        let client = server.client();
        let bodies = ways.iter().map(body);
        let answers = try_join_all(bodies.map(|body| {
            let client = client.clone();
            async move { client.post("/v1/completions", &body).await }
        }));
        anyhow::Ok(answers.await?.into_iter().map(|(status, answer)| (status, answer["choices"].clone())).collect())
    };
    let whole: Vec<_> = answers(&start("llama", &tight).await?).await?;
    let staged = start("llama", &[&tight[..], &["-pp", "2"]].concat()).await?;
    let divided: Vec<_> = answers(&staged).await?;
    for (way, (expected, found)) in ways.iter().zip(whole.into_iter().zip(divided)) {
        ensure!(expected.0 == 200 && expected == found, "{way}: {found:?}, not {expected:?}");
    }
    let (client, cases) = (staged.client(), Arc::new(cases));
    let many = (0..24).map(|number| {
        let (client, cases) = (client.clone(), cases.clone());
        async move {
            let case = &cases[number % cases.len()];
            let tokens = client.greedy("llama", &case.prompt, case.greedy.len()).await?;
            ensure!(tokens == case.greedy, "{tokens:?}");
            Ok(())
        }
    });
    try_join_all(many).await?;
    let preemptions = client.metric("vllm:num_preemptions_total", "").await?;
    ensure!(preemptions > 0.0, "24 blocks must force preemptions");
    Ok(())
}

/// A stage that is killed ends the requests, and the group forms again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_stage_comes_back() -> anyhow::Result<()> {
    if !has_workers_for(&["-pp", "2"]) {
        println!("skipped: QUIRE_TEST_GPUS names fewer GPUs");
        return Ok(());
    }
    let cases = zoo::cases("llama").context("in every zoo")?;
    let server = start("llama", &["-pp", "2", "--pipeline-layer-partition", "1,2"]).await;
    // The zoo's llama has two layers.
    let refused = format!("{:#}", server.err().context("a partition of three layers of two")?);
    ensure!(refused.contains("the stages of a pipeline must cover all layers once"), "{refused}");
    let server = start("llama", &["-pp", "2"]).await?;
    let client = server.client();
    for role in [0, 1] {
        let workers: Vec<_> =
            descendants(server.pid()).into_iter().filter(|process| process.role == "worker").collect();
        ensure!(workers.len() == 2, "{workers:?}");
        kill_process(workers[role].pid, Signal::KILL)?;
        let serves = async {
            let body = json!({"model": "llama", "prompt": cases[0].prompt, "max_tokens": 3});
            while !client.post("/v1/completions", &body).await.is_ok_and(|(status, _)| status == 200) {}
        };
        timeout(BACK, serves).await.with_context(|| server.log())?;
        let tokens = client.greedy("llama", &cases[0].prompt, cases[0].greedy.len()).await?;
        ensure!(tokens == cases[0].greedy, "{tokens:?}");
    }
    Ok(())
}
