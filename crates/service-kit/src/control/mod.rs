//! The control plane: health, readiness with reason, drain, info, abort, metrics, on every process.

mod client;
mod question;
mod server;

pub use client::ControlClient;
pub use question::{Question, abort, ask, drained};
pub use server::{ControlServer, Facts, Handler};
/// What implementations of [`Handler`] with async methods carry.
pub use tonic::async_trait;
