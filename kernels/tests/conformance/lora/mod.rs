//! Deltas of adapters: against float64, for ragged ranks and slots, and the same bits whatever else is in the batch.

mod embedding;
mod experts;
mod prepared;
mod saved;

use super::rounded::step;
use super::{Random, backends, check, check_same, encode, filled, filled_in, host, round};
use kernels::ops::{
    Activation, Backend, Batch, DType, Epilogue, LoraShape, LoraSite, LoraWeights, PlainElements, RowSelection,
    Sequence, Taken, write_and_wait,
};

mod gated;

const SLOTS: usize = 3;
const MAX_RANK: usize = 16;

/// What rows and adapters are kept in, and what is added to.
#[derive(Clone, Copy, Debug)]
struct Types {
    rows: DType,
    adapters: DType,
    out: DType,
}

impl Types {
    const EXACT: Self = Self::of(DType::F32, DType::F32);
    /// Those of models in 32 and 16 bits.
    const ALL: [Self; 5] = [
        Self::EXACT,
        Self::of(DType::Bf16, DType::F32),
        Self::of(DType::Bf16, DType::Bf16),
        Self::of(DType::F16, DType::F16),
        Self { adapters: DType::F32, ..Self::of(DType::Bf16, DType::F32) },
    ];

    const fn of(rows: DType, out: DType) -> Self {
        Self { rows, adapters: rows, out }
    }

    /// How much of a number rounding takes where it is kept.
    fn step(self) -> f64 {
        if self.out == DType::F32 { 0.0 } else { 2.02 * step(self.out) }
    }
}

struct Part {
    rank: usize,
    a: Vec<f32>,
    b: Vec<f32>,
    dtype: DType,
    bytes: [Vec<u8>; 2],
}

impl Part {
    fn new(rank: usize, a: Vec<f32>, b: Vec<f32>, dtype: DType) -> Self {
        let [(a_bytes, a), (b_bytes, b)] = [&a, &b].map(|values| encode(values, dtype));
        Self { rank, a, b, dtype, bytes: [a_bytes, b_bytes] }
    }

    fn weights(&self) -> LoraWeights<'_> {
        let [a, b] = self.bytes.each_ref().map(|bytes| PlainElements { dtype: self.dtype, bytes });
        LoraWeights { rank: self.rank, a, b }
    }
}

/// Ranks of each slot's projections.
type Ranks = [[Option<usize>; 3]; SLOTS];

const RANKS: Ranks = [[Some(16), Some(5), None], [Some(1), None, Some(8)], [Some(8), Some(16), Some(3)]];

/// Adapters of every slot for projections of these widths; some are absent.
fn adapters(
    random: &mut Random,
    inputs: usize,
    outputs: &[usize],
    dtype: DType,
    ranks: Ranks,
) -> Vec<Vec<Option<Part>>> {
    let part = |rank: Option<usize>, outputs: usize, random: &mut Random| {
        let rank = rank?;
        Some(Part::new(rank, random.values(rank * inputs), random.values(outputs * rank), dtype))
    };
    let slot = |ranks: [Option<usize>; 3], random: &mut Random| {
        outputs.iter().zip(ranks).map(|(outputs, rank)| part(rank, *outputs, random)).collect()
    };
    ranks.into_iter().map(|ranks| slot(ranks, random)).collect()
}

