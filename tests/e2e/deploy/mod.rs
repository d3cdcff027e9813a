//! What lies under deploy/: rendered, run and looked at as its users would.

mod chart;
mod compose;
mod containers;
mod gateways;
mod hosts;
mod linters;
mod machines;
mod monitoring;
mod namespaces;
mod networks;
mod of_vllm;
mod pods;
mod proxies;
mod relayed;
mod slurm;
mod systemd;
mod tools;
mod two_nodes;
