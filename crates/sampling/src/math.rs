//! The few numeric loops: argmax, maximum, and an exponential that the compiler can vectorise and that gives the same
//! bits everywhere.

const LANES: usize = 16;

/// The largest number in `row`, NaN passed over; -inf when there is none.
pub(crate) fn max(row: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = row.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = if x > *lane { x } else { *lane };
        }
    }
    rest.iter().chain(&lanes).fold(f32::NEG_INFINITY, |best, &x| if x > best { x } else { best })
}

/// Index of the largest number, the lowest on ties; `None` when all are -inf or NaN.
pub(crate) fn argmax(row: &[f32]) -> Option<u32> {
    let best = max(row);
    if best == f32::NEG_INFINITY {
        return None;
    }
    row.iter().position(|&x| x == best).map(|at| at as u32)
}

/// `e^x` for `x <= 0`, within 2e-7 relative; 0 below -87 and for NaN.
///
/// `x = n ln 2 + r` with |r| <= ln 2 / 2, then a Taylor polynomial of degree 7 for `e^r` and `2^n` through the exponent
/// bits. The standard library's `exp` is neither vectorised nor the same on every C library.
#[inline]
pub(crate) fn exp(x: f32) -> f32 {
    // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, which then sits in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN2_HIGH) - n * LN2_LOW;
    let mut p = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + coefficient;
    }
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    // False for NaN too.
    if x >= -87.0 { p * f32::from_bits(exponent) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_accurate() {
        for i in 0..87_000 {
            let x = -(i as f32) / 1000.0;
            let (got, want) = (f64::from(exp(x)), f64::from(x).exp());
            assert!((got - want).abs() <= want * 2e-7, "exp({x}) = {got}, not {want}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-100.0), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::NAN), 0.0);
    }

    #[test]
    fn argmax_prefers_the_lowest_id_and_passes_over_nan() {
        let mut row = vec![0.0; 40];
        (row[7], row[21], row[3]) = (5.0, 5.0, f32::NAN);
        assert_eq!(argmax(&row), Some(7));
        row[30] = f32::INFINITY;
        assert_eq!(argmax(&row), Some(30));
        assert_eq!(argmax(&[f32::NAN, f32::NEG_INFINITY]), None);
        assert_eq!(argmax(&[]), None);
    }
}
