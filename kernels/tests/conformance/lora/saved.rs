//! Whole matrices in place of the model's: against float64, each row with its own, and the same bits whatever else is
//! in the batch.

use super::super::{Random, backends, check, check_same, encode, filled, filled_in, round};
use super::begin;
use kernels::ops::{Backend, DType, Entries, PlainElements, RowSelection, SavedShape, SavedSite, write_and_wait};

const SLOTS: usize = 3;
const TYPES: [DType; 3] = [DType::F32, DType::Bf16, DType::F16];

/// Matrices of slots 0 and 2; slot 1 has none, after it had one.
fn put(backend: &mut dyn Backend, shape: SavedShape, random: &mut Random) -> (SavedSite, [Vec<f32>; 2]) {
    let site = backend.new_saved_site(shape);
    let mut matrix = || encode(&random.values(shape.rows * shape.cols), shape.dtype);
    let [first, second] = [matrix(), matrix()];
    let elements = |bytes| Some(PlainElements { dtype: shape.dtype, bytes });
    for (slot, bytes) in
        [(1, Some(&first.0)), (0, Some(&second.0)), (0, Some(&first.0)), (2, Some(&second.0)), (1, None)]
    {
        let matrix = bytes.and_then(|bytes| elements(bytes));
        write_and_wait(backend, |backend, taken| backend.write_saved(site, slot, matrix, taken));
    }
    (site, [first.1, second.1])
}

/// The matrix of a slot.
fn of_slot(matrices: &[Vec<f32>; 2], slot: Option<u32>) -> Option<&[f32]> {
    match slot {
        Some(0) => Some(&matrices[0]),
        Some(2) => Some(&matrices[1]),
        _ => None,
    }
}

fn slots(rows: usize) -> Vec<(u32, Option<u32>)> {
    (0..rows as u32).map(|row| (row % 71, (row % 5 % 4).checked_sub(1))).collect()
}

#[test]
fn rows_are_multiplied_by_their_adapters_matrix() {
    for mut backend in backends() {
        for (dtype, [outputs, inputs], rows) in [
            (DType::F32, [130, 64], 30),
            (DType::Bf16, [65, 96], 5),
            (DType::F16, [7, 33], 150),
            (DType::F32, [1, 8], 1),
        ] {
            let mut random = Random(inputs as u64);
            let compute = DType::F32;
            let shape = SavedShape { slots: SLOTS, rows: outputs, cols: inputs, dtype, compute };
            let (site, matrices) = put(&mut *backend, shape, &mut random);
            let (x, before) = (random.values(rows * inputs), random.values(rows * outputs));
            let steps = slots(rows);
            let mut run = |of: &[(u32, Option<u32>)], x: &[f32], before: &[f32]| {
                let (from, out) = (filled(&mut *backend, inputs, x), filled(&mut *backend, outputs, before));
                begin(&mut *backend, of);
                backend.host_mut(from).copy_from_slice(x);
                backend.host_mut(out).copy_from_slice(before);
                backend.saved_matmul(from, site, out);
                backend.read(out).to_vec()
            };
            let after = run(&steps, &x, &before);
            for (row, (_, slot)) in steps.iter().enumerate() {
                let (x, own, after) =
                    (row_of(&x, row, inputs), row_of(&before, row, outputs), row_of(&after, row, outputs));
                let Some(matrix) = of_slot(&matrices, *slot) else {
                    check_same("a row without a matrix", after, own);
                    continue;
                };
                let dot = |w: &[f32]| w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>();
                let want: Vec<f64> = matrix.chunks(inputs).map(dot).collect();
                check("saved_matmul", after, &want, |_| 1e-4);
                check_same("a row alone", &run(&steps[row..=row], x, own), after);
            }
        }
    }
}

fn row_of(values: &[f32], row: usize, width: usize) -> &[f32] {
    &values[row * width..][..width]
}

/// Rows of 16 bits, as GPUs have them.
#[test]
fn rounded_rows_are_multiplied_too() {
    for mut backend in backends() {
        for (precision, dtype) in TYPES.iter().flat_map(|x| TYPES.iter().map(move |w| (*x, *w))) {
            let mut random = Random(17);
            let shape = SavedShape { slots: SLOTS, rows: 20, cols: 40, dtype, compute: DType::F32 };
            let (site, matrices) = put(&mut *backend, shape, &mut random);
            let x: Vec<f32> = random.values(6 * 40).into_iter().map(|x| round(x, precision)).collect();
            let before = vec![0.0; 6 * 20];
            let from = filled_in(&mut *backend, 40, &x, precision);
            let out = filled(&mut *backend, 20, &before);
            let steps = slots(6);
            begin(&mut *backend, &steps);
            backend.host_mut(from).copy_from_slice(&x);
            backend.host_mut(out).copy_from_slice(&before);
            backend.saved_matmul(from, site, out);
            let row = |(row, (_, slot)): (usize, &(u32, Option<u32>))| {
                let dot =
                    |w: &[f32]| w.iter().zip(row_of(&x, row, 40)).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                of_slot(&matrices, *slot).map_or_else(|| vec![0.0; 20], |matrix| matrix.chunks(40).map(dot).collect())
            };
            let want: Vec<f64> = steps.iter().enumerate().flat_map(row).collect();
            check("saved_matmul", backend.read(out), &want, |_| 1e-4);
        }
    }
}

