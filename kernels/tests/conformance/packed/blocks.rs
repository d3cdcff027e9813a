//! Made-up blocks of GGUF files.

use kernels::ops::GgmlType;

/// Changes the numbers of a block, which are f16, so that they are small and no NaN: `high` gets the byte of each with
/// its sign and its exponent.
pub(crate) fn tame(kind: GgmlType, block: &mut [u8], high: impl Fn(u8) -> u8) {
    let places: &[usize] = match kind {
        GgmlType::Q4_1 | GgmlType::Q5_1 | GgmlType::Q4K | GgmlType::Q5K => &[0, 2],
        GgmlType::Q2K => &[80, 82],
        GgmlType::Q3K => &[108],
        GgmlType::Q6K => &[208],
        GgmlType::Tq1_0 => &[52],
        GgmlType::Tq2_0 => &[64],
        GgmlType::Iq1M => {
            // Its number lies in the high halves of four bytes.
            let byte = high(block[53] >> 4 | block[55] & 0xf0);
            block[53] = block[53] & 15 | byte << 4;
            block[55] = block[55] & 15 | byte & 0xf0;
            &[]
        }
        _ => &[0],
    };
    places.iter().for_each(|at| block[at + 1] = high(block[at + 1]));
}
