//! Which steps suit a GPU: multiples of rows from its multiprocessors and the model's heads, times from measurement.

use kernels::ops::StepPreference;

/// Rows of a tile of attention over a prompt; each head has tiles of its own.
const ATTENTION_ROWS: f64 = 128.0;
/// Rows that GEMMs compute best in multiples of.
const GEMM_ROWS: f64 = 256.0;
/// Rows that are about as many as make the last wave of attention worth filling.
const MANY_ROWS: f64 = 1024.0;

/// For a model whose attention has this many query heads on this rank, if it has attention. The times were found with
/// sched-core's `load` example and the step times of an H200 (docs/kernel-benchmarks.md).
pub(crate) fn of(multiprocessors: usize, query_heads: Option<usize>) -> StepPreference {
    StepPreference {
        row_multiple: GEMM_ROWS as u32,
        large_row_multiple: query_heads.map_or(MANY_ROWS as u32, |heads| whole_waves(multiprocessors, heads)),
        min_prefill_tokens: 512,
        target_us: 100_000,
        target_prefill_tokens: 6144,
        few_decodes: 12,
        few_decodes_target_us: 125_000,
        prefill_tokens_per_decode: 48,
        max_us: 150_000,
        slow_max_us: 300_000,
    }
}

/// Attention of a chunk is cut into tiles that run in waves, one tile a multiprocessor; the last wave takes as long as
/// the others, however few tiles are left for it. Rows of about [`MANY_ROWS`] that are whole waves, as nearly as GEMMs
/// allow.
fn whole_waves(multiprocessors: usize, heads: usize) -> u32 {
    let wave = multiprocessors as f64 * ATTENTION_ROWS / heads.max(1) as f64;
    let rows = (MANY_ROWS / wave).round().max(1.0) * wave;
    ((rows / GEMM_ROWS).round().max(1.0) * GEMM_ROWS) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_steps_are_whole_waves_of_attention() {
        let check = |multiprocessors, heads, rows| {
            assert_eq!(of(multiprocessors, heads).large_row_multiple, rows, "{multiprocessors}, {heads:?}");
        };
        // H100 and H200: Llama-8B, Qwen3-0.6B, and larger ones.
        check(132, Some(32), 1024);
        check(132, Some(16), 1024);
        check(132, Some(64), 1024);
        check(132, Some(40), 768);
        check(132, Some(8), 2048);
        // A100.
        check(108, Some(32), 768);
        // No attention at all, and sizes that no model has.
        check(132, None, 1024);
        check(1, Some(1), 1024);
        check(132, Some(100_000), 1024);
        assert_eq!(of(132, Some(32)).row_multiple, 256);
    }
}
