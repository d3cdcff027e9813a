//! Eight-bit floats with 4 bits of exponent and 3 of mantissa, as caches keep them (OCP 8-bit Floating Point
//! Specification, E4M3): up to 448, no infinities, subnormals from 2^-9 on.

/// The largest number, 448.
const MOST: u8 = 0x7e;
/// The code of no number, sign aside.
pub const NAN: u8 = 0x7f;

/// The nearest, ties to even; what is too large becomes the largest. NaN stays NaN.
#[must_use]
pub fn encode(value: f32) -> u8 {
    let (sign, size) = ((value.to_bits() >> 24) as u8 & 0x80, value.abs());
    let bits = size.to_bits();
    sign | if size.is_nan() {
        NAN
    } else if size >= 448.0 {
        MOST
    } else if size >= 2.0_f32.powi(-6) {
        // Exponents are biased by 127 there and 7 here.
        (((bits + 0x7_ffff + ((bits >> 20) & 1)) >> 20) - (120 << 3)) as u8
    } else {
        // Steps of 2^-9; eight of them are the smallest normal number.
        (size * 512.0).round_ties_even() as u8
    }
}

/// The number that a code stands for.
#[must_use]
pub fn decode(code: u8) -> f32 {
    let (sign, rest) = (u32::from(code & 0x80) << 24, code & 0x7f);
    if rest == NAN {
        return f32::NAN;
    }
    // Read as an f32 with the bits in their places, the number is 2^120 too small, subnormal or not.
    let size = f32::from_bits(u32::from(rest) << 20) * f32::from_bits((120 + 127) << 23);
    f32::from_bits(size.to_bits() | sign)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_itself_and_the_nearest_to_what_is_near() {
        let numbers: Vec<f32> = (0..=MOST).map(decode).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b));
        assert_eq!(
            (numbers[0], numbers[1], numbers[8], numbers[MOST as usize]),
            (0.0, 0.001_953_125, 0.015_625, 448.0)
        );
        for (code, pair) in (0..).zip(numbers.windows(2)) {
            let (low, high) = (pair[0], pair[1]);
            let middle = f32::midpoint(low, high);
            assert_eq!((encode(low), encode(-high)), (code, 0x80 | (code + 1)));
            assert_eq!(encode(middle), code + code % 2, "between {low} and {high}");
            assert_eq!(encode(middle.next_down()), code);
            assert_eq!(encode(middle.next_up()), code + 1);
        }
    }

    #[test]
    fn what_has_no_number_is_the_largest_or_none() {
        assert_eq!([448.0, 449.0, 1e30, f32::INFINITY].map(encode), [MOST; 4]);
        assert_eq!(encode(f32::NEG_INFINITY), 0x80 | MOST);
        assert!([encode(f32::NAN), encode(-f32::NAN)].into_iter().all(|code| decode(code).is_nan()));
        assert_eq!(decode(0x80).to_bits(), (-0.0_f32).to_bits());
    }
}
