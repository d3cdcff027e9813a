//! The processes behind a server, read from `/proc`.

use std::fs;

pub use rustix::process::Pid;

/// A process of the tree below a supervisor.
#[derive(Clone, Debug)]
pub struct Descendant {
    /// Its id.
    pub pid: Pid,
    /// Which part of the pipeline it is: the first argument (`gateway`, `scheduler`, ...).
    pub role: String,
}

/// Nanoseconds of CLOCK_MONOTONIC, the clock of profiles.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// All processes below `parent`.
pub fn descendants(parent: Pid) -> Vec<Descendant> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(raw) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let Some(pid) = Pid::from_raw(raw) else { continue };
        if stat_fields(pid).is_some_and(|fields| fields[1] == parent.as_raw_nonzero().to_string()) {
            let command = fs::read_to_string(format!("/proc/{raw}/cmdline")).unwrap_or_default();
            let role = command.split('\0').nth(1).unwrap_or_default().to_owned();
            found.push(Descendant { pid, role });
            found.extend(descendants(pid));
        }
    }
    found
}

/// CPU time that a process has used, in clock ticks (1/100 s).
pub fn cpu_ticks(pid: Pid) -> u64 {
    let Some(fields) = stat_fields(pid) else { return 0 };
    let ticks = |field: usize| fields[field].parse::<u64>().unwrap_or(0);
    ticks(11) + ticks(12)
}

/// Resident memory of a process.
pub fn resident_bytes(pid: Pid) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// The fields of `/proc/<pid>/stat` behind the command's name: state, parent, ...
fn stat_fields(pid: Pid) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}
