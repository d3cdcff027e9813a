//! What lies under deploy/: rendered, run and looked at as its users would.

mod chart;
mod containers;
mod machines;
mod monitoring;
mod pods;
mod proxies;
mod tools;
