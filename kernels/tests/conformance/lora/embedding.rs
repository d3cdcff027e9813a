//! Adapters of an embedding: against float64, with tokens that the table lacks, and the same bits whatever else is in
//! the batch.

use super::super::{Random, backends, check, check_same, filled};
use super::{MAX_RANK, Part, SLOTS, begin};
use kernels::ops::{Backend, DType, Entries, LoraShape, LoraSite, write_and_wait};

const ENTRIES: usize = 50;
const WIDTH: usize = 133;
const FIRST: u32 = 10;
const SCALE: f32 = 1.5;

fn put(backend: &mut dyn Backend, adapters: &[Part]) -> LoraSite {
    let outputs = [WIDTH];
    let shape = LoraShape {
        slots: SLOTS,
        max_rank: MAX_RANK,
        inputs: ENTRIES,
        outputs: &outputs,
        dtype: DType::F32,
        experts: None,
    };
    let site = backend.new_lora_site(shape);
    for (slot, part) in adapters.iter().enumerate() {
        let parts = [Some(part.weights())];
        write_and_wait(backend, |backend, taken| backend.write_lora(site, slot as u32, &parts, taken));
    }
    site
}

/// Adds deltas to the rows of a step of one sequence a token, each with its adapter's slot.
fn run(backend: &mut dyn Backend, site: LoraSite, rows: &[(u32, Option<u32>)], before: &[f32]) -> Vec<f32> {
    let out = filled(backend, WIDTH, before);
    begin(backend, rows);
    backend.host_mut(out).copy_from_slice(before);
    backend.lora_embed(site, Entries { first: FIRST, scale: SCALE }, out);
    backend.read(out).to_vec()
}

#[test]
fn an_embeddings_deltas_are_added_to_rows_with_adapters() {
    let mut random = Random(11);
    let part = |rank| {
        let [a, b] = [ENTRIES, WIDTH].map(|features| random.values(rank * features));
        Part::new(rank, a, b, DType::F32)
    };
    let adapters: Vec<Part> = [MAX_RANK, 5, 1].map(part).into();
    let rows: Vec<(u32, Option<u32>)> = (0..150_u32).map(|row| (row % 71, (row % 4).checked_sub(1))).collect();
    let before = random.values(rows.len() * WIDTH);
    let delta = |(token, slot): (u32, Option<u32>)| {
        let entry = token.checked_sub(FIRST).map(|entry| entry as usize).filter(|entry| *entry < ENTRIES)?;
        let Part { rank, a, b, .. } = &adapters[slot? as usize];
        let dot = |b: &[f32]| (0..*rank).map(|j| f64::from(a[j * ENTRIES + entry]) * f64::from(b[j])).sum::<f64>();
        Some(b.chunks(*rank).map(|b| f64::from(SCALE) * dot(b)).collect::<Vec<f64>>())
    };
    let row_of = |(row, own): (&(u32, Option<u32>), &[f32])| {
        let delta = delta(*row).unwrap_or_else(|| vec![0.0; WIDTH]);
        own.iter().zip(delta).map(|(own, delta)| f64::from(*own) + delta).collect::<Vec<f64>>()
    };
    let want: Vec<f64> = rows.iter().zip(before.chunks(WIDTH)).flat_map(row_of).collect();
    for mut backend in backends() {
        let site = put(&mut *backend, &adapters);
        let after = run(&mut *backend, site, &rows, &before);
        check("lora_embed", &after, &want, |_| 1e-4);
        for row in [13, 14, 145] {
            let own = &before[row * WIDTH..][..WIDTH];
            let alone = run(&mut *backend, site, &rows[row..=row], own);
            check_same("a row alone", &alone, &after[row * WIDTH..][..WIDTH]);
        }
        let nobody: Vec<(u32, Option<u32>)> = rows.iter().map(|(token, _)| (*token, None)).collect();
        check_same("no adapters", &run(&mut *backend, site, &nobody, &before), &before);
    }
}
