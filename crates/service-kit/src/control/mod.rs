//! The control plane: health, readiness with reason, drain, info, abort, metrics, on every process.

mod client;
mod server;

pub use client::{ControlClient, channel};
pub use server::{ControlServer, Handler};
