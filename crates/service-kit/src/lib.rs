//! What every Quire process needs: logging, traces, the control plane, drain, metrics.
//!
//! A process is told in order: [`run`] sets the stage and calls the service's body with a [`Process`]; the body says
//! what it is doing through [`Status`], serves [`control`] and ends when [`Process::shutdown`] is cancelled.

mod args;
pub mod control;
mod gateway_ports;
mod log;
pub mod metrics;
pub mod profile;
mod run;
mod shared_args;
mod status;
pub mod trace;
pub mod values;

pub use args::{CommonArgs, LogFormat, parse_flags};
pub use gateway_ports::{GatewayPorts, NoGatewayPorts};
pub use link::Address;
pub use run::{Process, StartAgain, TRY_AGAIN, Threads, run};
pub use shared_args::{
    FingerprintArgs, GroupArgs, LengthArgs, LinkArgs, LoraArgs, ReplicaArgs, ServerArgs, StepDefaults,
    TokenizerFileArgs,
};
pub use status::{LoadProgress, Readiness, Status};
pub use tokio_util::sync::CancellationToken;

/// The version that all processes report.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
