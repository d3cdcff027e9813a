//! Deltas of adapters: against float64, for ragged ranks and slots, and the same bits whatever else is in the batch.

mod embedding;
mod saved;

use super::{Random, backends, check, check_same, encode, filled};
use kernels::ops::{Backend, Batch, DType, LoraShape, LoraSite, LoraWeights, PlainElements, RowSelection, Sequence};

const SLOTS: usize = 3;
const MAX_RANK: usize = 16;

struct Part {
    rank: usize,
    a: Vec<f32>,
    b: Vec<f32>,
    bytes: [Vec<u8>; 2],
}

impl Part {
    fn new(rank: usize, a: Vec<f32>, b: Vec<f32>) -> Self {
        let bytes = [&a, &b].map(|values| encode(values, DType::F32).0);
        Self { rank, a, b, bytes }
    }

    fn weights(&self) -> LoraWeights<'_> {
        let [a, b] = self.bytes.each_ref().map(|bytes| PlainElements { dtype: DType::F32, bytes });
        LoraWeights { rank: self.rank, a, b }
    }
}

/// Adapters of every slot for projections of these widths; some are absent.
fn adapters(random: &mut Random, inputs: usize, outputs: &[usize]) -> Vec<Vec<Option<Part>>> {
    let ranks = [[Some(16), Some(5), None], [Some(1), None, Some(8)], [Some(8), Some(16), Some(3)]];
    let part = |rank: Option<usize>, outputs: usize, random: &mut Random| {
        let rank = rank?;
        Some(Part::new(rank, random.values(rank * inputs), random.values(outputs * rank)))
    };
    let slot = |ranks: [Option<usize>; 3], random: &mut Random| {
        outputs.iter().zip(ranks).map(|(outputs, rank)| part(rank, *outputs, random)).collect()
    };
    ranks.into_iter().map(|ranks| slot(ranks, random)).collect()
}

fn put(backend: &mut dyn Backend, inputs: usize, outputs: &[usize], adapters: &[Vec<Option<Part>>]) -> LoraSite {
    let shape = LoraShape { slots: SLOTS, max_rank: MAX_RANK, inputs, outputs, dtype: DType::F32 };
    let site = backend.new_lora_site(shape);
    for (slot, parts) in adapters.iter().enumerate() {
        let weights: Vec<Option<LoraWeights<'_>>> = parts.iter().map(|part| part.as_ref().map(Part::weights)).collect();
        backend.write_lora(site, slot as u32, &weights);
    }
    backend.set_slots(4, 8);
    site
}

/// What is added to a row, in float64.
fn delta(x: &[f32], parts: &[Option<Part>], outputs: &[usize]) -> Vec<f64> {
    let mut all = Vec::new();
    for (part, outputs) in parts.iter().zip(outputs) {
        let Some(Part { rank, a, b, .. }) = part else {
            all.extend(std::iter::repeat_n(0.0, *outputs));
            continue;
        };
        let dot = |a: &[f32], b: &[f64]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * b).sum::<f64>();
        let wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let shrunk: Vec<f64> = a.chunks(x.len()).map(|a| dot(a, &wide)).collect();
        all.extend(b.chunks(*rank).map(|b| dot(b, &shrunk)));
    }
    all
}

/// Runs one step of sequences, each with its rows and its adapter's slot; the rows after their deltas.
fn run(backend: &mut dyn Backend, site: LoraSite, rows: &[(usize, Option<u32>)], [x, out]: [&[f32]; 2]) -> Vec<f32> {
    let count = rows.iter().map(|(rows, _)| rows).sum();
    let tables = [Vec::new()];
    let mut first_row = 0;
    let sequence = |(slot, (num_rows, _)): (usize, &(usize, Option<u32>))| {
        first_row += num_rows;
        Sequence { first_row: first_row - num_rows, num_rows: *num_rows, start: 0, tables: &tables, slot }
    };
    let sequences: Vec<Sequence<'_>> = rows.iter().enumerate().map(sequence).collect();
    let (x_rows, out_rows) = (x, out);
    let (x, out) = (filled(backend, x.len() / count, x), filled(backend, out.len() / count, out));
    // Buffers were made; room for rows of adapters follows them.
    backend.set_slots(4, 8);
    let (tokens, positions) = (vec![0; count], (0..count as u32).collect::<Vec<_>>());
    backend.set_adapters(&rows.iter().map(|(_, slot)| *slot).collect::<Vec<_>>());
    backend.begin(Batch { tokens: &tokens, positions: &positions, sequences: &sequences });
    backend.host_mut(x).copy_from_slice(x_rows);
    backend.host_mut(out).copy_from_slice(out_rows);
    backend.lora(x, site, out);
    backend.read(out).to_vec()
}

