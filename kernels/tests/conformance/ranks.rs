//! Sums and gatherings over the ranks of a group, a GPU each: needs two of them, and eight for all.

use std::sync::{Mutex, PoisonError};
use std::thread;

use collectives::{Collective, Threads};
use kernels::ops::{
    Act, Backend, Batch, DType, Epilogue, ExchangeFailed, Norm, NormKind, RankPlacement, RowSelection, Sequence,
};
use kernels_cuda::{AllReduce, CudaOptions};

use crate::gpu;
use crate::random::Random;
use crate::{encode, filled, filled_in, host, round};

/// All sums below in one shot, all in two, and all through NCCL.
const WAYS: [AllReduce; 3] = [AllReduce::OneShot, AllReduce::TwoShots, AllReduce::Nccl];
/// Ranks of a group.
const SIZES: [usize; 4] = [2, 3, 4, 8];
/// Repetitions of a call with other numbers: what a race breaks, it breaks rarely.
const ROUNDS: usize = 10;
/// The same of the largest shape.
const LONG_ROUNDS: usize = 2;

/// Rows and columns of what is summed or gathered: odd ones, one number, more than all blocks take at once, and more
/// than fits at once, in several chunks.
const SHAPES: [(usize, usize); 8] =
    [(1, 1), (1, 63), (3, 341), (7, 1024), (16, 8192), (130, 4099), (600, 8191), (1500, 8191)];

/// Who a rank is, and how its group adds.
#[derive(Clone, Copy)]
struct Way {
    place: RankPlacement,
    all_reduce: AllReduce,
}

impl Way {
    /// Whether ranks write to each other, which rounds numbers to what they travel as. NCCL adds numbers as they are,
    /// in its own order.
    fn among_peers(self) -> bool {
        self.all_reduce != AllReduce::Nccl
    }
}

/// Held by the only group that runs. A device that frees memory or loads a kernel waits for all kernels on it; were
/// those of another group among them, which wait for ranks that wait in the same way, neither group would go on.
static ONE_GROUP: Mutex<()> = Mutex::new(());

/// Runs `work` as the ranks of groups of each size and way, their devices having met; what the ranks of each return.
/// Groups for which there are not enough GPUs are left out.
fn as_ranks<T: Send>(work: impl Fn(Way, &mut dyn Backend) -> T + Sync) -> Vec<Vec<T>> {
    let groups = SIZES.into_iter().flat_map(|size| WAYS.map(|way| (size, way)));
    groups.filter_map(|(size, way)| as_group(size, way, &work)).collect()
}

fn as_group<T: Send>(
    size: usize,
    all_reduce: AllReduce,
    work: &(impl Fn(Way, &mut dyn Backend) -> T + Sync),
) -> Option<Vec<T>> {
    if kernels_cuda::gpus().is_ok_and(|gpus| gpus >= size as u32) {
        let _alone = ONE_GROUP.lock().unwrap_or_else(PoisonError::into_inner);
        // Kernels are compiled once, not by each rank of each test.
        gpu::backend(true);
        let rank = |(rank, mut threads): (usize, Threads)| {
            let ranks = Some(all_reduce);
            let mut backend = gpu::open(&CudaOptions { ordinal: rank as u32, ranks, ..gpu::options() });
            let place = RankPlacement { rank, size };
            backend
                .init_comm(place, &mut |mine| threads.exchange(mine).map_err(|_| ExchangeFailed))
                .expect("ranks that meet");
            let result = work(Way { place, all_reduce }, &mut *backend);
            assert_eq!(backend.fault(), None);
            // Nobody leaves while others may still write to its memory.
            threads.exchange(&[]).expect("living ranks");
            result
        };
        return Some(thread::scope(|scope| {
            let rank = &rank;
            let ranks: Vec<_> =
                Threads::group(size).into_iter().enumerate().map(|one| scope.spawn(move || rank(one))).collect();
            ranks.into_iter().map(|rank| rank.join().expect("a rank")).collect()
        }));
    }
    eprintln!("skipped: there are not {size} GPUs");
    None
}

