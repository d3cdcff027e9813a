//! Deltas of experts: against float64, for pairs of row and expert in tiles of any size, and the same bits whatever
//! else is in the batch.

use kernels::ops::{ExpertRouting, MatrixGroup, MatrixUse};

use super::super::routing::PLAIN;
use super::*;

/// Experts that a row chooses.
const TOP_K: usize = PLAIN.top_k;

/// A layer of experts whose own products are biases alone, so that what adapters add to is known bit for bit.
struct Layer {
    inputs: usize,
    outputs: Vec<usize>,
    /// `[experts, width]`.
    bias: Vec<f32>,
    /// By slot and expert.
    adapters: Vec<Vec<Vec<Option<Part>>>>,
}

/// A layer on a device.
#[derive(Clone, Copy)]
struct Loaded {
    zeros: MatrixGroup,
    bias: kernels::ops::Vector,
    site: LoraSite,
    width: usize,
}

impl Layer {
    fn new(random: &mut Random, inputs: usize, outputs: &[usize], experts: usize, types: Types, ranks: Ranks) -> Self {
        let width = outputs.iter().sum::<usize>();
        let bias = random.values(experts * width).iter().map(|x| round(*x, types.out)).collect();
        // Experts of one slot have other ranks than their neighbours, and some no adapter.
        let mut of_expert = |expert: usize| {
            let mut turned = ranks;
            turned.rotate_left(expert % SLOTS);
            adapters(random, inputs, outputs, types.adapters, turned)
        };
        let by_expert: Vec<_> = (0..experts).map(&mut of_expert).collect();
        let mut adapters: Vec<Vec<_>> = (0..SLOTS).map(|_| Vec::new()).collect();
        for slots in by_expert {
            slots.into_iter().zip(&mut adapters).for_each(|(parts, slot)| slot.push(parts));
        }
        Self { inputs, outputs: outputs.to_vec(), bias, adapters }
    }

    fn width(&self) -> usize {
        self.outputs.iter().sum()
    }

    fn experts(&self) -> usize {
        self.bias.len() / self.width()
    }

    fn load(&self, backend: &mut dyn Backend, types: Types, max_rank: usize) -> Loaded {
        let (width, inputs) = (self.width(), self.inputs);
        let zeros = encode(&vec![0.0; width * inputs], types.rows).0;
        let members: Vec<_> = (0..self.experts())
            .map(|_| backend.load_matrix(host(types.rows, width, inputs, &zeros), types.rows))
            .collect();
        let experts = Some(self.experts());
        let shape =
            LoraShape { slots: SLOTS, max_rank, inputs, outputs: &self.outputs, dtype: types.adapters, experts };
        let site = backend.new_lora_site(shape);
        for (slot, experts) in self.adapters.iter().enumerate() {
            let weights: Vec<_> = experts.iter().flatten().map(|part| part.as_ref().map(Part::weights)).collect();
            write_and_wait(backend, |backend, taken| backend.write_lora(site, slot as u32, &weights, taken));
        }
        Loaded {
            zeros: backend.group_matrices(&members, MatrixUse::Experts),
            bias: backend.load_vector(&self.bias),
            site,
            width,
        }
    }

    /// What a pair's product and deltas are.
    fn want(&self, x: &[f32], expert: usize, slot: Option<u32>) -> Vec<f64> {
        let own = self.bias[expert * self.width()..][..self.width()].iter().map(|x| f64::from(*x));
        match slot {
            None => own.collect(),
            Some(slot) => {
                let delta = delta(x, &self.adapters[slot as usize][expert], &self.outputs);
                own.zip(delta).map(|(own, delta)| own + delta).collect()
            }
        }
    }
}

/// Both layers of experts of a step: what goes into the first is one row for all its pairs, what goes into the second
/// is a row for each.
struct Mlp {
    up: Layer,
    down: Layer,
    types: Types,
}

/// What a step is of.
struct Rows<'a> {
    x: &'a [f32],
    logits: &'a [f32],
    sequences: &'a [(usize, Option<u32>)],
}

impl Mlp {
    fn new(inputs: usize, outputs: &[usize], experts: usize, types: Types, ranks: Ranks) -> Self {
        let mut random = Random((inputs + experts) as u64);
        let up = Layer::new(&mut random, inputs, outputs, experts, types, ranks);
        // What the first gives goes into the second as it is kept.
        let types_down = Types { rows: types.out, ..types };
        let down = Layer::new(&mut random, up.width(), &[outputs[0]], experts, types_down, ranks);
        Self { up, down, types }
    }

