//! The GPU as operations see it: driver, stream, memory, launches, activation buffers and the batch.

pub(crate) mod activations;
pub(crate) mod arch;
pub(crate) mod background;
pub(crate) mod batch;
pub(crate) mod context;
pub(crate) mod device;
pub(crate) mod handles;
pub(crate) mod joined;
pub(crate) mod libraries;
pub(crate) mod limits;
pub(crate) mod profile;
pub(crate) mod shared_prefix;
pub(crate) mod step_preference;
pub(crate) mod tensor_map;
pub(crate) mod upload;
