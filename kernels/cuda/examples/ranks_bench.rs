//! Sums between GPUs, in one shot and in two (in f32, in f32 that travels as bf16, and in bf16) and through NCCL.
//!
//! `ranks_bench [RANKS …]` prints microseconds a call, calls following each other on the stream; once for each size of
//! group [default: 2].

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use kernels::ops::{Batch, Comm, DType, Device, ExchangeFailed, Load, Ops, RankPlacement, Sequence};
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
    (if sizes.is_empty() { &[2][..] } else { &sizes }).iter().try_for_each(|ranks| table(*ranks))
}

fn table(ranks: usize) -> Result<(), String> {
    let columns: Result<Vec<_>, String> =
        WAYS.iter().map(|&(name, way, dtype, wire)| Ok((name, measure(How { ranks, way, dtype, wire })?))).collect();
    let columns = columns?;
    println!(
        "{ranks} ranks, us\n{:>10}{}",
        "numbers",
        columns.iter().map(|(name, _)| format!("{name:>12}")).collect::<String>()
    );
    for (index, width) in WIDTHS.iter().enumerate() {
        println!(
            "{width:>10}{}",
            columns.iter().map(|(_, times)| format!("{:>12.2}", times[index])).collect::<String>()
        );
    }
    Ok(())
}

/// A rank's channels to all ranks, its own included.
struct Lines {
    to: Vec<Sender<Vec<u8>>>,
    from: Vec<Receiver<Vec<u8>>>,
}

impl Lines {
    fn exchange(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, ExchangeFailed> {
        self.to.iter().try_for_each(|to| to.send(mine.to_vec())).map_err(|_| ExchangeFailed)?;
        self.from.iter().map(Receiver::recv).collect::<Result<_, _>>().map_err(|_| ExchangeFailed)
    }
}

fn lines(size: usize) -> Vec<Lines> {
    let mut lines: Vec<Lines> = (0..size).map(|_| Lines { to: Vec::new(), from: Vec::new() }).collect();
    for from in 0..size {
        for to in 0..size {
            let (sender, receiver) = channel();
            lines[from].to.push(sender);
            lines[to].from.push(receiver);
        }
    }
    lines
}

/// Microseconds of each width, as rank 0 sees them.
fn measure(how: How) -> Result<Vec<f64>, String> {
    std::thread::scope(|scope| {
        let ranks: Vec<_> = lines(how.ranks)
            .into_iter()
            .enumerate()
            .map(|(at, lines)| scope.spawn(move || rank(at, how, lines)))
            .collect();
        let times: Vec<_> = ranks.into_iter().map(|rank| rank.join().map_err(|_| "a rank panicked")).collect();
        let times: Vec<_> = times.into_iter().collect::<Result<Result<_, String>, _>>()??;
        times.into_iter().next().ok_or("no ranks".to_owned())
    })
}

fn rank(rank: usize, how: How, lines: Lines) -> Result<Vec<f64>, String> {
    let How { ranks, way, dtype, wire } = how;
    let (virtual_env, path) = (std::env::var_os("VIRTUAL_ENV"), std::env::var_os("PATH"));
    let surroundings = Surroundings { named: None, virtual_env: virtual_env.as_deref(), path: path.as_deref() };
    let options = CudaOptions {
        ordinal: rank as u32,
        folders: Folders::of(surroundings),
        kernel_cache: std::env::var_os("QUIRE_KERNEL_CACHE").map(Into::into),
        ranks: Some(way),
        ..CudaOptions::default()
    };
    let mut backend = CudaBackend::open(&options).map_err(|error| error.to_string())?;
    let mut exchange = move |mine: &[u8]| lines.exchange(mine);
    backend.init_comm(RankPlacement { rank, size: ranks }, &mut exchange).map_err(|error| error.to_string())?;
    let flag = backend.new_act(1, 1);
    let mut times = Vec::new();
    for width in WIDTHS {
        let act = backend.new_rounded_act(1, width, dtype);
        let sequence = Sequence { first_row: 0, num_rows: 1, start: 0, tables: &[vec![0]], slot: 0 };
        backend.begin(Batch { tokens: &[0], positions: &[0], sequences: &[sequence] });
        backend.host_mut(act).fill(0.0);
        let calls = |backend: &mut CudaBackend, count| -> Result<f64, String> {
            // Ranks begin together.
            exchange(&[]).map_err(|error| error.to_string())?;
            let start = Instant::now();
            (0..count).for_each(|_| backend.all_reduce(act, wire));
            // The first thing to wait for all of them.
            backend.read(flag);
            Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(count))
        };
        calls(&mut backend, 8)?;
        let mut rounds = [0.0; 5];
        for round in &mut rounds {
            *round = calls(&mut backend, calls_of(width))?;
        }
        rounds.sort_by(f64::total_cmp);
        times.push(rounds[2]);
    }
    exchange(&[]).map_err(|error| error.to_string())?;
    backend.fault().map_or(Ok(times), |fault| Err(fault.to_owned()))
}
