//! Every causal language model of the zoo, served as its users would.
//!
//! Three servers a folder, each with a test of its own. The first computes in float32, cuts prompts in chunks and keeps
//! prefixes: prompts go to it one by one, cold and warm, and all at once, cold and warm. The second splits the model
//! over two workers, or says why it cannot. The third computes in bfloat16. What comes back is compared with what was
//! recorded, not with what another of them said.
//!
//! Every folder is tried, whatever came of those before it. `QUIRE_TEST_PART=2/8` takes the second of eight parts of
//! the folders, so that a machine of many cores or GPUs may run eight tests at a time.

use std::ops::Range;

use anyhow::{Context, bail, ensure};
use e2e_tests::{Ask, Client, Said, Server, max_workers, zoo};
use futures::future::try_join_all;

/// Prompt tokens in a step of the first server: two of the four prompts of a folder are longer.
const CHUNK: &str = "32";
/// Tokens of a KV block, and so of what the prefix cache finds again.
const BLOCK: usize = 16;
/// Which of how many parts of the folders to check.
const PART: &str = "QUIRE_TEST_PART";
/// Folders whose models have a recurrent state, which a prefix's blocks do not hold.
const RECURRENT: &[&str] = &["mamba", "mamba2", "qwen3-next"];

/// Folders that are served in another way than by default: flags, and the prompts that they are right for. Long RoPE
/// chooses its factors by the served length; the reference chooses them by each sequence's.
const SERVED: &[(&str, &[&str], Range<usize>)] =
    &[("phi3-longrope", &["--max-model-len", "64"], 0..3), ("phi3-longrope", &[], 3..4)];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_chunks_with_a_cache() -> anyhow::Result<()> {
    every_folder(Folder::in_chunks_with_a_cache).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_two_workers() -> anyhow::Result<()> {
    if max_workers() < 2 {
        println!("not checked: there is one GPU");
        return Ok(());
    }
    every_folder(Folder::over_two_workers).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_bfloat16() -> anyhow::Result<()> {
    every_folder(Folder::in_bfloat16).await
}

/// Checks all folders of this part, and says of each what came of it.
async fn every_folder(check: impl AsyncFn(&Folder) -> anyhow::Result<&'static str>) -> anyhow::Result<()> {
    println!("reference models: {}", zoo::folder().display());
    let (part, parts) = part()?;
    let mut failed = Vec::new();
    for model in zoo::causal_models()?.into_iter().skip(part - 1).step_by(parts) {
        for (flags, prompts) in ways(&model) {
            let folder = Folder::read(&model, flags, prompts)?;
            match check(&folder).await {
                Ok(said) => println!("{model} {flags:?}: {said}"),
                Err(error) => {
                    println!("{model} {flags:?}: FAILED: {error:#}");
                    failed.push(model.clone());
                }
            }
        }
    }
    ensure!(failed.is_empty(), "failed: {failed:?}");
    Ok(())
}

/// Which part of the folders, counted from one, and of how many.
fn part() -> anyhow::Result<(usize, usize)> {
    let Ok(text) = std::env::var(PART) else { return Ok((1, 1)) };
    let numbers = text.split_once('/').and_then(|(part, parts)| Some((part.parse().ok()?, parts.parse().ok()?)));
    let (part, parts) = numbers.with_context(|| format!("{PART}={text}, which is not like 2/8"))?;
    ensure!(1 <= part && part <= parts, "{PART}={text}: there is no such part");
    Ok((part, parts))
}

/// Flags of the servers of a model, and the prompts for each.
fn ways(model: &str) -> Vec<(&'static [&'static str], Range<usize>)> {
    let special: Vec<_> = SERVED.iter().filter(|(name, ..)| *name == model).collect();
    match special.as_slice() {
        [] => vec![(&[], 0..usize::MAX)],
        ways => ways.iter().map(|(_, flags, prompts)| (*flags, prompts.clone())).collect(),
    }
}

/// A reference model, and how it is served.
struct Folder {
    name: String,
    flags: &'static [&'static str],
    reference: zoo::Reference,
}

