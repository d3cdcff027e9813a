//! The gate of an MLP: half of each row, through a gate function, times the other half.

use super::activate::Gate;
use super::acts::View;
use super::isa::Isa;
use super::pool::Pool;
use super::simd::vectorize;
use crate::ops::Activation;

/// `out = activation(gate) * up` of rows `[gate | up]`.
pub(crate) fn gated(isa: Isa, pool: &mut Pool, gate_up: View, activation: Activation, out: View) {
    out.for_each_row(pool, 8, &|row| {
        // SAFETY: a row is one task's; gate_up is twice as wide as out (checked by the caller).
        let (gate, up, out) = unsafe {
            let gate = gate_up.data.at(row * gate_up.width).cast_const();
            (gate, gate.add(out.width), out.data.at(row * out.width))
        };
        vectorize(isa, Gate { gate, up: Some(up), out, width: gate_up.width / 2, activation });
    });
}
