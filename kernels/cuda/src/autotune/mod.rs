//! How GEMMs are measured on this machine, and what is remembered of it.

pub(crate) mod background;
pub(crate) mod measure;
pub(crate) mod tactics;
pub(crate) mod trial;
