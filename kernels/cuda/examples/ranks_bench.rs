//! Sums between two GPUs, in one shot (in f32, and in bf16) and through NCCL.
//!
//! `ranks_bench [BYTES …]` prints microseconds a call, calls following each other on the stream; once for each size of
//! chunks.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use kernels::ops::{Batch, Comm, DType, Device, ExchangeFailed, Load, Ops, RankPlacement, Sequence};
use kernels_cuda::{CudaBackend, CudaOptions, Folders, RankOptions, Surroundings};

const RANKS: usize = 2;
const CALLS: u32 = 200;
/// Numbers of a message.
const WIDTHS: [usize; 10] = [1 << 10, 1 << 12, 1 << 13, 1 << 15, 1 << 16, 1 << 17, 1 << 18, 1 << 19, 1 << 21, 1 << 25];

fn main() -> Result<(), String> {
    let chunks: Result<Vec<usize>, _> = std::env::args().skip(1).map(|bytes| bytes.parse()).collect();
    let chunks = chunks.map_err(|error| format!("bytes of a chunk: {error}"))?;
    let usual = [RankOptions::default().one_shot_bytes];
    (if chunks.is_empty() { &usual[..] } else { &chunks }).iter().try_for_each(|bytes| table(*bytes))
}

fn table(one_shot_bytes: usize) -> Result<(), String> {
    println!("chunks of {one_shot_bytes} bytes");
    println!("{:>10} {:>12} {:>12} {:>12}", "numbers", "f32 us", "bf16 us", "NCCL f32 us");
    let [whole, half] = [DType::F32, DType::Bf16].map(|wire| measure(one_shot_bytes, wire));
    let (whole, half, nccl) = (whole?, half?, measure(0, DType::F32)?);
    for (index, width) in WIDTHS.iter().enumerate() {
        println!("{width:>10} {:>12.2} {:>12.2} {:>12.2}", whole[index], half[index], nccl[index]);
    }
    Ok(())
}

/// How messages travel.
#[derive(Clone, Copy)]
struct How {
    ranks: RankOptions,
    wire: DType,
}

/// Microseconds of each width, as rank 0 sees them.
fn measure(one_shot_bytes: usize, wire: DType) -> Result<Vec<f64>, String> {
    let how = How { ranks: RankOptions { one_shot_bytes }, wire };
    let ((to_first, from_second), (to_second, from_first)) = (channel(), channel());
    std::thread::scope(|scope| {
        let first = scope.spawn(|| rank(0, how, to_second, from_second));
        let second = scope.spawn(|| rank(1, how, to_first, from_first));
        let times = first.join().map_err(|_| "a rank panicked")?;
        second.join().map_err(|_| "a rank panicked")??;
        times
    })
}

fn rank(rank: usize, how: How, to: Sender<Vec<u8>>, from: Receiver<Vec<u8>>) -> Result<Vec<f64>, String> {
    let How { ranks, wire } = how;
    let (virtual_env, path) = (std::env::var_os("VIRTUAL_ENV"), std::env::var_os("PATH"));
    let surroundings = Surroundings { named: None, virtual_env: virtual_env.as_deref(), path: path.as_deref() };
    let options = CudaOptions {
        ordinal: rank as u32,
        folders: Folders::of(surroundings),
        kernel_cache: std::env::var_os("QUIRE_KERNEL_CACHE").map(Into::into),
        ranks: Some(ranks),
        ..CudaOptions::default()
    };
    let mut backend = CudaBackend::open(&options).map_err(|error| error.to_string())?;
    let mut exchange = move |mine: &[u8]| -> Result<Vec<Vec<u8>>, ExchangeFailed> {
        to.send(mine.to_vec()).map_err(|_| ExchangeFailed)?;
        let other = from.recv().map_err(|_| ExchangeFailed)?;
        Ok(if rank == 0 { vec![mine.to_vec(), other] } else { vec![other, mine.to_vec()] })
    };
    backend.init_comm(RankPlacement { rank, size: RANKS }, &mut exchange).map_err(|error| error.to_string())?;
    let flag = backend.new_act(1, 1);
    let mut times = Vec::new();
    for width in WIDTHS {
        let act = backend.new_act(1, width);
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
        calls(&mut backend, 20)?;
        let mut rounds = [0.0; 5];
        for round in &mut rounds {
            *round = calls(&mut backend, CALLS)?;
        }
        rounds.sort_by(f64::total_cmp);
        times.push(rounds[2]);
    }
    exchange(&[]).map_err(|error| error.to_string())?;
    backend.fault().map_or(Ok(times), |fault| Err(fault.to_owned()))
}
