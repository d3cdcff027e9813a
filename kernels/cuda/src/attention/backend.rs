//! Which attention kernels serve a layer: those that are best for it, or those that were asked for.

use crate::attention::attention_decode;
use crate::attention::attention_prefill::{self, HopperTile};
use crate::attention::layer::{AttentionTypes, HeadDims};
use crate::jit::specialization::{HOPPER, LOWEST};
use crate::latent::attention_latent;
use crate::options::AttentionBackend;
use crate::runtime::arch::Arch;
use crate::runtime::context::Context;
use kernels::ops::{AttentionKernels, ExpectedAttention};

/// What of a device decides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionDevice {
    pub(crate) arch: Arch,
    /// Bytes of shared memory that a block may ask for.
    pub(crate) shared_of_block: usize,
}

impl From<&Context> for AttentionDevice {
    fn from(context: &Context) -> Self {
        Self { arch: context.arch, shared_of_block: context.shared_of_block }
    }
}

/// The kernels of a layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Selected {
    /// Of sequences with several rows in a step.
    pub(crate) prefill: AttentionBackend,
    /// Of sequences with one row.
    pub(crate) decode: AttentionBackend,
}

impl From<Selected> for AttentionKernels {
    fn from(selected: Selected) -> Self {
        Self { prefill: selected.prefill.name(), decode: selected.decode.name() }
    }
}

/// The kernels for such layers.
///
/// # Errors
/// Those that were asked for are not for them; says why, and which are.
pub(crate) fn select(
    asked: AttentionBackend,
    device: AttentionDevice,
    expected: ExpectedAttention,
) -> Result<Selected, String> {
    if expected.shared {
        return select_latent(asked, device, expected);
    }
    let (mma, hopper) = (without_mma(device, expected), without_hopper(device, expected));
    let prefill = best_of(asked, mma, hopper)?;
    let decode = if prefill == AttentionBackend::Plain { prefill } else { AttentionBackend::Mma };
    Ok(Selected { prefill, decode })
}

/// The kernels for layers whose values are a part of keys: one for prompts and single rows, or the plain one.
fn select_latent(
    asked: AttentionBackend,
    device: AttentionDevice,
    expected: ExpectedAttention,
) -> Result<Selected, String> {
    let (mma, hopper) =
        (attention_latent::refusal(device, expected), attention_latent::hopper_refusal(device, expected.block_size));
    let selected = best_of(asked, mma, hopper)?;
    Ok(Selected { prefill: selected, decode: selected })
}

/// What was asked for, or the best, given why those on tensor cores do not serve, and why that for Hopper does not
/// where the others do.
fn best_of(asked: AttentionBackend, mma: Option<String>, hopper: Option<String>) -> Result<AttentionBackend, String> {
    let best = match (&mma, &hopper) {
        (Some(_), _) => AttentionBackend::Plain,
        (None, Some(_)) => AttentionBackend::Mma,
        (None, None) => AttentionBackend::Hopper,
    };
    let refusal = match asked {
        AttentionBackend::Auto | AttentionBackend::Plain => None,
        AttentionBackend::Mma => mma,
        AttentionBackend::Hopper => mma.or(hopper),
    };
    if let Some(reason) = refusal {
        return Err(format!("the {} kernels {reason}; auto selects {} here", asked.name(), best.name()));
    }
    Ok(if asked == AttentionBackend::Auto { best } else { asked })
}