/// A layer with these adapters.
fn put(
    backend: &mut dyn Backend,
    [inputs, max_rank]: [usize; 2],
    outputs: &[usize],
    dtype: DType,
    adapters: &[Vec<Option<Part>>],
) -> LoraSite {
    let shape = LoraShape { slots: SLOTS, max_rank, inputs, outputs, dtype, experts: None };
    let site = backend.new_lora_site(shape);
    for (slot, parts) in adapters.iter().enumerate() {
        let weights: Vec<Option<LoraWeights<'_>>> = parts.iter().map(|part| part.as_ref().map(Part::weights)).collect();
        write_and_wait(backend, |backend, taken| backend.write_lora(site, slot as u32, &weights, taken));
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

/// Begins a step of sequences, each with its rows and its adapter's slot.
fn begin_sequences(backend: &mut dyn Backend, rows: &[(usize, Option<u32>)]) {
    let count = rows.iter().map(|(rows, _)| rows).sum();
    let tables = [Vec::new()];
    let mut first_row = 0;
    let sequence = |(slot, (num_rows, _)): (usize, &(usize, Option<u32>))| {
        first_row += num_rows;
        Sequence { first_row: first_row - num_rows, num_rows: *num_rows, start: 0, tables: &tables, slot }
    };
    let sequences: Vec<Sequence<'_>> = rows.iter().enumerate().map(sequence).collect();
    // Buffers were made; room for rows of adapters follows them.
    backend.set_slots(rows.len(), 8);
    let (tokens, positions) = (vec![0; count], (0..count as u32).collect::<Vec<_>>());
    backend.set_adapters(&rows.iter().map(|(_, slot)| *slot).collect::<Vec<_>>());
    backend.begin(Batch { tokens: &tokens, positions: &positions, sequences: &sequences });
}

/// Runs one step of sequences, each with its rows and its adapter's slot; the rows after their deltas.
fn run(
    backend: &mut dyn Backend,
    site: LoraSite,
    types: Types,
    rows: &[(usize, Option<u32>)],
    [x_rows, out_rows]: [&[f32]; 2],
) -> Vec<f32> {
    let count: usize = rows.iter().map(|(rows, _)| rows).sum();
    let x = filled_in(backend, x_rows.len() / count, x_rows, types.rows);
    let out = filled_in(backend, out_rows.len() / count, out_rows, types.out);
    begin_sequences(backend, rows);
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

/// Rows of sequences with their adapters' slots: of every slot, some apart, and some without.
const ROWS: [(usize, Option<u32>); 5] = [(1, Some(2)), (3, None), (2, Some(0)), (150, Some(1)), (1, Some(0))];

/// Deltas of all rows against float64, and of some rows alone.
fn check_deltas(
    backend: &mut dyn Backend,
    [inputs, max_rank]: [usize; 2],
    outputs: &[usize],
    types: Types,
    (ranks, rows): (Ranks, &[(usize, Option<u32>)]),
) {
    let mut random = Random(inputs as u64);
    let adapters = adapters(&mut random, inputs, outputs, types.adapters, ranks);
    let site = put(backend, [inputs, max_rank], outputs, types.adapters, &adapters);
    let (count, width) = (rows.iter().map(|(rows, _)| rows).sum::<usize>(), outputs.iter().sum::<usize>());
    let values = |random: &mut Random, width, dtype| -> Vec<f32> {
        random.values(count * width).iter().map(|x| round(*x, dtype)).collect()
    };
    let (x, before) = (values(&mut random, inputs, types.rows), values(&mut random, width, types.out));
    let after = run(backend, site, types, rows, [&x, &before]);
    let slots: Vec<Option<u32>> = rows.iter().flat_map(|(rows, slot)| vec![*slot; *rows]).collect();
    let want: Vec<f64> = (0..count)
        .flat_map(|row| {
            let own = &before[row * width..][..width];
            let x = &x[row * inputs..][..inputs];
            let delta = slots[row].map(|slot| delta(x, &adapters[slot as usize], outputs));
            let delta = delta.unwrap_or_else(|| vec![0.0; width]);
            own.iter().zip(delta).map(|(own, delta)| f64::from(*own) + delta).collect::<Vec<_>>()
        })
        .collect();
    // Sums that are kept in two 16-bit numbers have as many bits.
    let shrunk = if types.rows == DType::F32 { 1e-6 } else { 4.0 * step(types.rows).powi(2) };
    let size = (inputs as f64 / 16.0).sqrt() * max_rank as f64;
    check(&format!("lora of {types:?}"), &after, &want, |index| {
        (1e-4 + shrunk * size) + (1e-6 + types.step()) * want[index].abs()
    });
    // A row alone: the same bits.
    for row in [0, 5, 80, count - 1].into_iter().filter(|row| *row < count) {
        let slot = slots[row];
        let (x, before) = (&x[row * inputs..][..inputs], &before[row * width..][..width]);
        let alone = run(backend, site, types, &[(1, slot)], [x, before]);
        check_same("a row alone", &alone, &after[row * width..][..width]);
    }
}

#[test]
fn deltas_are_added_to_rows_with_adapters() {
    for mut backend in backends() {
        for types in Types::ALL {
            for (inputs, outputs) in [(64, vec![48, 16, 16]), (7, vec![5, 1, 9]), (1000, vec![130, 200, 33])] {
                check_deltas(&mut *backend, [inputs, MAX_RANK], &outputs, types, (RANKS, &ROWS));
            }
        }
    }
}

#[test]
fn deltas_of_high_ranks_and_long_rows() {
    let ranks = [[Some(64), Some(17), None], [Some(32), None, Some(40)], [Some(3), Some(64), Some(50)]];
    for mut backend in backends() {
        for types in Types::ALL {
            check_deltas(&mut *backend, [3336, 64], &[72, 16, 65], types, (ranks, &ROWS));
            // Rows of a low rank before and after one of a high rank.
            let rows = [2, 0, 2, 1, 2].map(|slot| (1, Some(slot)));
            check_deltas(&mut *backend, [3336, 64], &[72, 16, 65], types, (ranks, &rows));
        }
    }
}

#[test]
fn deltas_of_the_rows_of_a_long_prompt() {
    let rows = [(300, Some(2)), (17, None), (1, Some(0)), (230, Some(1)), (33, Some(2))];
    for mut backend in backends() {
        for types in Types::ALL {
            check_deltas(&mut *backend, [1544, MAX_RANK], &[80, 16, 24], types, (RANKS, &rows));
        }
    }
}

#[test]
fn deltas_follow_the_rows_that_are_picked() {
    for mut backend in backends() {
        let outputs = [8, 8, 8];
        let mut random = Random(3);
        let adapters = adapters(&mut random, 16, &outputs, DType::F32, RANKS);
        let site = put(&mut *backend, [16, MAX_RANK], &outputs, DType::F32, &adapters);
        let (x_rows, out_rows) = (random.values(3 * 16), random.values(3 * 24));
        let whole = run(&mut *backend, site, Types::EXACT, &[(2, Some(1)), (1, Some(0))], [&x_rows, &out_rows]);
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

/// A slot is written a piece at a time. Steps that have begun use what it held, steps meanwhile other slots, and steps
/// after it what was written, down to the bits.
#[test]
fn an_adapter_comes_beside_steps() {
    const INPUTS: usize = 12_000;
    // Several pieces, and more of them than may be under way.
    let (outputs, ranks) = ([24_000, 12_000], [[Some(16), Some(8), None], [Some(5), Some(16), None], [None; 3]]);
    for mut backend in backends() {
        let backend = &mut *backend;
        let mut random = Random(5);
        let mut adapters = adapters(&mut random, INPUTS, &outputs, DType::F32, ranks);
        adapters[2] = adapters[0].iter().map(|_| None).collect();
        let site = put(backend, [INPUTS, MAX_RANK], &outputs, DType::F32, &adapters);
        let (x_row, out_row) = (random.values(INPUTS), random.values(36_000));
        let row =
            |backend: &mut dyn Backend, slot| run(backend, site, Types::EXACT, &[(1, Some(slot))], [&x_row, &out_row]);
        let before = [0, 1, 2].map(|slot| row(backend, slot));
        check_same("an empty slot", &before[2], &out_row);
        let (x, out) = (filled(backend, INPUTS, &x_row), filled(backend, 36_000, &out_row));
        begin_sequences(backend, &[(1, Some(1))]);
        backend.host_mut(x).copy_from_slice(&x_row);
        backend.host_mut(out).copy_from_slice(&out_row);
        backend.lora(x, site, out);
        backend.begin_writes();
        let parts: Vec<_> = adapters[0].iter().map(|part| part.as_ref().map(Part::weights)).collect();
        let mut writes = [1, 2].map(|slot| (slot, 0, Taken::Nothing));
        let advance = |backend: &mut dyn Backend, (slot, taken, progress): &mut (u32, usize, Taken)| {
            if *progress != Taken::All {
                *progress = backend.write_lora(site, *slot, &parts, taken);
            }
        };
        writes.iter_mut().for_each(|write| advance(backend, write));
        check_same("a step that has begun", backend.read(out), &before[1]);
        while writes.iter().any(|(.., progress)| *progress != Taken::All) || !backend.has_written() {
            check_same("a step meanwhile", &row(backend, 0), &before[0]);
            writes.iter_mut().for_each(|write| advance(backend, write));
        }
        for slot in [1, 2] {
            check_same("a step after it", &row(backend, slot), &before[0]);
        }
        // What has no adapter leaves nothing of it.
        write_and_wait(backend, |backend, taken| backend.write_lora(site, 2, &[None, None], taken));
        check_same("an empty slot", &row(backend, 2), &out_row);
    }
}
