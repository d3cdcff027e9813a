//! `quire collect-env`: what a bug report should say about the machine.

use std::{fs, thread};

use crate::environment::Environment;

/// Prints it.
pub fn print(environment: &Environment) {
    for (name, value) in facts(environment) {
        println!("{name:<16} {value}");
    }
}

fn facts(environment: &Environment) -> Vec<(&'static str, String)> {
    vec![
        ("quire", service_kit::VERSION.to_owned()),
        ("kernel", field("/proc/sys/kernel/osrelease", "")),
        ("architecture", std::env::consts::ARCH.to_owned()),
        ("distribution", field("/etc/os-release", "PRETTY_NAME=").trim_matches('"').to_owned()),
        ("CPU", field("/proc/cpuinfo", "model name").trim_start_matches([' ', '\t', ':']).to_owned()),
        ("CPU features", cpu_features()),
        ("CPUs", thread::available_parallelism().map_or(0, usize::from).to_string()),
        ("memory", field("/proc/meminfo", "MemTotal:").trim().to_owned()),
        ("available", field("/proc/meminfo", "MemAvailable:").trim().to_owned()),
        ("model cache", environment.models.hub_cache.display().to_string()),
        ("quire cache", environment.models.quire_cache.display().to_string()),
        ("hub", environment.models.endpoint.clone()),
        ("hub token", if environment.models.token.is_some() { "given" } else { "none" }.to_owned()),
    ]
}

/// What follows `name` in the first line of a file that begins with it.
fn field(path: &str, name: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("unknown").to_owned()
}

/// Those that the kernels choose by.
fn cpu_features() -> String {
    const WANTED: &[&str] =
        &["avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_tile", "asimd", "bf16"];
    let flags = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = flags.lines().find(|line| line.starts_with("flags") || line.starts_with("Features"));
    let has = |name: &&&str| line.unwrap_or_default().split_whitespace().any(|flag| flag == **name);
    let found: Vec<_> = WANTED.iter().filter(has).copied().collect();
    found.join(" ")
}