/// Why the kernels on tensor cores do not serve such layers, if they do not.
fn without_mma(device: AttentionDevice, expected: ExpectedAttention) -> Option<String> {
    let ExpectedAttention { heads, compute, cache, block_size, .. } = expected;
    let (types, dims) = (AttentionTypes { rows: compute, cache }, HeadDims { dim: heads.dim, v_dim: heads.v_dim });
    if device.arch < LOWEST {
        return Some(format!("need a GPU of compute capability {} or higher", LOWEST.capability()));
    }
    if !types.are_short() {
        return Some("compute in 16 bits, over a cache of the same type or of fp8".to_owned());
    }
    if !super::are_fast(types, dims) {
        let HeadDims { dim, v_dim } = dims;
        return Some(format!("take heads of multiples of 16 up to 256, not of {dim} and {v_dim}"));
    }
    if !block_size.is_multiple_of(16) {
        return Some(format!("take KV blocks of multiples of 16 tokens (--block-size), not of {block_size}"));
    }
    let needed = attention_prefill::shared(dims).max(attention_decode::most_shared(types.cache, dims, heads));
    let has = device.shared_of_block;
    (needed > has)
        .then(|| format!("need {needed} bytes of shared memory for heads of {}, and there are {has}", dims.dim))
}

/// Why the kernel for Hopper does not serve such layers, if it does not, where the others do.
fn without_hopper(device: AttentionDevice, expected: ExpectedAttention) -> Option<String> {
    let ExpectedAttention { heads, cache, block_size, scores, .. } = expected;
    if device.arch != HOPPER {
        return Some("need a GPU of the Hopper architecture".to_owned());
    }
    if scores.relative {
        return Some("have no relative bias".to_owned());
    }
    let dims = HeadDims { dim: heads.dim, v_dim: heads.v_dim };
    let tiles = attention_prefill::hopper_tiles(dims, cache);
    let Some(tile) = tiles.last() else {
        let taken = attention_prefill::hopper_heads(cache).iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        return Some(format!("take heads of {taken} over this cache, not of {} and {}", heads.dim, heads.v_dim));
    };
    let (keys, takes_blocks) = (tile.keys(), HopperTile::of(dims, cache, block_size).is_some());
    (!takes_blocks).then(|| format!("take KV blocks that divide {keys} tokens (--block-size), not of {block_size}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::ops::{DType, Heads, KvDType, ScoreMods};

    const H100: AttentionDevice = AttentionDevice { arch: HOPPER, shared_of_block: 227 << 10 };
    const RELATIVE: ScoreMods = ScoreMods { soft_cap: false, alibi: false, relative: true };

    fn llama() -> ExpectedAttention {
        ExpectedAttention {
            heads: Heads { q: 32, kv: 8, dim: 128, v_dim: 128 },
            hidden: 4096,
            compute: DType::Bf16,
            cache: KvDType::Float(DType::Bf16),
            block_size: 16,
            shared: false,
            scores: ScoreMods::default(),
        }
    }

    fn deepseek() -> ExpectedAttention {
        let heads = Heads { q: 16, kv: 1, dim: 576, v_dim: 512 };
        ExpectedAttention { heads, hidden: 2048, shared: true, ..llama() }
    }

    fn names(selected: Selected) -> [&'static str; 2] {
        let kernels = AttentionKernels::from(selected);
        [kernels.prefill, kernels.decode]
    }

    #[test]
    fn auto_takes_the_best_that_fits() {
        let auto = |device, expected| names(select(AttentionBackend::Auto, device, expected).unwrap());
        let wide = |dim| ExpectedAttention { heads: Heads { dim, v_dim: dim, ..llama().heads }, ..llama() };
        let a100 = AttentionDevice { arch: Arch::new(8, 0), shared_of_block: 163 << 10 };
        let l40s = AttentionDevice { arch: Arch::new(8, 9), shared_of_block: 99 << 10 };
        let t4 = AttentionDevice { arch: Arch::new(7, 5), shared_of_block: 64 << 10 };
        let f32 = ExpectedAttention { compute: DType::F32, cache: KvDType::Float(DType::F32), ..llama() };
        for (device, expected, wanted) in [
            (H100, llama(), ["hopper", "mma"]),
            (H100, ExpectedAttention { cache: KvDType::E4m3, ..llama() }, ["hopper", "mma"]),
            (
                H100,
                ExpectedAttention { scores: ScoreMods { soft_cap: true, alibi: true, relative: false }, ..llama() },
                ["hopper", "mma"],
            ),
            (H100, ExpectedAttention { scores: RELATIVE, ..llama() }, ["mma", "mma"]),
            (H100, ExpectedAttention { block_size: 256, ..llama() }, ["mma", "mma"]),
            (H100, wide(96), ["hopper", "mma"]),
            (H100, wide(256), ["hopper", "mma"]),
            (H100, ExpectedAttention { block_size: 128, ..wide(256) }, ["mma", "mma"]),
            (H100, ExpectedAttention { cache: KvDType::E4m3, ..wide(96) }, ["hopper", "mma"]),
            (H100, ExpectedAttention { cache: KvDType::E4m3, ..wide(256) }, ["hopper", "mma"]),
            (H100, wide(160), ["hopper", "mma"]),
            (H100, ExpectedAttention { block_size: 32, ..wide(160) }, ["hopper", "mma"]),
            (H100, ExpectedAttention { block_size: 64, ..wide(160) }, ["mma", "mma"]),
            (H100, ExpectedAttention { cache: KvDType::E4m3, ..wide(160) }, ["mma", "mma"]),
            (H100, wide(192), ["hopper", "mma"]),
            (H100, wide(144), ["mma", "mma"]),
            (H100, wide(72), ["plain", "plain"]),
            (H100, ExpectedAttention { shared: true, ..llama() }, ["plain", "plain"]),
            (H100, deepseek(), ["hopper", "hopper"]),
            (H100, ExpectedAttention { block_size: 48, ..deepseek() }, ["hopper", "hopper"]),
            (H100, ExpectedAttention { block_size: 4, ..deepseek() }, ["mma", "mma"]),
            (H100, ExpectedAttention { cache: KvDType::E4m3, ..deepseek() }, ["plain", "plain"]),
            (H100, ExpectedAttention { scores: RELATIVE, ..deepseek() }, ["plain", "plain"]),
            (a100, deepseek(), ["mma", "mma"]),
            (l40s, deepseek(), ["mma", "mma"]),
            (t4, deepseek(), ["plain", "plain"]),
            (H100, ExpectedAttention { block_size: 8, ..llama() }, ["plain", "plain"]),
            (H100, f32, ["plain", "plain"]),
            (a100, llama(), ["mma", "mma"]),
            (t4, wide(256), ["plain", "plain"]),
        ] {
            assert_eq!(auto(device, expected), wanted, "{device:?} {expected:?}");
        }
    }

    #[test]
    fn what_was_asked_for_serves_or_is_refused() {
        let asked = |backend, expected| select(backend, H100, expected).map(names);
        assert_eq!(asked(AttentionBackend::Mma, llama()), Ok(["mma", "mma"]));
        assert_eq!(asked(AttentionBackend::Plain, llama()), Ok(["plain", "plain"]));
        assert_eq!(asked(AttentionBackend::Hopper, llama()), Ok(["hopper", "mma"]));
        let biased = ExpectedAttention { scores: RELATIVE, ..llama() };
        let error = asked(AttentionBackend::Hopper, biased).unwrap_err();
        assert!(error.contains("relative bias") && error.contains("auto selects mma"), "{error}");
        assert_eq!(asked(AttentionBackend::Hopper, deepseek()), Ok(["hopper", "hopper"]));
        assert_eq!(asked(AttentionBackend::Mma, deepseek()), Ok(["mma", "mma"]));
        let narrow = ExpectedAttention { cache: KvDType::E4m3, ..deepseek() };
        let error = asked(AttentionBackend::Hopper, narrow).unwrap_err();
        assert!(error.contains("16 bits") && error.contains("auto selects plain"), "{error}");
        let f32 = ExpectedAttention { compute: DType::F32, cache: KvDType::Float(DType::F32), ..llama() };
        let error = asked(AttentionBackend::Mma, f32).unwrap_err();
        assert!(error.contains("16 bits") && error.contains("auto selects plain"), "{error}");
    }
}
