//! Causal convolution of each channel along a sequence, with the last inputs carried from step to step.

use crate::cpu::recurrent::state::States;
use crate::cpu::runtime::activations::{Columns, View};
use crate::cpu::runtime::batch::{Batch, Sequence};
use crate::cpu::runtime::isa::Isa;
use crate::cpu::runtime::pool::Pool;
use crate::cpu::simd::{Kernel, Simd, math, vectorize};
use crate::ops;

/// Channels a task.
const CHANNELS: usize = 64;
/// Longest kernel.
const KERNEL: usize = ops::Conv::MAX_KERNEL;

/// Most lanes of a vector.
const LANES: usize = 16;

/// A call with everything looked up.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) x: Columns,
    pub(crate) conv: ops::Conv,
    pub(crate) taps: &'a [f32],
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) states: &'a States,
    pub(crate) batch: &'a Batch,
    pub(crate) out: View,
}

/// See [`crate::ops::Conv`].
pub(crate) fn causal_conv(isa: Isa, pool: &mut Pool, call: Call<'_>) {
    let ops::Conv { channels, kernel, .. } = call.conv;
    call.conv.check(call.taps.len(), call.bias.map(<[f32]>::len), call.states.len);
    call.x.check(call.batch.rows(), channels);
    call.states.check(call.batch);
    let work = call.batch.rows() * channels * (kernel + 16);
    call.batch.each_part(pool, channels.div_ceil(CHANNELS), work, |sequence, block| {
        let first = block * CHANNELS;
        vectorize(isa, Channels { call, sequence, first, count: CHANNELS.min(channels - first) });
    });
}

/// Some channels of one sequence.
struct Channels<'a> {
    call: Call<'a>,
    sequence: &'a Sequence,
    first: usize,
    count: usize,
}

impl Kernel for Channels<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let mut at = 0;
        while at < self.count {
            let lanes = S::N.min(self.count - at);
            self.walk::<S>(self.first + at, lanes);
            at += lanes;
        }
    }
}

impl Channels<'_> {
    /// Channels `channel .. channel + lanes`, all rows in order.
    #[inline(always)]
    fn walk<S: Simd>(&self, channel: usize, lanes: usize) {
        let Call { x, conv: ops::Conv { channels, kernel, .. }, taps, bias, states, out, .. } = self.call;
        let past = kernel - 1;
        let mut tap = [S::splat(0.0); KERNEL];
        let mut seen = [S::splat(0.0); KERNEL];
        // SAFETY: `lanes` channels are left in every row of the taps, the bias, the inputs, the outputs and the state
        // (checked); a task has its sequence's rows of these channels, in the state too, to itself.
        unsafe {
            for (row, tap) in tap[..kernel].iter_mut().enumerate() {
                *tap = S::load_up_to(taps.as_ptr().add(row * channels + channel), lanes);
            }
            let mut kept = [0.0; LANES];
            for (row, seen) in seen[..past].iter_mut().enumerate() {
                states.read(self.sequence, row * channels + channel, &mut kept[..lanes]);
                *seen = S::load_up_to(kept.as_ptr(), lanes);
            }
            let shift = bias.map_or(S::splat(0.0), |bias| S::load_up_to(bias.as_ptr().add(channel), lanes));
            for row in self.sequence.rows() {
                seen[past] = S::load_up_to(x.at(row, channel), lanes);
                let mut sum = shift;
                for back in 0..kernel {
                    sum = seen[back].fma(tap[back], sum);
                }
                sum.mul(math::sigmoid(sum)).store_up_to(out.data.at(row * out.width + channel), lanes);
                for back in 0..past {
                    seen[back] = seen[back + 1];
                }
            }
            for (row, seen) in seen[..past].iter().enumerate() {
                seen.store_up_to(kept.as_mut_ptr(), lanes);
                states.write(self.sequence, row * channels + channel, &mut kept[..lanes]);
            }
        }
    }
}
