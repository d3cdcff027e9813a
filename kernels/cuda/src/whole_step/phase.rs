//! A step's phases and matrices as the kernel reads them: twins of `struct Phase`
//! (kernels/cuda/csrc/whole_step/step.cuh) and `struct Weights` (kernels/cuda/csrc/whole_step/stream.cuh).

use cudarc::driver::sys::CUdeviceptr;

use crate::layers::elementwise::Function;
use crate::layers::norm;

/// What all blocks do between two barriers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Embed,
    Product,
    Attention,
}

/// What a product multiplies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Input {
    /// A row of f32, after a norm.
    Normed,
    /// A row of the computing type.
    Plain,
    /// What attention left.
    Attended,
}

/// Where a product goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Output {
    Stored,
    /// Stored in f32.
    Wide,
    /// Added to a row of f32.
    Added,
    /// `activation(gate) * up` of rows `[gate | up]` is stored.
    Gated,
}

/// `struct Phase`. A field that a kind has no use for is zero.
#[derive(Clone, Copy, Debug)]
pub(super) struct Phase {
    pub(super) kind: Kind,
    pub(super) input: Input,
    pub(super) output: Output,
    pub(super) matrix: u32,
    pub(super) from: CUdeviceptr,
    pub(super) to: CUdeviceptr,
    pub(super) bias: CUdeviceptr,
    pub(super) norm: norm::Params,
    pub(super) key_norm: norm::Params,
    pub(super) keys: CUdeviceptr,
    pub(super) values: CUdeviceptr,
    pub(super) inv_freq: CUdeviceptr,
    pub(super) first_block: u64,
    pub(super) activation: Function,
    pub(super) scale: f32,
    pub(super) mscale: f32,
    pub(super) rotary_dim: u32,
    pub(super) interleaved: u32,
    pub(super) q_heads: u32,
    pub(super) kv_heads: u32,
    pub(super) block_shift: u32,
    pub(super) window: u32,
    pub(super) first_entry: u32,
    pub(super) entries: u32,
    pub(super) width: u32,
    pub(super) normed: u32,
}

impl Phase {
    /// From one row to another, with nothing said of how.
    pub(super) fn new(kind: Kind, from: CUdeviceptr, width: usize, to: CUdeviceptr) -> Self {
        Self {
            kind,
            input: Input::Plain,
            output: Output::Stored,
            matrix: 0,
            from,
            to,
            bias: 0,
            norm: norm::Params::NONE,
            key_norm: norm::Params::NONE,
            keys: 0,
            values: 0,
            inv_freq: 0,
            first_block: 0,
            activation: Function { number: 0, limit: 0.0 },
            scale: 1.0,
            mscale: 1.0,
            rotary_dim: 0,
            interleaved: 0,
            q_heads: 0,
            kv_heads: 0,
            block_shift: 0,
            window: 0,
            first_entry: 0,
            entries: 0,
            width: width as u32,
            normed: 0,
        }
    }

    /// As it lies in memory.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        words(out, &[self.kind as u32, self.input as u32, self.output as u32, self.matrix]);
        addresses(out, &[self.from, self.to, self.bias]);
        for norm in [self.norm, self.key_norm] {
            addresses(out, &[norm.weight, norm.bias]);
            words(out, &[norm.eps.to_bits(), norm.subtract_mean]);
        }
        addresses(out, &[self.keys, self.values, self.inv_freq, self.first_block]);
        let Function { number, limit } = self.activation;
        words(out, &[number, limit.to_bits(), self.scale.to_bits(), self.mscale.to_bits()]);
        words(out, &[self.rotary_dim, self.interleaved, self.q_heads, self.kv_heads, self.block_shift, self.window]);
        words(out, &[self.first_entry, self.entries, self.width, self.normed]);
    }
}

/// `struct Weights`: `[halves * outputs, k]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Weights {
    pub(super) rows: CUdeviceptr,
    pub(super) outputs: u32,
    pub(super) k: u32,
    /// 2 for `[gate | up]`.
    pub(super) halves: u32,
    /// Warps share a row in `2^split` parts.
    pub(super) split: u32,
}

impl Weights {
    /// Bytes in memory.
    pub(super) const BYTES: usize = 32;

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        addresses(out, &[self.rows]);
        // The last two are the kernel's own.
        words(out, &[self.outputs, self.k, self.halves, self.split, 0, 0]);
    }
}

fn words(out: &mut Vec<u8>, words: &[u32]) {
    out.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
}

fn addresses(out: &mut Vec<u8>, addresses: &[CUdeviceptr]) {
    out.extend(addresses.iter().flat_map(|address| address.to_ne_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_and_weights_have_the_sizes_that_the_kernel_steps_by() {
        let mut bytes = Vec::new();
        Phase::new(Kind::Embed, 1, 2, 3).write(&mut bytes);
        assert_eq!(bytes.len(), 176);
        bytes.clear();
        Weights { rows: 1, outputs: 2, k: 8, halves: 1, split: 0 }.write(&mut bytes);
        assert_eq!(bytes.len(), Weights::BYTES);
    }
}
