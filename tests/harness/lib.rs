//! What end-to-end tests stand on: a real `quire serve`, its processes, an HTTP client, and the reference models.

mod client;
pub mod faults;
mod gpu;
mod processes;
mod relay;
mod server;
pub mod zoo;

pub use client::{Ask, Client, Said, Stream};
pub use gpu::{MOST_RANKS_OF_WREN, Needs, group_sizes, is_on_gpu, lacks, max_workers};
pub use processes::{Pid, cpu_ticks, descendants, now_ns, resident_bytes};
pub use relay::Relay;
pub use server::{Server, alone, free_port, quire_binary};

use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests lies in the repository").to_owned()
}
