//! [`GroupedCodes`], row by row.

use super::{IntegerRow, numbers};
use crate::ops::{ALL_COLUMNS, CodeBits, E2M1, GroupedCodes, Levels, Zeros};

/// The codes of a row, one a byte.
fn unpack(codes: &GroupedCodes<'_>, row: usize, cols: usize) -> impl Iterator<Item = u8> {
    let (bits, size) = (codes.format.bits, codes.format.bits.row_bytes(cols));
    let bytes = &codes.codes[row * size..][..size];
    (0..cols).map(move |col| match bits {
        CodeBits::Four => bytes[col / 2] >> (col % 2 * 4) & 15,
        CodeBits::Eight => bytes[col],
    })
}

/// The scales of a row.
fn scales(codes: &GroupedCodes<'_>, row: usize, cols: usize) -> impl Iterator<Item = f32> {
    let (dtype, groups) = (codes.format.scales, codes.format.groups(cols));
    let size = groups * dtype.size();
    numbers(dtype, &codes.scales[row * size..][..size])
}

/// Twice the numbers of [`E2M1`], which are whole, from the middle of eight bits.
pub(super) const E2M1_CODES: [u8; 16] = {
    let (mut codes, mut at) = ([0; 16], 0);
    while at < 16 {
        codes[at] = (128.0 + 2.0 * E2M1[at]) as u8;
        at += 1;
    }
    codes
};

/// A row of integer codes.
pub(super) fn read(codes: GroupedCodes<'_>, row: usize, cols: usize, out: &mut IntegerRow) {
    if let Levels::Shared(_) = codes.format.levels {
        out.codes.extend(unpack(&codes, row, cols).map(|code| E2M1_CODES[usize::from(code)]));
        out.scales.extend(scales(&codes, row, cols).map(|scale| scale / 2.0));
        return;
    }
    out.codes.extend(unpack(&codes, row, cols));
    out.scales.extend(scales(&codes, row, cols));
    if codes.format.levels == Levels::Integers(Zeros::Stored) {
        let groups = codes.format.groups(cols);
        out.offsets.extend(codes.zeros[row * groups..][..groups].iter().map(|zero| f32::from(*zero)));
    }
}

/// The weights of a row whose codes are not integers, in stored order.
pub(super) fn by_level(codes: GroupedCodes<'_>, row: usize, out: &mut [f32]) {
    let levels: &[f32] = match &codes.format.levels {
        Levels::Shared(levels) => levels,
        Levels::Rows => &codes.row_levels[row * 16..][..16],
        Levels::Integers(_) => unreachable!("integers are no levels"),
    };
    let cols = out.len();
    let group = if codes.format.group == ALL_COLUMNS { cols } else { codes.format.group };
    out.iter_mut().zip(unpack(&codes, row, cols)).for_each(|(out, code)| *out = levels[usize::from(code)]);
    for (out, scale) in out.chunks_mut(group).zip(scales(&codes, row, cols)) {
        out.iter_mut().for_each(|out| *out *= scale);
    }
}

#[cfg(test)]
mod tests {
    use crate::decode::decode;
    use crate::ops::{
        CodeBits, ColumnOrder, DType, E2M1, Encoding, GroupedCodes, GroupedFormat, HostMatrix, InputRounding, Levels,
        Zeros,
    };

    const FORMAT: GroupedFormat = GroupedFormat {
        bits: CodeBits::Four,
        group: 2,
        scales: DType::F32,
        levels: Levels::Integers(Zeros::Middle),
        order: ColumnOrder::InOrder,
        input: InputRounding::None,
    };

    fn decoded(codes: GroupedCodes<'_>, rows: usize, cols: usize) -> Vec<f32> {
        let mut out = vec![f32::NAN; rows * cols];
        decode(&HostMatrix { rows, cols, encoding: Encoding::Grouped(codes) }, 0..rows, &mut out);
        out
    }

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn codes_mean_what_their_format_says() {
        // Two rows of three codes of four bits: a group of two, and a short one.
        let (codes, scales) = ([0x90, 0x0f, 0x21, 0x08], bytes(&[1.0, 10.0, 2.0, 100.0]));
        let middle =
            GroupedCodes { format: FORMAT, codes: &codes, scales: &scales, zeros: &[], row_levels: &[], columns: &[] };
        assert_eq!(decoded(middle, 2, 3), [-8.0, 1.0, 70.0, -14.0, -12.0, 0.0]);
        let format = GroupedFormat { levels: Levels::Integers(Zeros::Stored), ..FORMAT };
        let stored = GroupedCodes { format, zeros: &[0, 15, 1, 16], ..middle };
        assert_eq!(decoded(stored, 2, 3), [0.0, 9.0, 0.0, 0.0, 2.0, -800.0]);
        let format = GroupedFormat { levels: Levels::Rows, order: ColumnOrder::Permuted, ..FORMAT };
        let levels: Vec<f32> = (0..32).map(|level| if level < 16 { level as f32 } else { -level as f32 }).collect();
        let rows = GroupedCodes { format, row_levels: &levels, columns: &[2, 0, 1], ..middle };
        assert_eq!(decoded(rows, 2, 3), [9.0, 150.0, 0.0, -36.0, -2400.0, -34.0]);
        let format = GroupedFormat { levels: Levels::Shared(std::array::from_fn(|i| i as f32 / 2.0)), ..FORMAT };
        assert_eq!(decoded(GroupedCodes { format, ..middle }, 2, 3), [0.0, 4.5, 75.0, 1.0, 2.0, 400.0]);
        let format = GroupedFormat { levels: Levels::Shared(E2M1), ..FORMAT };
        assert_eq!(decoded(GroupedCodes { format, ..middle }, 2, 3), [0.0, -0.5, -60.0, 1.0, 2.0, -0.0]);
    }
}