/// Begins a step of one sequence a token, each with its adapter's slot.
fn begin(backend: &mut dyn Backend, rows: &[(u32, Option<u32>)]) {
    let tables = [Vec::new()];
    let sequence = |row| Sequence { first_row: row, num_rows: 1, start: 0, tables: &tables, slot: row };
    let sequences: Vec<Sequence<'_>> = (0..rows.len()).map(sequence).collect();
    let (tokens, slots): (Vec<u32>, Vec<Option<u32>>) = rows.iter().copied().unzip();
    backend.set_slots(rows.len(), 8);
    backend.set_adapters(&slots);
    backend.begin(Batch { tokens: &tokens, positions: &vec![0; rows.len()], sequences: &sequences });
}

#[test]
fn deltas_are_added_to_rows_with_adapters() {
    for mut backend in backends() {
        for (inputs, outputs) in [(64, vec![48, 16, 16]), (7, vec![5, 1, 9]), (1000, vec![130, 200, 33])] {
            let mut random = Random(inputs as u64);
            let adapters = adapters(&mut random, inputs, &outputs);
            let site = put(&mut *backend, inputs, &outputs, &adapters);
            let rows = [(1, Some(2)), (3, None), (2, Some(0)), (150, Some(1)), (1, Some(0))];
            let (count, width) = (157, outputs.iter().sum::<usize>());
            let (x, before) = (random.values(count * inputs), random.values(count * width));
            let after = run(&mut *backend, site, &rows, [&x, &before]);
            let slots: Vec<Option<u32>> = rows.iter().flat_map(|(rows, slot)| vec![*slot; *rows]).collect();
            let want: Vec<f64> = (0..count)
                .flat_map(|row| {
                    let own = &before[row * width..][..width];
                    let x = &x[row * inputs..][..inputs];
                    let delta = slots[row].map(|slot| delta(x, &adapters[slot as usize], &outputs));
                    let delta = delta.unwrap_or_else(|| vec![0.0; width]);
                    own.iter().zip(delta).map(|(own, delta)| f64::from(*own) + delta).collect::<Vec<_>>()
                })
                .collect();
            check("lora", &after, &want, |index| 1e-4 + 1e-6 * want[index].abs());
            // A row alone: the same bits.
            for row in [0, 5, 80] {
                let slot = slots[row];
                let (x, before) = (&x[row * inputs..][..inputs], &before[row * width..][..width]);
                let alone = run(&mut *backend, site, &[(1, slot)], [x, before]);
                check_same("a row alone", &alone, &after[row * width..][..width]);
            }
        }
    }
}

#[test]
fn deltas_follow_the_rows_that_are_picked() {
    for mut backend in backends() {
        let outputs = [8, 8, 8];
        let mut random = Random(3);
        let adapters = adapters(&mut random, 16, &outputs);
        let site = put(&mut *backend, 16, &outputs, &adapters);
        let (x_rows, out_rows) = (random.values(3 * 16), random.values(3 * 24));
        let whole = run(&mut *backend, site, &[(2, Some(1)), (1, Some(0))], [&x_rows, &out_rows]);
        let tables = [Vec::new()];
        let sequence = |first_row, num_rows, slot| Sequence { first_row, num_rows, start: 0, tables: &tables, slot };
        let (all, all_out) = (filled(&mut *backend, 16, &x_rows), filled(&mut *backend, 24, &out_rows));
        let (x, out) = (filled(&mut *backend, 16, &[0.0; 32]), filled(&mut *backend, 24, &[0.0; 48]));
        backend.set_slots(4, 8);
        backend.set_adapters(&[Some(1), Some(0)]);
        let sequences = [sequence(0, 2, 0), sequence(2, 1, 1)];
        backend.begin(Batch { tokens: &[0; 3], positions: &[0, 1, 0], sequences: &sequences });
        backend.host_mut(all).copy_from_slice(&x_rows);
        backend.host_mut(all_out).copy_from_slice(&out_rows);
        let picked = RowSelection { rows: &[1, 2] };
        backend.select_adapters(picked);
        backend.gather(all, picked, x);
        backend.gather(all_out, picked, out);
        backend.lora(x, site, out);
        check_same("picked rows", backend.read(out), &whole[24..]);
        // A step without adapters adds nothing, although slots are full.
        backend.begin(Batch { tokens: &[0; 3], positions: &[0, 1, 0], sequences: &sequences });
        backend.host_mut(all).copy_from_slice(&x_rows);
        backend.host_mut(all_out).copy_from_slice(&out_rows);
        backend.lora(all, site, all_out);
        check_same("no adapters", backend.read(all_out), &out_rows);
    }
}
