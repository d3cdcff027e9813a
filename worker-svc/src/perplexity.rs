//! The perplexity of a text: a worker alone, without a scheduler.
//!
//! The text's tokens are cut into windows, each `stride` after the one before, and every token counts once: in the
//! first window that has it, so with at least `window - stride` tokens before it (but for the first window's).

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use collectives::Solo;
use kernels::ops::{Batch, Sequence};
use models::Model;
use tokenizer::Tokenizer;
use tokio::sync::mpsc;

use crate::{
    compute::{load, watchdog::Activity},
    config::Args,
};

/// How a text is cut.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    /// Tokens of a window.
    pub window: usize,
    /// Tokens from one to the next.
    pub stride: usize,
}

/// What came out.
#[derive(Clone, Debug)]
pub struct Perplexity {
    /// The device's name, for display.
    pub device: String,
    /// Bytes of the weights, on the device.
    pub weight_bytes: u64,
    /// Tokens that were predicted.
    pub tokens: usize,
    /// The sum of their negative log-probabilities, in nats.
    pub nats: f64,
    /// Time of the forward passes.
    pub took: Duration,
}

impl Perplexity {
    /// Of a token, on average.
    pub fn value(&self) -> f64 {
        (self.nats / self.tokens.max(1) as f64).exp()
    }
}

/// Measures a text.
pub fn perplexity(args: &Args, text: &str, windows: Windows) -> anyhow::Result<Perplexity> {
    let Windows { window, stride } = windows;
    if window < 2 || stride == 0 || stride >= window {
        bail!("--window {window} --stride {stride}: a stride is less than a window, and both above 0");
    }
    let tokenizer = Tokenizer::load(args.tokenizer.as_ref().unwrap_or(&args.model))?;
    let tokens = tokenizer.encode(text, true)?;
    let (replies, _receiver) = mpsc::channel(1);
    let mut args = args.clone();
    let (mut model, ready) = load(&mut args, None, &replies, &Activity::default())?;
    if window > ready.max_model_len as usize {
        bail!("--window {window}: the model can do {} tokens; pass at most that", ready.max_model_len);
    }
    if tokens.len() < 2 {
        bail!("the text is {} tokens long; two are the least", tokens.len());
    }
    let blocks = window.div_ceil(args.block_size as usize);
    if blocks * ready.cache_groups.len() > ready.num_blocks as usize {
        bail!("--window {window}: the KV cache holds {} blocks; give it more memory", ready.num_blocks);
    }
    let tables: Vec<Vec<u32>> = (0..ready.cache_groups.len())
        .map(|group| (group * blocks..(group + 1) * blocks).map(|block| block as u32).collect())
        .collect();
    // Logits of all rows are wanted, of which a step has a bound of its own.
    let options = args.load_options();
    let rows = options.max_rows.min(options.max_logit_rows);
    let mut pass = Pass { model: &mut model, tables: &tables, rows };
    let (start, mut nats, mut counted) = (Instant::now(), 0.0, 0);
    for first in (0..tokens.len()).step_by(stride) {
        let end = tokens.len().min(first + window);
        let seen = if first == 0 { 1 } else { (first + window - stride).min(end) };
        nats += pass.nats(&tokens[first..end], seen - first)?;
        counted += end - seen;
        if end == tokens.len() {
            break;
        }
    }
    Ok(Perplexity {
        device: ready.device,
        weight_bytes: ready.weight_bytes,
        tokens: counted,
        nats,
        took: start.elapsed(),
    })
}

/// Runs windows.
struct Pass<'a> {
    model: &'a mut Model,
    /// Of the one sequence, for each group of layers.
    tables: &'a [Vec<u32>],
    /// Rows of a step, at most.
    rows: usize,
}

impl Pass<'_> {
    /// The sum of the negative log-probabilities of a window's tokens from `first` on.
    fn nats(&mut self, window: &[u32], first: usize) -> anyhow::Result<f64> {
        let mut nats = 0.0;
        for start in (0..window.len()).step_by(self.rows) {
            let tokens = &window[start..window.len().min(start + self.rows)];
            let positions: Vec<u32> = (start as u32..).take(tokens.len()).collect();
            let sequence = Sequence { first_row: 0, num_rows: tokens.len(), start, tables: self.tables, slot: 0 };
            let wanted: Vec<u32> = (0..tokens.len() as u32)
                .filter(|row| (first..window.len()).contains(&(start + *row as usize + 1)))
                .collect();
            let batch = Batch { tokens, positions: &positions, sequences: &[sequence] };
            let logits = self.model.runner.forward(batch, &wanted, &mut Solo).context("a step failed")?;
            for (index, row) in wanted.iter().enumerate() {
                nats += negative_log_probability(logits.row(index), window[start + *row as usize + 1]);
            }
        }
        Ok(nats)
    }
}

fn negative_log_probability(logits: &[f32], token: u32) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - largest).exp()).sum();
    largest + sum.ln() - f64::from(logits[token as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_add_up_to_one() {
        let logits = [1.0, -2.0, 0.5, 7.0];
        let sum: f64 = (0..4).map(|token| (-negative_log_probability(&logits, token)).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-12);
        assert!(negative_log_probability(&logits, 3) < negative_log_probability(&logits, 0));
    }
}