/// A step of `rows` rows, so that buffers have as many.
fn begin(backend: &mut dyn Backend, rows: usize) {
    let zeros = vec![0; rows];
    let positions: Vec<u32> = (0..rows as u32).collect();
    let sequence = Sequence { first_row: 0, num_rows: rows, start: 0, tables: &[vec![0; rows]], slot: 0 };
    backend.begin(Batch { tokens: &zeros, positions: &positions, sequences: &[sequence] });
}

/// What a rank has in a round.
fn numbers(rank: usize, round: usize, count: usize) -> Vec<f32> {
    Random((rank * 1000 + round) as u64).values(count)
}

fn write(backend: &mut dyn Backend, act: Act, numbers: &[f32]) {
    backend.host_mut(act).copy_from_slice(numbers);
}

/// What all ranks have of a round, in rank order.
fn parts(size: usize, round: usize, count: usize) -> Vec<Vec<f32>> {
    (0..size).map(|rank| numbers(rank, round, count)).collect()
}

/// Whether a sum of `parts`, numbers of about 1, is what `way` gives: through NCCL in any order, otherwise exactly what
/// adding in rank order does, each number and the sum rounded to what it travels as.
fn is_sum(sum: f32, parts: impl Iterator<Item = f32>, wire: DType, way: Way) -> bool {
    if !way.among_peers() {
        return (sum - parts.sum::<f32>()).abs() <= 1e-5;
    }
    let want = parts.map(|part| round(part, wire)).reduce(|a, b| a + b).expect("ranks");
    sum == round(want, wire)
}

#[test]
fn sums_are_the_same_everywhere() {
    for wire in [DType::F32, DType::Bf16, DType::F16] {
        let groups = as_ranks(|way, backend| sums(way, wire, backend));
        for sums in groups {
            assert!(sums.iter().all(|of_rank| *of_rank == sums[0]), "{wire:?}: the same bits on all of {}", sums.len());
        }
    }
}

/// All shapes and rounds as this rank sees them, each what it should be.
fn sums(way: Way, wire: DType, backend: &mut dyn Backend) -> Vec<Vec<f32>> {
    let place = way.place;
    let mut sums = Vec::new();
    for (rows, width) in SHAPES {
        let act = backend.new_act(rows, width);
        begin(backend, rows);
        for round in 0..if rows < 1000 { ROUNDS } else { LONG_ROUNDS } {
            write(backend, act, &numbers(place.rank, round, rows * width));
            backend.all_reduce(act, wire);
            let sum = backend.read(act).to_vec();
            let parts = parts(place.size, round, rows * width);
            let differs = (0..sum.len()).find(|i| !is_sum(sum[*i], parts.iter().map(|part| part[*i]), wire, way));
            assert_eq!(differs, None, "{place:?}, {wire:?}, {rows} x {width}, round {round}");
            sums.push(sum);
        }
    }
    sums
}

/// Calls follow each other without the host looking in between.
#[test]
fn calls_in_a_row_do_not_overtake_each_other() {
    as_ranks(|Way { place, .. }, backend| {
        let acts = [(1, 8192), (2, 33), (1500, 4096), (5, 4096)]
            .map(|(rows, width)| (rows, width, backend.new_act(rows, width)));
        let mean = (place.size + 1) as f32 / 2.0;
        for (rows, width, act) in acts {
            begin(backend, rows);
            write(backend, act, &vec![(place.rank + 1) as f32; rows * width]);
            // 1, 2, ... become their mean everywhere, and stay it.
            for _ in 0..100 {
                backend.all_reduce(act, DType::F32);
                backend.scale(act, 1.0 / place.size as f32);
            }
            assert!(backend.read(act).iter().all(|x| *x == mean), "{place:?}, {rows} x {width}");
        }
    });
}

