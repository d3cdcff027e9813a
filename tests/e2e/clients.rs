//! The official OpenAI and Anthropic clients, unmodified. They are installed under `target/clients` by the tests
//! themselves.

use std::{path::PathBuf, process::Command};

use anyhow::{Context, ensure};
use e2e_tests::{Server, root};

const KEY: &str = "token-abc123";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openai_for_python() -> anyhow::Result<()> {
    python("openai", "openai_python.py").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anthropic_for_python() -> anyhow::Result<()> {
    python("anthropic", "anthropic_python.py").await
}

/// Runs a script with a package of its own against a server.
async fn python(package: &str, script: &str) -> anyhow::Result<()> {
    let venv = root().join("target/clients").join(package);
    let python = venv.join("bin/python");
    if !venv.join("installed").is_file() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet", package]))?;
        std::fs::write(venv.join("installed"), "")?;
    }
    let server = Server::start(&["--api-key", KEY]).await?;
    let script = root().join("tests/clients").join(script);
    run(Command::new(&python).arg(script).arg(base(&server)).arg(KEY))?;
    no_block_is_lost(&server).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openai_for_node() -> anyhow::Result<()> {
    let folder = root().join("target/clients/node");
    if !folder.join("node_modules/zod").is_dir() {
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("package.json"), r#"{"private": true, "type": "module"}"#)?;
        run(Command::new("npm")
            .args(["install", "--no-audit", "--no-fund", "--silent", "openai", "zod"])
            .current_dir(&folder))?;
    }
    // Node looks for packages beside the script.
    let script: PathBuf = folder.join("openai_node.mjs");
    std::fs::copy(root().join("tests/clients/openai_node.mjs"), &script)?;
    let server = Server::start(&["--api-key", KEY]).await?;
    run(Command::new("node").arg(script).arg(base(&server)).arg(KEY))?;
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
