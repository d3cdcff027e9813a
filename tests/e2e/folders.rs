//! Every causal language model of the zoo, served as its users would: float32 greedy tokens equal to the reference's.

use anyhow::{Context, ensure};
use e2e_tests::{Server, zoo};

/// Settings that a folder needs. Long RoPE chooses its factors by the served length; the reference chooses them by each sequence's.
const FLAGS: &[(&str, &[&str])] = &[("phi3-longrope", &["--max-model-len", "64"])];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_model_says_what_its_reference_says() -> anyhow::Result<()> {
    for model in zoo::causal_models()? {
        serve(&model).await.with_context(|| model.clone())?;
    }
    Ok(())
}

async fn serve(model: &str) -> anyhow::Result<()> {
    let folder = zoo::folder().join(model).display().to_string();
    let flags = FLAGS.iter().find(|(name, _)| *name == model).map_or(&[][..], |(_, flags)| flags);
    let mut args = vec![folder.as_str(), "--dtype", "float32", "--served-model-name", "m"];
    args.extend(flags);
    let server = Server::start(&args).await?;
    let served: usize = flags.last().map_or(Ok(usize::MAX), |length| length.parse())?;
    for case in zoo::cases(model).context("a reference")? {
        if case.prompt.len() + case.greedy.len() <= served {
            let said = server.client().greedy("m", &case.prompt, case.greedy.len()).await?;
            ensure!(said == case.greedy, "prompt of {}: {said:?}, not {:?}", case.prompt.len(), case.greedy);
        }
    }
    Ok(())
}