#[test]
fn parts_of_rows_lie_side_by_side() {
    as_ranks(|Way { place, .. }, backend| {
        // One column of the last rank is padding.
        for (rows, width) in [(1, 50), (1, 64128), (5, 77), (33, 16000), (300, 20000)] {
            let all = place.size * width - 1;
            let (part, whole) = (backend.new_act(rows, width), backend.new_act(rows, all));
            begin(backend, rows);
            for round in 0..3 {
                write(backend, part, &numbers(place.rank, round, rows * width));
                backend.all_gather(part, whole);
                let parts = parts(place.size, round, rows * width);
                let row = |row: usize| parts.iter().flat_map(move |part| part[row * width..][..width].iter().copied());
                let want = (0..rows).flat_map(|at| row(at).take(all));
                assert!(backend.read(whole).iter().copied().eq(want), "{place:?}, {rows} x {width}");
            }
        }
    });
}

/// As logits are: those of a long prompt's last row alone.
#[test]
fn few_rows_of_a_long_step_are_gathered() {
    const ROWS: usize = 300;
    const WIDTH: usize = 50;
    as_ranks(|Way { place, .. }, backend| {
        let all = backend.new_act(ROWS, WIDTH);
        let [part, whole] = [WIDTH, place.size * WIDTH].map(|width| backend.new_act(2, width));
        begin(backend, ROWS);
        write(backend, all, &numbers(place.rank, 0, ROWS * WIDTH));
        backend.gather(all, RowSelection { rows: &[ROWS as u32 - 1] }, part);
        backend.all_gather(part, whole);
        let last = parts(place.size, 0, ROWS * WIDTH).into_iter().map(|part| part[(ROWS - 1) * WIDTH..].to_vec());
        assert_eq!(backend.read(whole), last.collect::<Vec<_>>().concat(), "{place:?}");
    });
}

/// Rows, inputs and outputs of a product whose outputs are summed.
const PRODUCTS: [[usize; 3]; 4] = [[1, 512, 256], [7, 256, 1024], [65, 512, 520], [700, 256, 2048]];

/// A part is rounded when it is written, and the sum once more: whole numbers, so that both are known exactly.
#[test]
fn a_product_that_is_summed_and_added_is_rounded_where_it_is_made() {
    as_ranks(|way, backend| {
        for shape in PRODUCTS {
            let size = way.place.size;
            let parts: Vec<Part> = (0..size).map(|rank| Part::new(rank, shape)).collect();
            let [rows, k, n] = shape;
            let own = &parts[way.place.rank];
            let matrix = backend.load_matrix(host(DType::Bf16, n, k, &encode(&own.w, DType::Bf16).0), DType::Bf16);
            let before: Vec<f32> = (0..rows * n).map(|i| (i % 100) as f32).collect();
            let (x, delta) =
                (filled_in(backend, k, &own.x, DType::Bf16), filled(backend, n, &vec![f32::NAN; rows * n]));
            let (residual, normed) = (filled(backend, n, &before), backend.new_rounded_act(rows, n, DType::Bf16));
            backend.matmul(x, matrix, None, Epilogue::Store, delta);
            backend.all_reduce(delta, DType::Bf16);
            backend.add_norm(
                residual,
                delta,
                Norm { kind: NormKind::Rms, weight: None, bias: None, eps: 1e-5 },
                normed,
            );
            let after = backend.read(residual).to_vec();
            let some_rows = (0..rows).step_by(1 + rows / 8).chain([rows - 1]);
            for (row, col) in some_rows.flat_map(|row| (0..n).map(move |col| (row, col))) {
                let (sum, before) = (after[row * n + col], before[row * n + col]);
                let of_ranks: Vec<f32> =
                    parts.iter().map(|part| round(part.product(row, col, k), DType::Bf16)).collect();
                let want = before + round(of_ranks.iter().sum(), DType::Bf16);
                // NCCL may round after each rank.
                let size: f32 = of_ranks.iter().map(|part| part.abs()).sum();
                let near = if way.among_peers() { 0.0 } else { size / 64.0 };
                assert!(
                    (sum - want).abs() <= near,
                    "{:?}, {shape:?}, row {row}, column {col}: {sum}, {want}",
                    way.place
                );
            }
            let row = |rows: &[f32]| rows[(rows.len() - n)..].to_vec();
            let (last, normed) = (row(&after), row(backend.read(normed)));
            let scale = (last.iter().map(|x| x * x).sum::<f32>() / n as f32 + 1e-5).sqrt().recip();
            let differs = last.iter().zip(&normed).find(|(x, y)| (*x * scale - **y).abs() > 0.01 * (1.0 + y.abs()));
            assert_eq!(differs, None, "the norm of {shape:?}");
        }
    });
}

