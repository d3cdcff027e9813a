//! Sums between GPUs, in one shot and in two (in f32, in f32 that travels as bf16, and in bf16) and through NCCL.
//!
//! `ranks_bench [RANKS …]` prints microseconds a call, calls following each other on the stream; once for each size of
//! group [default: 2]. Then the same of rows that are added to a residual and normed: their sum alone, the rest alone,
//! and both in one launch.

use std::time::Instant;

use collectives::{Collective, Threads};
use kernels::ops::{Batch, Comm, DType, Device, ExchangeFailed, Load, Norm, NormKind, Ops, RankPlacement, Sequence};
use kernels_cuda::{AllReduce, CudaBackend, CudaOptions, Folders, Surroundings};

/// Calls of a round, fewer of large messages.
fn calls_of(width: usize) -> u32 {
    ((1 << 28) / width).clamp(8, 200) as u32
}

/// Numbers of a message.
const WIDTHS: [usize; 14] = [
    1 << 10,
    1 << 12,
    1 << 13,
    1 << 15,
    1 << 16,
    1 << 17,
    1 << 18,
    1 << 19,
    1 << 20,
    1 << 21,
    1 << 22,
    1 << 23,
    1 << 25,
    1 << 26,
];

/// Rows that are added and normed, of `ROW_WIDTH` numbers.
const ROWS: [usize; 11] = [1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192];
const ROW_WIDTH: usize = 8192;

/// How messages travel.
#[derive(Clone, Copy)]
struct How {
    ranks: usize,
    way: AllReduce,
    dtype: DType,
    wire: DType,
}

/// Ways, the type of numbers, and what they travel as.
const WAYS: [(&str, AllReduce, DType, DType); 8] = [
    ("1 shot f32", AllReduce::OneShot, DType::F32, DType::F32),
    ("as bf16", AllReduce::OneShot, DType::F32, DType::Bf16),
    ("bf16", AllReduce::OneShot, DType::Bf16, DType::Bf16),
    ("2 shots f32", AllReduce::TwoShots, DType::F32, DType::F32),
    ("as bf16", AllReduce::TwoShots, DType::F32, DType::Bf16),
    ("bf16", AllReduce::TwoShots, DType::Bf16, DType::Bf16),
    ("NCCL f32", AllReduce::Nccl, DType::F32, DType::F32),
    ("bf16", AllReduce::Nccl, DType::Bf16, DType::Bf16),
];

fn main() -> Result<(), String> {
    let sizes: Result<Vec<usize>, _> = std::env::args().skip(1).map(|ranks| ranks.parse()).collect();
    let sizes = sizes.map_err(|error| format!("ranks of a group: {error}"))?;
    let sizes = if sizes.is_empty() { vec![2] } else { sizes };
    sizes.iter().try_for_each(|ranks| table(*ranks).and_then(|()| table_of_rows(*ranks)))
}

fn table(ranks: usize) -> Result<(), String> {
    let columns: Result<Vec<_>, String> =
        WAYS.iter().map(|&(name, way, dtype, wire)| Ok((name, measure(How { ranks, way, dtype, wire })?))).collect();
    let columns = columns?;
    print(&format!("{ranks} ranks, us\n   numbers"), &WIDTHS, &columns);
    Ok(())
}

/// What is done to rows of bf16: the sum alone, the norm alone, and both.
const STEPS: [(&str, AllReduce, Steps); 4] = [
    ("1 shot", AllReduce::OneShot, Steps::Sum),
    ("2 shots", AllReduce::TwoShots, Steps::Sum),
    ("add, norm", AllReduce::OneShot, Steps::AddNorm),
    ("all", AllReduce::TwoShots, Steps::All),
];

#[derive(Clone, Copy, PartialEq)]
enum Steps {
    Sum,
    AddNorm,
    All,
}

fn table_of_rows(ranks: usize) -> Result<(), String> {
    let measured = STEPS.iter().map(|&(name, way, steps)| {
        let how = How { ranks, way, dtype: DType::Bf16, wire: DType::Bf16 };
        Ok((name, in_group(how, |rank, threads| measure_rows(rank, how, steps, threads))?))
    });
    let columns: Result<Vec<_>, String> = measured.collect();
    print(&format!("{ranks} ranks, rows of {ROW_WIDTH}, us\n      rows"), &ROWS, &columns?);
    Ok(())
}

fn print(title: &str, sizes: &[usize], columns: &[(&str, Vec<f64>)]) {
    println!("{title}{}", columns.iter().map(|(name, _)| format!("{name:>13}")).collect::<String>());
    for (index, size) in sizes.iter().enumerate() {
        println!(
            "{size:>10}{}",
            columns.iter().map(|(_, times)| format!("{:>13.2}", times[index])).collect::<String>()
        );
    }
}

/// Microseconds of each width, as rank 0 sees them.
fn measure(how: How) -> Result<Vec<f64>, String> {
    in_group(how, |rank, threads| measure_sums(rank, how, threads))
}

