//! Rounding of a product's rows to 8-bit floats or integers times scales, where a checkpoint asks for that.

use crate::cpu::runtime::activations::View;
use crate::cpu::runtime::memory::{Reserve, Shared};
use crate::cpu::runtime::pool::Pool;
use crate::e4m3;
use crate::ops::InputRounding;

/// The largest number of a code.
const MOST: f32 = 448.0;
/// The largest integer.
const MOST_INTEGER: f32 = 127.0;

/// Elements past the last row that whole-vector reads may touch.
const SLACK: usize = 16;

/// The rows of `x` with their columns in this order, in `room`; themselves where `columns` is empty.
pub(crate) fn order_columns(pool: &mut Pool, x: View, columns: &[u32], room: &mut Reserve) -> View {
    if columns.is_empty() {
        return x;
    }
    let out = View { data: Shared::new(room.reserve((x.rows * x.width + SLACK) * size_of::<f32>()).cast()), ..x };
    out.for_each_row(pool, 4, &|row| {
        // SAFETY: the room has as many rows as `x`; each is one task's, and `x` is only read.
        let (from, to) = unsafe { (x.row(row), out.row_mut(row)) };
        to.iter_mut().zip(columns).for_each(|(to, column)| *to = from[*column as usize]);
    });
    out
}

/// The rows of `x` as they are multiplied: themselves, or their rounded values in `room`.
pub(crate) fn round_input(pool: &mut Pool, x: View, rounding: InputRounding, room: &mut Reserve) -> View {
    if rounding == InputRounding::None {
        return x;
    }
    let out = View { data: Shared::new(room.reserve((x.rows * x.width + SLACK) * size_of::<f32>()).cast()), ..x };
    out.for_each_row(pool, 16, &|row| {
        // SAFETY: the room has as many rows as `x`; each is one task's, and `x` is only read.
        let (from, to) = unsafe { (x.row(row), out.row_mut(row)) };
        match rounding {
            InputRounding::None => to.copy_from_slice(from),
            InputRounding::Static(scale) => round(from, scale, to),
            InputRounding::StaticInt8(scale) => round_integers(from, scale, f32::INFINITY, to),
            InputRounding::DynamicInt8 { outliers } => {
                let sizes = from.iter().map(|x| x.abs()).filter(|size| *size < outliers);
                round_integers(from, sizes.fold(0.0, f32::max) / MOST_INTEGER, outliers, to);
            }
            InputRounding::Dynamic { cols } => {
                for (from, to) in from.chunks(cols).zip(to.chunks_mut(cols)) {
                    let largest = from.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
                    round(from, largest / MOST, to);
                }
            }
        }
    });
    out
}

/// The nearest codes of `from / scale`, times `scale`.
fn round(from: &[f32], scale: f32, to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = if scale > 0.0 { e4m3::decode(e4m3::encode(from / scale)) * scale } else { *from };
    }
}

/// The nearest integers of `from / scale`, times `scale`; what is as large as an outlier stays.
fn round_integers(from: &[f32], scale: f32, outliers: f32, to: &mut [f32]) {
    for (to, &from) in to.iter_mut().zip(from) {
        let keeps = scale <= 0.0 || from.abs() >= outliers;
        *to = if keeps { from } else { (from / scale).round_ties_even().clamp(-128.0, MOST_INTEGER) * scale };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_become_integers_times_a_scale() {
        let mut to = [0.0; 5];
        round_integers(&[0.3, -0.3, 0.25, -1000.0, 1000.0], 0.5, f32::INFINITY, &mut to);
        assert_eq!(to, [0.5, -0.5, 0.0, -64.0, 63.5]);
        round_integers(&[0.3, -0.3, 0.25, -1000.0, 1000.0], 0.5, 6.0, &mut to);
        assert_eq!(to, [0.5, -0.5, 0.0, -1000.0, 1000.0]);
        round_integers(&[0.0; 5], 0.0, 6.0, &mut to);
        assert_eq!(to, [0.0; 5]);
    }

    #[test]
    fn values_become_multiples_of_a_scale() {
        let mut to = [0.0; 5];
        round(&[0.0, 1.0, -1.06, 1000.0, f32::NAN], 0.5, &mut to);
        assert_eq!(to[..4], [0.0, 1.0, -1.0, 224.0]);
        assert!(to[4].is_nan());
        // Zeros have no scale.
        round(&[0.0; 5], 0.0, &mut to);
        assert_eq!(to, [0.0; 5]);
    }
}