    fn load(&self, backend: &mut dyn Backend, max_rank: usize) -> [Loaded; 2] {
        let down = Types { rows: self.types.out, ..self.types };
        [self.up.load(backend, self.types, max_rank), self.down.load(backend, down, max_rank)]
    }

    /// What both layers give.
    fn run(&self, backend: &mut dyn Backend, loaded: [Loaded; 2], rows: &Rows<'_>) -> [Vec<f32>; 2] {
        let Rows { x, logits, sequences } = rows;
        let (count, experts) = (x.len() / self.up.inputs, self.up.experts());
        let x_act = filled_in(backend, self.up.inputs, x, self.types.rows);
        let logits_act = filled(backend, experts, logits);
        let routing = backend.new_expert_routing(count, TOP_K);
        let room = |backend: &mut dyn Backend, width| backend.new_rounded_act(count * TOP_K, width, self.types.out);
        let outs = loaded.map(|layer| room(backend, layer.width));
        begin_sequences(backend, sequences);
        backend.host_mut(x_act).copy_from_slice(x);
        backend.host_mut(logits_act).copy_from_slice(logits);
        backend.route(logits_act, PLAIN, routing);
        self.add(backend, loaded, routing, [x_act, outs[0], outs[1]])
    }

    fn add(
        &self,
        backend: &mut dyn Backend,
        loaded: [Loaded; 2],
        routing: ExpertRouting,
        acts: [kernels::ops::Act; 3],
    ) -> [Vec<f32>; 2] {
        for (index, Loaded { zeros, bias, site, .. }) in loaded.into_iter().enumerate() {
            backend.expert_matmul(acts[index], zeros, Some(bias), routing, acts[index + 1]);
            backend.expert_lora(acts[index], site, routing, acts[index + 1]);
        }
        [acts[1], acts[2]].map(|act| backend.read(act).to_vec())
    }

    /// What both layers should have given, if the first gave `raised`.
    fn want(&self, rows: &Rows<'_>, raised: &[f32]) -> [Vec<f64>; 2] {
        let (inputs, experts, width) = (self.up.inputs, self.up.experts(), self.up.width());
        let slots = rows.sequences.iter().flat_map(|(rows, slot)| vec![*slot; *rows]);
        let mut both = [Vec::new(), Vec::new()];
        for (row, slot) in slots.enumerate() {
            for (place, expert) in chosen(&rows.logits[row * experts..][..experts]).into_iter().enumerate() {
                both[0].extend(self.up.want(&rows.x[row * inputs..][..inputs], expert, slot));
                both[1].extend(self.down.want(&raised[(row * TOP_K + place) * width..][..width], expert, slot));
            }
        }
        both
    }
}

/// The best experts of a row, best first.
fn chosen(logits: &[f32]) -> [usize; TOP_K] {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    std::array::from_fn(|place| order[place])
}

/// Logits of rows most of which like the first expert.
fn liked(random: &mut Random, rows: usize, experts: usize) -> Vec<f32> {
    let mut logits = random.values(rows * experts);
    logits.chunks_mut(experts).for_each(|row| row[0] += 0.7);
    logits
}

fn check_mlp(
    backend: &mut dyn Backend,
    mlp: &Mlp,
    loaded: [Loaded; 2],
    max_rank: usize,
    sequences: &[(usize, Option<u32>)],
) {
    let (count, types) = (sequences.iter().map(|(rows, _)| rows).sum::<usize>(), mlp.types);
    let (inputs, experts, mut random) = (mlp.up.inputs, mlp.up.experts(), Random(count as u64));
    let x: Vec<f32> = random.values(count * inputs).iter().map(|x| round(*x, types.rows)).collect();
    let logits = liked(&mut random, count, experts);
    let rows = Rows { x: &x, logits: &logits, sequences };
    let got = mlp.run(backend, loaded, &rows);
    let want = mlp.want(&rows, &got[0]);
    for ((got, want), layer) in got.iter().zip(&want).zip([&mlp.up, &mlp.down]) {
        let largest = want.iter().fold(1.0, |most, x| x.abs().max(most));
        let size = (layer.inputs as f64 / 16.0).sqrt() * max_rank as f64;
        let what = format!("{} {types:?}, {inputs} inputs, {experts} experts, {count} rows", backend.describe());
        check(&what, got, want, |index| {
            1e-5 * largest + 1e-5 * size + types.step() * want[index].abs() + 1e-6 * want[index].abs()
        });
    }
    // A row alone: the same bits.
    let slots: Vec<Option<u32>> = sequences.iter().flat_map(|(rows, slot)| vec![*slot; *rows]).collect();
    for row in [0, 5, 80, count - 1].into_iter().filter(|row| *row < count) {
        let alone = Rows {
            x: &x[row * inputs..][..inputs],
            logits: &logits[row * experts..][..experts],
            sequences: &[(1, slots[row])],
        };
        let alone = mlp.run(backend, loaded, &alone);
        for (alone, (got, layer)) in alone.iter().zip(got.iter().zip(loaded)) {
            check_same("a row alone", alone, &got[row * TOP_K * layer.width..][..TOP_K * layer.width]);
        }
    }
}