/// Rows and columns of sums that are added and normed: some of one chunk and some of several, and a width that packets
/// do not divide.
const ADDED: [(usize, usize); 6] = [(1, 64), (3, 8192), (5, 1001), (130, 5120), (300, 4096), (2600, 8192)];

/// Types of what is summed, what it travels as, and normed rows.
const TYPES: [(DType, DType, DType); 4] = [
    (DType::F32, DType::F32, DType::F32),
    (DType::F32, DType::F16, DType::F16),
    (DType::F32, DType::Bf16, DType::Bf16),
    (DType::Bf16, DType::Bf16, DType::Bf16),
];

#[test]
fn sums_of_rows_are_added_and_normed() {
    as_ranks(|way, backend| {
        for (types, shape) in TYPES.into_iter().flat_map(|types| ADDED.map(|shape| (types, shape))) {
            // The largest is for the types of most models.
            if shape.0 < 1000 || types == TYPES[3] {
                add_and_norm(way, backend, types, shape);
            }
        }
    });
}

fn add_and_norm(way: Way, backend: &mut dyn Backend, types: (DType, DType, DType), (rows, width): (usize, usize)) {
    let (dtype, wire, out) = types;
    let (size, count) = (way.place.size, rows * width);
    let [delta, normed] = [dtype, out].map(|dtype| backend.new_rounded_act(rows, width, dtype));
    let residual = backend.new_act(rows, width);
    let norm = Norm { kind: NormKind::Rms, weight: None, bias: None, eps: 1e-5 };
    begin(backend, rows);
    // Again, so that what is left of the first sum would be seen.
    for turn in 0..2 {
        let parts: Vec<Vec<f32>> =
            parts(size, turn, count).into_iter().map(|part| part.iter().map(|x| round(*x, dtype)).collect()).collect();
        let before = numbers(size, turn, count);
        write(backend, delta, &parts[way.place.rank]);
        write(backend, residual, &before);
        backend.all_reduce(delta, wire);
        backend.add_norm(residual, delta, norm, normed);
        let after = backend.read(residual).to_vec();
        let differs = (0..count).find(|i| {
            let want: f32 = parts.iter().map(|part| round(part[*i], wire)).sum();
            // NCCL adds numbers as they are.
            let size: f32 = parts.iter().map(|part| part[*i].abs()).sum();
            let near = if way.among_peers() { 0.0 } else { size / 64.0 };
            (after[*i] - (before[*i] + round(want, wire))).abs() > near
        });
        assert_eq!(differs, None, "{:?}, {types:?}, {rows} x {width}", way.place);
        let rows_normed = backend.read(normed).to_vec();
        for (after, normed) in after.chunks(width).zip(rows_normed.chunks(width)) {
            let scale = (after.iter().map(|x| x * x).sum::<f32>() / width as f32 + 1e-5).sqrt().recip();
            let differs = after.iter().zip(normed).find(|(x, y)| (*x * scale - **y).abs() > 0.01 * (1.0 + y.abs()));
            assert_eq!(differs, None, "the norm of {rows} x {width}, {types:?}");
        }
    }
}

/// What a rank multiplies: whole numbers up to 8.
struct Part {
    x: Vec<f32>,
    w: Vec<f32>,
}

impl Part {
    fn new(rank: usize, [rows, k, n]: [usize; 3]) -> Self {
        let mut random = Random((100 + rank) as u64);
        let mut whole = |count| random.values(count).into_iter().map(|x| (x * 8.0).round().clamp(-8.0, 8.0)).collect();
        Self { x: whole(rows * k), w: whole(n * k) }
    }

    fn product(&self, row: usize, col: usize, k: usize) -> f32 {
        self.x[row * k..][..k].iter().zip(&self.w[col * k..][..k]).map(|(x, w)| x * w).sum()
    }
}