impl Folder {
    fn read(name: &str, flags: &'static [&'static str], prompts: Range<usize>) -> anyhow::Result<Self> {
        let mut reference = zoo::reference(name).context("a reference")?;
        let mut number = 0..;
        reference.cases.retain(|_| number.next().is_some_and(|number| prompts.contains(&number)));
        Ok(Self { name: name.to_owned(), flags, reference })
    }

    async fn start(&self, flags: &[&str]) -> anyhow::Result<Server> {
        let path = zoo::path(&self.name).display().to_string();
        Server::start(&[&[path.as_str(), "--served-model-name", "m"], self.flags, flags].concat()).await
    }

    async fn in_chunks_with_a_cache(&self) -> anyhow::Result<&'static str> {
        let flags = ["--max-num-batched-tokens", CHUNK, "--max-num-seqs", CHUNK, "--enable-prompt-tokens-details"];
        let server = self.start(&[&["--dtype", "float32"][..], &flags].concat()).await?;
        let client = server.client();
        self.check_cache_is_as_said(&client).await?;
        for temperature in [Temperature::Cold, Temperature::Warm] {
            for case in &self.reference.cases {
                self.say(&client, case, None, temperature).await.with_context(|| format!("alone, {temperature:?}"))?;
            }
        }
        for temperature in [Temperature::Cold, Temperature::Warm] {
            let all = self.reference.cases.iter().map(|case| self.say(&client, case, Some("together"), temperature));
            try_join_all(all).await.with_context(|| format!("together, {temperature:?}"))?;
        }
        Ok("as recorded")
    }

    /// The server tells whether it keeps prefixes, and why it does not.
    async fn check_cache_is_as_said(&self, client: &Client) -> anyhow::Result<()> {
        let on = client.metric("vllm:cache_config_info", "enable_prefix_caching=\"True\"").await? > 0.0;
        let says_why = client.metric("vllm:cache_config_info", "recurrent state").await? > 0.0;
        ensure!(on != self.is_recurrent() && says_why == self.is_recurrent(), "prefix cache: {on}, reason: {says_why}");
        Ok(())
    }

    fn is_recurrent(&self) -> bool {
        RECURRENT.contains(&self.name.as_str())
    }

    async fn over_two_workers(&self) -> anyhow::Result<&'static str> {
        let server = match self.start(&["--dtype", "float32", "--tensor-parallel-size", "2"]).await {
            Ok(server) => server,
            Err(error) => return refused_rightly(&format!("{error:#}")).map(|()| "rightly refused"),
        };
        let client = server.client();
        try_join_all(self.reference.cases.iter().map(|case| self.say(&client, case, None, Temperature::Cold))).await?;
        Ok("as recorded")
    }

    /// Generates, and compares tokens and log-probabilities. A prompt's log-probabilities need all of it computed, so
    /// only cold ones are asked for them.
    async fn say(
        &self,
        client: &Client,
        case: &zoo::Case,
        salt: Option<&str>,
        temperature: Temperature,
    ) -> anyhow::Result<()> {
        let ask = Ask {
            prompt: &case.prompt,
            max_tokens: case.greedy.len(),
            cache_salt: salt,
            logprobs: true,
            prompt_logprobs: temperature == Temperature::Cold,
        };
        let said = client.complete("m", ask).await?;
        self.compare(case, &said, temperature).with_context(|| format!("prompt of {}", case.prompt.len()))?;
        if temperature == Temperature::Warm {
            let kept = if self.is_recurrent() { 0 } else { (case.prompt.len() - 1) / BLOCK * BLOCK };
            ensure!(said.cached == Some(kept as u64), "{:?} tokens from the cache, not {kept}", said.cached);
        }
        Ok(())
    }

    fn compare(&self, case: &zoo::Case, said: &Said, temperature: Temperature) -> anyhow::Result<()> {
        ensure!(said.tokens == case.greedy, "{:?}, not {:?}", said.tokens, case.greedy);
        let of_prompt: Vec<f64> = said.prompt_logprobs.iter().map(|(logprob, _)| *logprob).collect();
        let prompt: &[f64] = if temperature == Temperature::Warm { &[] } else { &case.prompt_logprobs };
        for (what, found, recorded) in
            [("answer", &said.logprobs[..], &case.greedy_logprobs[..]), ("prompt", &of_prompt, prompt)]
        {
            let largest = differences(found, recorded)?.last().copied().unwrap_or(0.0);
            ensure!(largest <= self.reference.float32, "log-probabilities of the {what} differ by {largest}");
        }
        Ok(())
    }

    /// Along the recorded tokens. Whole steps, which the others have only over two workers.
    async fn in_bfloat16(&self) -> anyhow::Result<&'static str> {
        let server = self.start(&["--dtype", "bfloat16"]).await?;
        let client = server.client();
        let (mut all_found, mut all_recorded) = (Vec::new(), Vec::new());
        for case in &self.reference.cases {
            let prompt = [&case.prompt[..], &case.greedy].concat();
            let ask = Ask { prompt: &prompt, max_tokens: 1, prompt_logprobs: true, ..Ask::default() };
            let scored = client.complete("m", ask).await?.prompt_logprobs;
            ensure!(scored.len() == prompt.len() - 1, "{} log-probabilities for {}", scored.len(), prompt.len());
            for ((_, rank), margin) in scored[case.prompt.len() - 1..].iter().zip(&case.greedy_margins) {
                let clear = *margin > 2.0 * self.reference.bfloat16_p90;
                ensure!(*rank == 1 || !clear, "prompt of {}: a token with margin {margin}", case.prompt.len());
            }
            all_found.extend(scored.iter().map(|(logprob, _)| *logprob));
            all_recorded.extend(case.prompt_logprobs.iter().chain(&case.greedy_logprobs));
        }
        let differences = differences(&all_found, &all_recorded)?;
        let quantile = |q: f64| differences[(q * (differences.len() - 1) as f64).round() as usize];
        let (median, p90) = (quantile(0.5), quantile(0.9));
        let allowed = (self.reference.bfloat16_median, self.reference.bfloat16_p90);
        ensure!(median < allowed.0 && p90 < allowed.1, "differs by {median}, {p90}; allowed {allowed:?}");
        Ok("within its bounds")
    }
}

/// Whether a prompt came before.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Temperature {
    Cold,
    Warm,
}

/// Sorted.
fn differences(found: &[f64], recorded: &[f64]) -> anyhow::Result<Vec<f64>> {
    ensure!(found.len() == recorded.len(), "{} numbers, not {}", found.len(), recorded.len());
    let mut differences: Vec<f64> = found.iter().zip(recorded).map(|(a, b)| (a - b).abs()).collect();
    differences.sort_by(f64::total_cmp);
    Ok(differences)
}

/// Two workers may be refused where the message names a size that two does not divide.
fn refused_rightly(error: &str) -> anyhow::Result<()> {
    let Some((before, _)) = error.split_once(" cannot be split over tensor-parallel size 2") else { bail!("{error}") };
    let words: Vec<&str> = before.split_whitespace().collect();
    let [.., name, "=", size] = words[..] else { bail!("{error}") };
    let size: usize = size.parse().with_context(|| error.to_owned())?;
    ensure!(name.contains('_') && !size.is_multiple_of(2), "{error}");
    Ok(())
}
