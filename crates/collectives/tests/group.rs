//! Groups of threads and of processes: sums, gathers, death, abort, and names that an earlier group left behind.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

use collectives::{AbortHandle, Collective, CollectiveError, RankPlacement, SharedMemory, Solo, Threads};

/// Longer than any test runs: whoever waits for it has failed.
const LONG: Duration = Duration::from_secs(120);
const SIZES: [usize; 8] = [0, 1, 7, 8192, 8193, 65_536, 65_537, 200_001];

fn fresh_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("collectives-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed))
}

fn place(rendezvous: &str, rank: usize, world_size: usize, timeout: Duration) -> RankPlacement {
    RankPlacement { rendezvous: rendezvous.to_owned(), rank, world_size, timeout }
}

fn join(rendezvous: &str, rank: usize, world_size: usize) -> Result<SharedMemory, CollectiveError> {
    SharedMemory::join(place(rendezvous, rank, world_size, LONG), AbortHandle::new())
}

fn name_is_gone(rendezvous: &str) -> bool {
    !std::fs::read_dir("/dev/shm")
        .unwrap()
        .any(|entry| entry.unwrap().file_name().to_string_lossy().contains(rendezvous))
}

/// Runs `body` on every rank, each a thread: in a group in shared memory, then in one of threads. Gives what they
/// returned, by rank.
fn on_all<T: Send>(world_size: usize, body: impl Fn(&mut dyn Collective) -> T + Sync) -> Vec<[T; 2]> {
    let name = &fresh_name();
    let on_rank = |mut threads: Threads| {
        let in_shared_memory = body(&mut join(name, threads.rank(), world_size).unwrap());
        [in_shared_memory, body(&mut threads)]
    };
    thread::scope(|scope| {
        let on_rank = &on_rank;
        let ranks: Vec<_> =
            Threads::group(world_size).into_iter().map(|threads| scope.spawn(move || on_rank(threads))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn value(rank: usize, i: usize, round: usize) -> f32 {
    // Not exactly summable, so the order of addition shows in the bits.
    ((rank * 31 + i * 7 + round * 3) % 1000) as f32 * 0.123_456 + 1e-3 / (1 + i) as f32
}

#[test]
fn sums_are_in_rank_order_and_the_same_everywhere() {
    for world_size in [1, 2, 3, 5] {
        on_all(world_size, |group| {
            for round in 0..4 {
                for len in SIZES {
                    let mut data: Vec<f32> = (0..len).map(|i| value(group.rank(), i, round)).collect();
                    group.all_reduce_sum(&mut data).unwrap();
                    let want = |i| (1..world_size).fold(value(0, i, round), |sum, rank| sum + value(rank, i, round));
                    assert!(
                        data.iter().enumerate().all(|(i, x)| x.to_bits() == want(i).to_bits()),
                        "{world_size} {len}"
                    );
                }
            }
        });
    }
}

#[test]
fn bytes_are_exchanged_as_they_are() {
    assert_eq!(Solo.exchange(&[0, 200, 255]).unwrap(), [[0, 200, 255]]);
    let byte = |rank: usize, i: usize| (rank * 97 + i * 31 + i / 256) as u8;
    on_all(3, |group| {
        for len in [0, 1, 13, 262_144, 262_145] {
            let mine: Vec<u8> = (0..len).map(|i| byte(group.rank(), i)).collect();
            let all = group.exchange(&mine).unwrap();
            let want: Vec<Vec<u8>> = (0..3).map(|rank| (0..len).map(|i| byte(rank, i)).collect()).collect();
            assert!(all == want, "{len} bytes");
            // Sums and bytes take turns.
            let mut sum = [group.rank() as f32];
            group.all_reduce_sum(&mut sum).unwrap();
            assert_eq!(sum, [3.0]);
        }
    });
}

#[test]
fn gathers_are_in_rank_order() {
    on_all(3, |group| {
        for len in SIZES {
            let mine: Vec<f32> = (0..len).map(|i| value(group.rank(), i, 0)).collect();
            let mut all = vec![0.0; 3 * len];
            group.all_gather(&mine, &mut all).unwrap();
            assert!((0..3).all(|rank| (0..len).all(|i| all[rank * len + i] == value(rank, i, 0))));
        }
        assert!(matches!(group.all_gather(&[1.0], &mut [0.0]), Err(CollectiveError::Sizes { .. })));
    });
}

#[test]
fn many_small_steps_keep_in_turn() {
    let sums = on_all(2, |group| {
        let mut x = [1.0 + group.rank() as f32];
        for _ in 0..20_000 {
            group.all_reduce_sum(&mut x).unwrap();
            x[0] *= 0.5;
        }
        x[0]
    });
    assert_eq!(sums, [[1.5; 2]; 2]);
}

#[test]
fn solo_is_a_group_of_one() {
    let mut all = [0.0; 2];
    Solo.all_gather(&[1.0, 2.0], &mut all).unwrap();
    Solo.all_reduce_sum(&mut all).unwrap();
    assert_eq!((all, Solo.rank(), Solo.world_size()), ([1.0, 2.0], 0, 1));
    assert!(Solo.all_gather(&[1.0], &mut all).is_err());
}

#[test]
fn abort_ends_a_wait_on_every_rank() {
    let name = fresh_name();
    let abort = AbortHandle::new();
    assert_eq!(abort.missing(), []);
    thread::scope(|scope| {
        let ours = abort.clone();
        let (waits, name) = (std::sync::mpsc::channel::<()>(), &name);
        let (tell, told) = waits;
        let waiting = [0, 1].map(|rank| {
            let (ours, tell) = (if rank == 0 { ours.clone() } else { AbortHandle::new() }, tell.clone());
            scope.spawn(move || {
                let mut group = SharedMemory::join(place(name, rank, 3, LONG), ours).unwrap();
                tell.send(()).unwrap();
                let first = group.all_reduce_sum(&mut [1.0]);
                (first, group.all_reduce_sum(&mut [1.0]))
            })
        });
        // The third joins and then does nothing.
        let idle = join(name, 2, 3).unwrap();
        (0..2).for_each(|_| told.recv().unwrap());
        assert!(name_is_gone(name));
        // Whom the other two wait for can be told from outside.
        while abort.missing() != [2] {
            thread::yield_now();
        }
        abort.abort();
        for rank in waiting {
            let (first, second) = rank.join().unwrap();
            assert!(matches!(first, Err(CollectiveError::Aborted)));
            assert!(matches!(second, Err(CollectiveError::Aborted)));
        }
        drop(idle);
    });
}

#[test]
fn abort_ends_forming() {
    for rank in [0, 1] {
        let (name, abort) = (fresh_name(), AbortHandle::new());
        let theirs = abort.clone();
        let forming = thread::spawn(move || SharedMemory::join(place(&name, rank, 2, LONG), theirs).map(drop));
        abort.abort();
        assert!(matches!(forming.join().unwrap(), Err(CollectiveError::Aborted)));
    }
}

#[test]
fn alone_is_a_deadline_and_the_name_goes() {
    for rank in [0, 1] {
        let name = fresh_name();
        let result = SharedMemory::join(place(&name, rank, 2, Duration::from_millis(50)), AbortHandle::new());
        assert!(matches!(result, Err(CollectiveError::Deadline { deadline_ms: 50 })));
        assert!(name_is_gone(&name));
    }
}

#[test]
fn a_rank_that_leaves_ends_the_group() {
    let results = on_all(2, |group| {
        group.all_reduce_sum(&mut [1.0]).unwrap();
        if group.rank() == 1 {
            return Ok(()); // drops its place
        }
        group.all_reduce_sum(&mut [1.0])
    });
    assert!(matches!(results[0], [Err(CollectiveError::Aborted), Err(CollectiveError::PeerGone { rank: 1 })]));
}

/// A rank in a process of its own: this test binary, told its place on standard input.
fn process(name: &str, rank: usize, world_size: usize, timeout: Duration) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "a_rank_of_its_own", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let told = format!("{name} {rank} {world_size} {}\n", timeout.as_millis());
    child.stdin.as_mut().unwrap().write_all(told.as_bytes()).unwrap();
    child
}

/// The first line of a child's output that begins with `word`.
fn line(child: &mut Child, word: &str) -> String {
    let out = child.stdout.as_mut().unwrap();
    let mut lines = BufReader::with_capacity(1, out).lines().map(Result::unwrap);
    lines.find_map(|line| line.find(word).map(|at| line[at..].to_owned())).expect("the child ended early")
}

#[test]
#[ignore = "runs only as a child of the other tests"]
fn a_rank_of_its_own() {
    let mut told = String::new();
    std::io::stdin().read_line(&mut told).unwrap();
    let told: Vec<&str> = told.split_whitespace().collect();
    let [name, rank, world_size, timeout] = told[..] else { return };
    let timeout = Duration::from_millis(timeout.parse().unwrap());
    let place = place(name, rank.parse().unwrap(), world_size.parse().unwrap(), timeout);
    let mut group = SharedMemory::join(place, AbortHandle::new()).unwrap();
    println!("joined");
    let mut rounds = 0u64;
    loop {
        // Large enough for both meetings.
        let mut data = vec![1.0; 10_000];
        match group.all_reduce_sum(&mut data) {
            Ok(()) => assert!(data.iter().all(|&x| x == world_size.parse::<f32>().unwrap())),
            Err(error) => {
                println!("ended after {rounds}: {error}");
                return;
            }
        }
        rounds += 1;
        if rounds == 100 {
            println!("at-work");
        }
    }
}

#[test]
fn a_killed_process_does_not_hang_the_others() {
    let name = fresh_name();
    let timeout = Duration::from_secs(2);
    let mut ranks: Vec<Child> = (0..3).map(|rank| process(&name, rank, 3, timeout)).collect();
    ranks.iter_mut().for_each(|rank| assert_eq!(line(rank, "at-work"), "at-work"));
    assert!(name_is_gone(&name), "the name is gone while the group works");
    ranks[1].kill().unwrap(); // SIGKILL
    ranks[1].wait().unwrap();
    for rank in [0, 2] {
        assert!(line(&mut ranks[rank], "ended").contains(": "));
        assert!(ranks[rank].wait().unwrap().success());
    }
}

#[test]
fn what_a_killed_group_left_is_replaced() {
    let name = fresh_name();
    // Rank 0 and rank 1 of three come, then are killed while forming: the name stays.
    let mut old: Vec<Child> = [0, 1].map(|rank| process(&name, rank, 3, LONG)).into();
    while name_is_gone(&name) {
        thread::yield_now();
    }
    for child in &mut old {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(!name_is_gone(&name));
    // The next ranks come in the worst order: the visitors find the old segment first.
    thread::scope(|scope| {
        let name = &name;
        let visitors = [1, 2].map(|rank| scope.spawn(move || join(name, rank, 3).unwrap().all_reduce_sum(&mut [1.0])));
        let mut host = join(name, 0, 3).unwrap();
        let mut sum = [1.0];
        host.all_reduce_sum(&mut sum).unwrap();
        assert_eq!(sum, [3.0]);
        visitors.into_iter().for_each(|visitor| visitor.join().unwrap().unwrap());
    });
    assert!(name_is_gone(&name));
}