/// Steps of few and many rows, of one slot and of several.
const STEPS: [&[(usize, Option<u32>)]; 5] = [
    &[(1, Some(1))],
    &[(1, None), (2, Some(2))],
    &[(1, Some(2)), (1, Some(0)), (1, None), (1, Some(1)), (1, Some(2)), (1, Some(0)), (1, Some(1))],
    &ROWS,
    &[(300, Some(1)), (3, None), (40, Some(2)), (2, Some(0))],
];

#[test]
fn deltas_are_added_to_pairs_of_rows_and_experts() {
    for mut backend in backends() {
        for types in Types::ALL {
            for (inputs, outputs, experts) in [(64, [48, 48], 4), (7, [5, 9], 3), (200, [130, 33], 16)] {
                let mlp = Mlp::new(inputs, &outputs, experts, types, RANKS);
                let loaded = mlp.load(&mut *backend, MAX_RANK);
                STEPS.into_iter().for_each(|rows| check_mlp(&mut *backend, &mlp, loaded, MAX_RANK, rows));
            }
        }
    }
}

#[test]
fn deltas_of_experts_of_high_ranks() {
    let ranks = [[Some(64), Some(17), None], [Some(32), None, Some(40)], [Some(3), Some(64), Some(50)]];
    for mut backend in backends() {
        for types in Types::ALL {
            let mlp = Mlp::new(520, &[40, 40], 5, types, ranks);
            let loaded = mlp.load(&mut *backend, 64);
            [STEPS[0], STEPS[2], STEPS[3]]
                .into_iter()
                .for_each(|rows| check_mlp(&mut *backend, &mlp, loaded, 64, rows));
        }
    }
}

#[test]
fn deltas_of_experts_follow_the_rows_that_are_picked() {
    for mut backend in backends() {
        let backend = &mut *backend;
        let mlp = Mlp::new(16, &[8, 8], 4, Types::EXACT, RANKS);
        let loaded = mlp.load(backend, MAX_RANK);
        let mut random = Random(9);
        let (x, logits) = (random.values(3 * 16), liked(&mut random, 3, 4));
        let sequences = [(2, Some(1)), (1, Some(0))];
        let whole = mlp.run(backend, loaded, &Rows { x: &x, logits: &logits, sequences: &sequences });
        let [all, all_logits] = [(16, &x), (4, &logits)].map(|(width, values)| filled(backend, width, values));
        let [some, some_logits] = [16, 4].map(|width| filled(backend, width, &vec![0.0; 2 * width]));
        let outs = loaded.map(|layer| backend.new_act(2 * TOP_K, layer.width));
        let routing = backend.new_expert_routing(3, TOP_K);
        begin_sequences(backend, &sequences);
        assert!(backend.adds_deltas());
        backend.host_mut(all).copy_from_slice(&x);
        backend.host_mut(all_logits).copy_from_slice(&logits);
        let picked = RowSelection { rows: &[1, 2] };
        backend.select_adapters(picked);
        backend.gather(all, picked, some);
        backend.gather(all_logits, picked, some_logits);
        backend.route(some_logits, PLAIN, routing);
        let got = mlp.add(backend, loaded, routing, [some, outs[0], outs[1]]);
        for (got, (whole, layer)) in got.iter().zip(whole.iter().zip(loaded)) {
            check_same("picked rows", got, &whole[TOP_K * layer.width..]);
        }
        // A step without adapters adds nothing, although slots are full.
        let sequences = [(3, None)];
        let rows = Rows { x: &x, logits: &logits, sequences: &sequences };
        let got = mlp.run(backend, loaded, &rows);
        assert!(!backend.adds_deltas());
        let want = mlp.want(&rows, &got[0]);
        got.iter().zip(&want).for_each(|(got, want)| check("no adapters", got, want, |_| 0.0));
    }
}
