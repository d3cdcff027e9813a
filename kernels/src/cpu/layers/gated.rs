//! Gates: half of each row of an MLP, through a gate function, times the other half; or columns of another buffer times
//! the row.

use crate::cpu::layers::activate::Gate;
use crate::cpu::runtime::activations::View;
use crate::cpu::runtime::isa::Isa;
use crate::cpu::runtime::pool::Pool;
use crate::cpu::simd::vectorize;
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

/// `x *= activation(gate)`, with `gate`'s columns from `first_col` on.
pub(crate) fn gate(isa: Isa, pool: &mut Pool, x: View, gate: View, first_col: usize, activation: Activation) {
    assert_eq!(x.rows, gate.rows, "rows of a gate and of what it gates");
    assert!(first_col + x.width <= gate.width, "columns from {first_col} of {}", gate.width);
    x.for_each_row(pool, 8, &|row| {
        // SAFETY: a row is one task's, and the gate's columns are inside (checked).
        let (gate, out) =
            unsafe { (gate.data.at(row * gate.width + first_col).cast_const(), x.data.at(row * x.width)) };
        vectorize(isa, Gate { gate, up: Some(out.cast_const()), out, width: x.width, activation });
    });
}
