//! The Helm chart: rendered by Helm, validated against Kubernetes' schemas, and its pods' command lines run as
//! processes.

use std::{fs::File, process::Command};

use anyhow::{Context, ensure};
use e2e_tests::{Client, alone, quire_binary, root};
use serde_json::{Value, json};

use super::{gateways, pods::Pod, tools};

/// Values, objects and refusals are in tests/deploy/chart.py.
fn rendered() -> anyhow::Result<Value> {
    let python = tools::python()?;
    let models = ["gateway-api", "keda", "prometheus-operator"].map(|name| format!("@kubernetes-models/{name}"));
    tools::node(&root().join("tests/deploy/crds.mjs"), &models.each_ref().map(String::as_str))?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("cases.json");
    let mut render = Command::new(python);
    render.arg(root().join("tests/deploy/chart.py")).arg(root()).stdout(File::create(&path)?);
    tools::run(&mut render)?;
    Ok(serde_json::from_slice(&std::fs::read(path)?)?)
}

/// The object of a kind whose name ends so.
pub(super) fn find<'a>(objects: &'a Value, kind: &str, name: &str) -> anyhow::Result<&'a Value> {
    let is_it = |object: &&Value| {
        object["kind"] == kind && object["metadata"]["name"].as_str().is_some_and(|found| found.ends_with(name))
    };
    objects.as_array().context("objects")?.iter().find(is_it).with_context(|| format!("{kind} {name}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_object_is_valid_and_its_processes_run() -> anyhow::Result<()> {
    let cases = rendered()?;
    let _alone = alone().await;
    engine_alone(&cases["default"]).await.context("default")?;
    gateways::in_front_of_an_engine(&cases["gateways"]).await.context("gateways")?;
    gateways::in_front_of_nodes(&cases["gateways-nodes"]).await.context("gateways and nodes")?;
    engine_alone(&cases["stages"]).await.context("stages")?;
    engine_on_nodes(&cases["nodes-tls"]).await.context("nodes")
}

async fn engine_alone(objects: &Value) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let mut engine = Pod::start(find(objects, "Deployment", "-engine")?, folder.path(), &[]).await?;
    engine.passes_its_probes().await?;
    answers(&engine, objects, None).await?;
    ready_in_metrics(&engine).await?;
    engine.end()
}

/// The pods of a LeaderWorkerSet, on the network of this machine, linked with a token and TLS.
async fn engine_on_nodes(objects: &Value) -> anyhow::Result<()> {
    let set = &find(objects, "LeaderWorkerSet", "-engine")?["spec"]["leaderWorkerTemplate"];
    let folders = [tempfile::tempdir()?, tempfile::tempdir()?];
    let mut head = Pod::of(&set["leaderTemplate"]["spec"], folders[0].path(), &[], 0).await?;
    let node = Pod::of(&set["workerTemplate"]["spec"], folders[1].path(), &head.ports, 1).await?;
    head.passes_its_probes().await.with_context(|| node.log())?;
    answers(&head, objects, None).await?;
    head.end()?;
    node.end()
}

/// It answers, to those with the key, and `helm test` passes.
pub(super) async fn answers(pod: &Pod, objects: &Value, key: Option<&str>) -> anyhow::Result<()> {
    let port = pod.port(8000)?;
    let client = Client::new(format!("http://127.0.0.1:{port}"));
    if key.is_some() {
        let (status, _) = client.post("/v1/completions", &json!({"prompt": "Hello", "max_tokens": 1})).await?;
        ensure!(status == 401, "{status} without a key");
    }
    let test = find(objects, "Pod", "-test")?;
    let args = test["spec"]["containers"][0]["args"].as_array().context("args")?;
    let args = args.iter().filter_map(Value::as_str);
    let args = args.map(|arg| arg.replace("http://chat-quire:80", &format!("http://127.0.0.1:{port}")));
    let mut complete = Command::new(quire_binary());
    complete.args(args).envs(key.map(|key| ("OPENAI_API_KEY", key)));
    let text = tokio::task::spawn_blocking(move || tools::run(&mut complete)).await??;
    ensure!(!text.trim().is_empty(), "`helm test` got no text");
    Ok(())
}

/// Every process of the pipeline shows in the metrics as ready.
pub(super) async fn ready_in_metrics(engine: &Pod) -> anyhow::Result<()> {
    let client = Client::new(format!("http://127.0.0.1:{}", engine.port(8000)?));
    for process in ["tokenizer", "scheduler", "worker 0", "detokenizer"] {
        let ready = client.metric("quire:process_ready", &format!("process=\"{process}\"")).await?;
        ensure!(ready == 1.0, "{process}: {ready}");
    }
    Ok(())
}
