//! What lies under deploy/: rendered, run and looked at as its users would.

mod chart;
mod containers;
mod hosts;
mod machines;
mod monitoring;
mod namespaces;
mod networks;
mod pods;
mod proxies;
mod slurm;
mod systemd;
mod tools;
