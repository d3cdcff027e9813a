//! Matrices of random numbers made on the device are those that their definition gives.

use super::{backends, check_same, poisoned};
use kernels::ops::{Batch, DType, Noise, NoiseRows, mix};

/// Levels that every type holds exactly: 0, 1, 2, ...
fn levels(dtype: DType, count: usize) -> Vec<u8> {
    let values = (0..count).map(|value| value as f32);
    match dtype {
        DType::F32 => values.flat_map(f32::to_le_bytes).collect(),
        DType::Bf16 => values.flat_map(|value| half::bf16::from_f32(value).to_le_bytes()).collect(),
        DType::F16 => values.flat_map(|value| half::f16::from_f32(value).to_le_bytes()).collect(),
    }
}

/// The definition, element by element.
fn row(part: &NoiseRows<'_>, index: usize, cols: usize, count: usize) -> Vec<f32> {
    let r = part.rows.start + index;
    let stored = r / part.size * part.period + part.offset + r % part.size;
    let key = mix(part.key ^ mix(stored as u64));
    let element = |col: usize| (mix(key.wrapping_add((col / 4) as u64)) >> (16 * (col % 4)) & 0xffff) as usize % count;
    (part.first_col..part.first_col + cols).map(|col| element(col) as f32).collect()
}

#[test]
fn tables_are_as_defined_whatever_part_is_made() {
    const COUNT: usize = 128;
    for mut backend in backends() {
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            for (cols, first_col) in [(1, 0), (7, 3), (48, 0), (1000, 24)] {
                let levels = levels(dtype, COUNT);
                let part = |key, rows, (offset, size, period)| NoiseRows {
                    key,
                    rows,
                    size,
                    period,
                    offset,
                    first_col,
                    levels: &levels,
                };
                let parts = [part(1, 0..5, (0, 1, 1)), part(2, 3..9, (4, 2, 7)), part(1, 5..6, (0, 1, 1))];
                let noise = Noise { dtype, cols, parts: &parts, pad_rows: 2 };
                // A device that cannot make them leaves it to the host.
                let Some(table) = backend.make_table(noise) else { continue };
                let mut want: Vec<f32> = parts
                    .iter()
                    .flat_map(|part| (0..part.rows.len()).flat_map(|r| row(part, r, cols, COUNT)))
                    .collect();
                want.resize(want.len() + 2 * cols, 0.0);
                let rows = want.len() / cols;
                let out = poisoned(&mut *backend, rows, cols);
                let tokens: Vec<u32> = (0..rows as u32).collect();
                backend.begin(Batch { tokens: &tokens, positions: &tokens, sequences: &[] });
                backend.embed(table, 0, 1.0, out);
                check_same("noise", backend.read(out), &want);
            }
        }
    }
}
