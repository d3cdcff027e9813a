//! Tokens a second when many prompts are there at once.

use serde_json::json;

use super::{RequestLengths, Stage, flags::ThroughputArgs, prompts, sampling, save};
use crate::serve::offline::Offline;

pub(super) async fn run(args: &ThroughputArgs, stage: Stage<'_>) -> anyhow::Result<()> {
    let shutdown = &stage.process.shutdown;
    let Some(mut engine) = Offline::start(stage.settings, stage.environment, shutdown).await? else { return Ok(()) };
    let sampling = sampling(args.temperature);
    let lengths = RequestLengths { input: args.input_len, output: args.output_len };
    let warm_up = prompts(args.num_warmups, lengths, engine.vocab_size, 1);
    let requests = prompts(args.num_prompts, lengths, engine.vocab_size, 0);
    let generating = async {
        engine.generate(&warm_up, &sampling).await?;
        engine.generate(&requests, &sampling).await
    };
    let Some(generated) = shutdown.run_until_cancelled(generating).await else { return engine.end().await };
    let generated = generated?;
    let elapsed = generated.iter().map(|one| one.last).max().unwrap_or_default().as_secs_f64();
    let input: usize = requests.iter().map(|request| request.prompt.len()).sum();
    let output: usize = generated.iter().map(|one| one.tokens).sum();
    let per_second = |count: usize| if elapsed > 0.0 { count as f64 / elapsed } else { 0.0 };
    println!(
        "Throughput: {:.2} requests/s, {:.2} total tokens/s, {:.2} output tokens/s",
        per_second(requests.len()),
        per_second(input + output),
        per_second(output)
    );
    println!("Total num prompt tokens:  {input}");
    println!("Total num output tokens:  {output}");
    let report = json!({
        "elapsed_time": elapsed,
        "num_requests": requests.len(),
        "total_num_tokens": input + output,
        "requests_per_second": per_second(requests.len()),
        "tokens_per_second": per_second(input + output),
        "output_tokens_per_second": per_second(output),
    });
    save(args.output_json.as_deref(), &report)?;
    engine.end().await
}
