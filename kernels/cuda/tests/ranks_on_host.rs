//! The kernels that ranks add up with, compiled for a host and run by threads: groups of more ranks than a machine has
//! GPUs, and a look at every word that is sent. It shows what an order of words can break, not what a GPU's memory can.

use std::fs;
use std::path::Path;
use std::process::Command;

/// What is compiled, side by side, so that the host's headers are found.
const SOURCES: [(&str, &str); 9] = [
    ("ranks.cu", include_str!("../csrc/comm/ranks.cu")),
    ("exchange.cuh", include_str!("../csrc/comm/exchange.cuh")),
    ("one_shot.cuh", include_str!("../csrc/comm/one_shot.cuh")),
    ("two_shots.cuh", include_str!("../csrc/comm/two_shots.cuh")),
    ("after_sum.cuh", include_str!("../csrc/comm/after_sum.cuh")),
    ("add_norm_row.cuh", include_str!("host/add_norm_row.cuh")),
    ("ranks.cpp", include_str!("host/ranks.cpp")),
    ("packets.cuh", include_str!("host/packets.cuh")),
    ("quire.cuh", include_str!("host/quire.cuh")),
];

const RANKS: [&str; 5] = ["2", "3", "4", "5", "8"];
const SEEDS: [&str; 6] = ["1", "2", "3", "4", "5", "6"];

/// The program; `None` where no compiler has what it needs of C++20.
fn compile(folder: &Path) -> Option<std::path::PathBuf> {
    for (name, source) in SOURCES {
        fs::write(folder.join(name), source).expect("a temporary folder");
    }
    let has_barriers = "#include <barrier>\nint main() {}\n";
    fs::write(folder.join("barrier.cpp"), has_barriers).expect("a temporary folder");
    let run = |source: &str, program: &str| {
        let flags = ["-std=c++20", "-O1", "-pthread", "-Wno-unknown-pragmas", "-o", program, source];
        Command::new("c++").args(flags).current_dir(folder).output()
    };
    if !run("barrier.cpp", "barrier").is_ok_and(|output| output.status.success()) {
        println!("skipped: c++ is missing, or has no barriers of C++20");
        return None;
    }
    let compiled = run("ranks.cpp", "ranks").expect("a compiler");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    Some(folder.join("ranks"))
}

#[test]
fn ranks_exchange_all_kinds_of_messages() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let Some(program) = compile(folder.path()) else { return };
    for ranks in RANKS {
        for seed in SEEDS {
            // Chunks of a few packets: messages have many.
            let output = Command::new(&program).args([ranks, seed, "20", "3"]).output().expect("a program");
            let said = String::from_utf8_lossy(if output.stderr.is_empty() { &output.stdout } else { &output.stderr });
            assert!(output.status.success(), "{ranks} ranks, seed {seed}: {said}");
        }
    }
}