/// The rows that are left after a selection have their own adapters.
#[test]
fn matrices_follow_the_rows_that_are_picked() {
    for mut backend in backends() {
        let mut random = Random(5);
        let shape = SavedShape { slots: SLOTS, rows: 12, cols: 16, dtype: DType::F32, compute: DType::F32 };
        let (site, matrices) = put(&mut *backend, shape, &mut random);
        let (x, before) = (random.values(2 * 16), random.values(2 * 12));
        let (from, out) = (filled(&mut *backend, 16, &x), filled(&mut *backend, 12, &before));
        let rows = [[0.0; 16].as_slice(), &x].concat();
        let rows_before = [[0.0; 12].as_slice(), &before].concat();
        let (all, all_out) = (filled(&mut *backend, 16, &rows), filled(&mut *backend, 12, &rows_before));
        begin(&mut *backend, &[(0, Some(0)), (0, None), (0, Some(2))]);
        backend.host_mut(all).copy_from_slice(&rows);
        backend.host_mut(all_out).copy_from_slice(&rows_before);
        let picked = RowSelection { rows: &[1, 2] };
        backend.select_adapters(picked);
        backend.gather(all, picked, from);
        backend.gather(all_out, picked, out);
        backend.saved_matmul(from, site, out);
        let after = backend.read(out);
        check_same("a row without a matrix", &after[..12], &before[..12]);
        let dot = |w: &[f32]| w.iter().zip(&x[16..]).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>();
        let want: Vec<f64> = matrices[1].chunks(16).map(dot).collect();
        check("a picked row", &after[12..], &want, |_| 1e-4);
    }
}

#[test]
fn rows_of_an_embedding_are_its_adapters() {
    for mut backend in backends() {
        for dtype in TYPES {
            let (mut random, entries) = (Random(9), Entries { first: 10, scale: 2.0 });
            let shape = SavedShape { slots: SLOTS, rows: 50, cols: 37, dtype, compute: DType::F32 };
            let (site, matrices) = put(&mut *backend, shape, &mut random);
            let steps = slots(80);
            let before = random.values(80 * 37);
            let out = filled(&mut *backend, 37, &before);
            begin(&mut *backend, &steps);
            backend.host_mut(out).copy_from_slice(&before);
            backend.saved_embed(site, entries, out);
            let row = |(row, (token, slot)): (usize, &(u32, Option<u32>))| {
                let Some(matrix) = of_slot(&matrices, *slot) else { return row_of(&before, row, 37).to_vec() };
                let entry = token.checked_sub(entries.first).filter(|entry| *entry < 50);
                entry.map_or_else(
                    || vec![0.0; 37],
                    |entry| row_of(matrix, entry as usize, 37).iter().map(|x| x * entries.scale).collect(),
                )
            };
            let want: Vec<f32> = steps.iter().enumerate().flat_map(row).collect();
            check_same("saved_embed", backend.read(out), &want);
        }
    }
}

/// Matrices with fewer rows than there is room for, as vocabularies of several sizes give them.
#[test]
fn what_a_matrix_lacks_is_masked_and_embeds_to_zeros() {
    const ROWS: usize = 70;
    const COLS: usize = 24;
    for mut backend in backends() {
        for dtype in TYPES {
            let mut random = Random(3);
            let shape = SavedShape { slots: SLOTS, rows: ROWS, cols: COLS, dtype, compute: DType::F32 };
            let site = backend.new_saved_site(shape);
            let own = [Some(67), None, Some(60)];
            let mut put = |slot: u32, rows: Option<usize>| {
                let matrix = rows.map(|rows| encode(&random.values(rows * COLS), dtype));
                let elements = matrix.as_ref().map(|(bytes, _)| PlainElements { dtype, bytes });
                write_and_wait(&mut *backend, |backend, taken| backend.write_saved(site, slot, elements, taken));
                matrix.map(|(_, values)| values)
            };
            // Each slot had a matrix of all rows before.
            (0..SLOTS as u32).for_each(|slot| drop(put(slot, Some(ROWS))));
            let matrices: Vec<_> = (0..).zip(own).map(|(slot, rows)| put(slot, rows)).collect();
            let steps: Vec<(u32, Option<u32>)> =
                (0..40_u32).map(|row| (58 + row % 12, (row % 4).checked_sub(1))).collect();
            let rows_of = |slot: Option<u32>| slot.and_then(|slot| own[slot as usize]);
            let before = random.values(steps.len() * ROWS);
            for has_adapters in [true, false] {
                let out = filled(&mut *backend, ROWS, &before);
                let of: Vec<_> = steps.iter().map(|(token, slot)| (*token, slot.filter(|_| has_adapters))).collect();
                begin(&mut *backend, &of);
                backend.host_mut(out).copy_from_slice(&before);
                backend.mask_saved(site, 64, out);
                let masked = |(at, value): (usize, &f32)| {
                    let end = rows_of(of[at / ROWS].1).unwrap_or(64);
                    if at % ROWS < end { *value } else { f32::NEG_INFINITY }
                };
                let want: Vec<f32> = before.iter().enumerate().map(masked).collect();
                check_same("mask_saved", backend.read(out), &want);
            }
            let embedded = vec![9.0; steps.len() * COLS];
            let out = filled(&mut *backend, COLS, &embedded);
            begin(&mut *backend, &steps);
            backend.host_mut(out).copy_from_slice(&embedded);
            backend.saved_embed(site, Entries { first: 0, scale: 1.0 }, out);
            let row = |(token, slot): &(u32, Option<u32>)| {
                let matrix = slot.and_then(|slot| matrices[slot as usize].as_ref());
                let Some(matrix) = matrix else { return vec![9.0; COLS] };
                let at = *token as usize * COLS;
                matrix.get(at..at + COLS).map_or_else(|| vec![0.0; COLS], <[f32]>::to_vec)
            };
            let want: Vec<f32> = steps.iter().flat_map(row).collect();
            check_same("saved_embed", backend.read(out), &want);
        }
    }
}
