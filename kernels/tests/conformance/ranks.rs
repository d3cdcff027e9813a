//! Sums and gatherings over the ranks of a group, a GPU each: needs two of them.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use kernels::ops::{Act, Backend, Batch, Place, RowSelection, Sequence};
use kernels_cuda::{CudaOptions, RankOptions};

use crate::gpu;
use crate::random::Random;

/// More than any message below, so that all are exchanged in one shot; and none.
const WAYS: [usize; 2] = [8 << 20, 0];
/// Repetitions of a call with other numbers: what a race breaks, it breaks rarely.
const ROUNDS: usize = 10;

/// Rows and columns of what is summed or gathered: odd ones, one number, and more than all blocks take at once.
const SHAPES: [(usize, usize); 6] = [(1, 1), (1, 63), (3, 341), (7, 1024), (16, 8192), (130, 4099)];

/// A rank's channels to all ranks, its own included.
struct Lines {
    to: Vec<Sender<Vec<u8>>>,
    from: Vec<Receiver<Vec<u8>>>,
}

impl Lines {
    fn exchange(&self, mine: &[u8]) -> Vec<Vec<u8>> {
        self.to.iter().for_each(|to| to.send(mine.to_vec()).expect("a living rank"));
        self.from.iter().map(|from| from.recv().expect("a living rank")).collect()
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

/// Runs `work` as each of two ranks, their devices having met; `None` where there are not two.
fn as_two_ranks<T: Send>(one_shot_bytes: usize, work: impl Fn(Place, &mut dyn Backend) -> T + Sync) -> Option<Vec<T>> {
    let size = 2;
    if kernels_cuda::gpus().is_ok_and(|gpus| gpus >= size as u32) {
        let rank = |(rank, lines): (usize, Lines)| {
            let ranks = Some(RankOptions { one_shot_bytes });
            let mut backend = gpu::open(&CudaOptions { ordinal: rank as u32, ranks, ..gpu::options() });
            let place = Place { rank, size };
            backend.join(place, &mut |mine| Ok(lines.exchange(mine))).expect("ranks that meet");
            let result = work(place, &mut *backend);
            assert_eq!(backend.fault(), None);
            // Nobody leaves while others may still write to its memory.
            lines.exchange(&[]);
            result
        };
        return Some(thread::scope(|scope| {
            let rank = &rank;
            let ranks: Vec<_> = lines(size).into_iter().enumerate().map(|one| scope.spawn(move || rank(one))).collect();
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

#[test]
fn sums_are_the_same_everywhere() {
    for one_shot_bytes in WAYS {
        let sums = as_two_ranks(one_shot_bytes, |place, backend| {
            let mut sums = Vec::new();
            for (rows, width) in SHAPES {
                let act = backend.new_act(rows, width);
                begin(backend, rows);
                for round in 0..ROUNDS {
                    write(backend, act, &numbers(place.rank, round, rows * width));
                    backend.sum_over_ranks(act);
                    let sum = backend.read(act).to_vec();
                    let parts = [0, 1].map(|rank| numbers(rank, round, rows * width));
                    let differs = sum.iter().zip(&parts[0]).zip(&parts[1]).position(|((sum, a), b)| *sum != a + b);
                    assert_eq!(differs, None, "rank {}, {rows} x {width}, round {round}", place.rank);
                    sums.push(sum.last().copied());
                }
            }
            sums
        });
        assert!(sums.is_none_or(|sums| sums[0] == sums[1]));
    }
}

/// Calls follow each other without the host looking in between.
#[test]
fn calls_in_a_row_do_not_overtake_each_other() {
    for one_shot_bytes in WAYS {
        as_two_ranks(one_shot_bytes, |place, backend| {
            let acts = [(1, 8192), (2, 33), (5, 4096)].map(|(rows, width)| (rows, width, backend.new_act(rows, width)));
            for (rows, width, act) in acts {
                begin(backend, rows);
                write(backend, act, &vec![(place.rank + 1) as f32; rows * width]);
                // 1 and 2 become 3 and 3; from then on each call doubles.
                for _ in 0..100 {
                    backend.sum_over_ranks(act);
                    backend.scale(act, 0.5);
                }
                assert!(backend.read(act).iter().all(|x| *x == 1.5), "rank {}, {rows} x {width}", place.rank);
            }
        });
    }
}

#[test]
fn parts_of_rows_lie_side_by_side() {
    for one_shot_bytes in WAYS {
        as_two_ranks(one_shot_bytes, |place, backend| {
            // One column of the last rank is padding.
            for (rows, width) in [(1, 50), (1, 64128), (5, 77), (33, 16000), (300, 20000)] {
                let (part, whole) = (backend.new_act(rows, width), backend.new_act(rows, 2 * width - 1));
                begin(backend, rows);
                for round in 0..3 {
                    write(backend, part, &numbers(place.rank, round, rows * width));
                    backend.gather_over_ranks(part, whole);
                    let parts = [0, 1].map(|rank| numbers(rank, round, rows * width));
                    let rows_of = |rank: usize| parts[rank].chunks_exact(width);
                    let want = rows_of(0).zip(rows_of(1)).flat_map(|(a, b)| [a, &b[..width - 1]].concat());
                    assert!(backend.read(whole).iter().copied().eq(want), "rank {}, {rows} x {width}", place.rank);
                }
            }
        });
    }
}

/// As logits are: those of a long prompt's last row alone.
#[test]
fn few_rows_of_a_long_step_are_gathered() {
    const ROWS: usize = 300;
    const WIDTH: usize = 50;
    for one_shot_bytes in WAYS {
        as_two_ranks(one_shot_bytes, |place, backend| {
            let all = backend.new_act(ROWS, WIDTH);
            let [part, whole] = [WIDTH, 2 * WIDTH].map(|width| backend.new_act(2, width));
            begin(backend, ROWS);
            write(backend, all, &numbers(place.rank, 0, ROWS * WIDTH));
            backend.gather(all, RowSelection { rows: &[ROWS as u32 - 1] }, part);
            backend.gather_over_ranks(part, whole);
            let last = |rank| numbers(rank, 0, ROWS * WIDTH).split_off((ROWS - 1) * WIDTH);
            assert_eq!(backend.read(whole), [last(0), last(1)].concat(), "rank {}", place.rank);
        });
    }
}
