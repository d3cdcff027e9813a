//! Architectures as data, the one decoder that runs them, and the readers of their weights.
//!
//! [`load`] turns a Hugging Face folder into a [`Model`], whose [`Runner`] runs its steps over paged key/value memory.
//! An architecture (`arch/`) says what a model is and what its files call the weights. A [`Network`] is some of its
//! layers on a [`Device`], which several networks may share: `network/build.rs` decides which slices a rank loads,
//! `network/forward.rs` is the forward pass.

mod activations;
mod arch;
mod batch;
mod builder;
mod cache;
mod device;
mod error;
mod feed_forward;
mod linear;
mod load;
mod lora;
mod mixer;
mod model;
mod network;
mod placement;
pub mod pooling;
mod quant;
mod ranks;
mod runner;
mod shapes;
mod tp;
mod weights;

pub use arch::{pooled, supported};
pub use cache::{CacheGroup, CacheLayout, StateOptions};
pub use device::Device;
pub use error::{ForwardError, LoadError};
pub use load::{
    ActivationRounding, LoadFormat, LoadOptions, NetworkHead, Progress, ScoreTokens, load, load_network, read_spec,
};
pub use lora::{Adapter, AdapterError, AdapterLayout, AdapterWrite, LoraOptions, SlotBytes};
pub use model::{Logits, Memory, Model};
pub use network::{Network, Observer, Outputs, Step};
pub use placement::{Placement, Stage};
pub use runner::{PooledRows, PooledStep, Runner};
pub use weights::save_random;