/// What rank 0 of a group gives.
fn in_group(how: How, work: impl Fn(usize, Threads) -> Result<Vec<f64>, String> + Sync) -> Result<Vec<f64>, String> {
    let work = &work;
    std::thread::scope(|scope| {
        let ranks: Vec<_> = Threads::group(how.ranks)
            .into_iter()
            .enumerate()
            .map(|(rank, threads)| scope.spawn(move || work(rank, threads)))
            .collect();
        let times: Vec<_> = ranks.into_iter().map(|rank| rank.join().map_err(|_| "a rank panicked")).collect();
        let times: Vec<_> = times.into_iter().collect::<Result<Result<_, String>, _>>()??;
        times.into_iter().next().ok_or("no ranks".to_owned())
    })
}

/// A device that has met those of the other ranks.
fn open(rank: usize, how: How, threads: &mut Threads) -> Result<CudaBackend, String> {
    let (virtual_env, path) = (std::env::var_os("VIRTUAL_ENV"), std::env::var_os("PATH"));
    let surroundings = Surroundings { named: None, virtual_env: virtual_env.as_deref(), path: path.as_deref() };
    let options = CudaOptions {
        ordinal: rank as u32,
        folders: Folders::of(surroundings),
        kernel_cache: std::env::var_os("QUIRE_KERNEL_CACHE").map(Into::into),
        ranks: Some(how.way),
        ..CudaOptions::default()
    };
    let mut backend = CudaBackend::open(&options).map_err(|error| error.to_string())?;
    backend
        .init_comm(RankPlacement { rank, size: how.ranks }, &mut |mine| {
            threads.exchange(mine).map_err(|_| ExchangeFailed)
        })
        .map_err(|error| error.to_string())?;
    Ok(backend)
}

/// A step of as many rows.
fn begin(backend: &mut CudaBackend, rows: usize) {
    let zeros = vec![0; rows];
    let positions: Vec<u32> = (0..rows as u32).collect();
    let sequence = Sequence { first_row: 0, num_rows: rows, start: 0, tables: &[vec![0; rows]], slot: 0 };
    backend.begin(Batch { tokens: &zeros, positions: &positions, sequences: &[sequence] });
}

/// Median time of a call of `run` in microseconds, calls following each other.
fn median(
    backend: &mut CudaBackend,
    threads: &mut Threads,
    count: u32,
    run: impl Fn(&mut CudaBackend),
) -> Result<f64, String> {
    let flag = backend.new_act(*ROWS.iter().max().expect("sizes"), 1);
    let mut calls = |backend: &mut CudaBackend, count| -> Result<f64, String> {
        // Ranks begin together.
        threads.exchange(&[]).map_err(|error| error.to_string())?;
        let start = Instant::now();
        (0..count).for_each(|_| run(backend));
        // The first thing to wait for all of them.
        backend.read(flag);
        Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(count))
    };
    calls(backend, 8)?;
    let mut rounds = [0.0; 5];
    for round in &mut rounds {
        *round = calls(backend, count)?;
    }
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[2])
}

fn measure_sums(rank: usize, how: How, mut threads: Threads) -> Result<Vec<f64>, String> {
    let mut backend = open(rank, how, &mut threads)?;
    let mut times = Vec::new();
    for width in WIDTHS {
        let act = backend.new_rounded_act(1, width, how.dtype);
        begin(&mut backend, 1);
        backend.host_mut(act).fill(0.0);
        times.push(median(&mut backend, &mut threads, calls_of(width), |backend| backend.all_reduce(act, how.wire))?);
    }
    end(&backend, &mut threads, times)
}

fn measure_rows(rank: usize, how: How, steps: Steps, mut threads: Threads) -> Result<Vec<f64>, String> {
    let mut backend = open(rank, how, &mut threads)?;
    let norm = Norm { kind: NormKind::Rms, weight: None, bias: None, eps: 1e-5 };
    let most = *ROWS.iter().max().expect("sizes");
    let [delta, normed] = [(); 2].map(|()| backend.new_rounded_act(most, ROW_WIDTH, how.dtype));
    let residual = backend.new_act(most, ROW_WIDTH);
    let mut times = Vec::new();
    for rows in ROWS {
        begin(&mut backend, rows);
        [delta, residual].into_iter().for_each(|act| backend.host_mut(act).fill(0.0));
        let run = |backend: &mut CudaBackend| {
            if steps != Steps::AddNorm {
                backend.all_reduce(delta, how.wire);
            }
            if steps != Steps::Sum {
                backend.add_norm(residual, delta, norm, normed);
            }
        };
        times.push(median(&mut backend, &mut threads, calls_of(rows * ROW_WIDTH), run)?);
    }
    end(&backend, &mut threads, times)
}

/// Waits for all ranks: others may still write to this one's memory.
fn end(backend: &CudaBackend, threads: &mut Threads, times: Vec<f64>) -> Result<Vec<f64>, String> {
    threads.exchange(&[]).map_err(|error| error.to_string())?;
    backend.fault().map_or(Ok(times), |fault| Err(fault.to_owned()))
}
