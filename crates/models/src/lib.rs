//! Architectures as data, the one decoder that runs them, and the readers of their weights.
//!
//! [`load`] turns a Hugging Face folder into a [`Model`]; [`Model::forward`] runs one step of it over paged key/value memory. An architecture
//! (`arch/`) says what a model is and what its files call the weights; `network` decides which slices a rank loads; `decoder` runs it.

mod activations;
mod arch;
mod batch;
mod builder;
mod cache;
mod decoder;
mod error;
mod feed_forward;
mod linear;
mod load;
mod mixer;
mod model;
mod network;
mod quant;
mod ranks;
mod shapes;
mod tp;
mod weights;

pub use arch::supported;
pub use cache::{CacheGroup, CacheLayout};
pub use decoder::Observer;
pub use error::{ForwardError, LoadError};
pub(crate) use load::Limits;
pub use load::{ActivationRounding, LoadFormat, LoadOptions, Progress, load, read_spec};
pub use model::{Logits, Memory, Model};
pub use weights::save_random;
