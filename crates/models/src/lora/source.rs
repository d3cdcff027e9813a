//! What an adapter's folder has, and how it names a module's matrices.

use std::collections::BTreeMap;

use super::config::Config;
use super::modules::Module;
use super::vocabulary::KnownTokens;
use crate::weights::Tensors;

/// A module's two matrices: names of tensors.
#[derive(Clone, Copy)]
pub(super) struct Names<'a> {
    pub module: &'a str,
    pub is_embedding: bool,
    pub a: &'a str,
    pub b: &'a str,
}

/// What an adapter's folder has.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub modules: &'a BTreeMap<String, Module>,
    pub tensors: Tensors<'a>,
    pub config: &'a Config,
    /// Of its embedding and its head.
    pub known: KnownTokens,
}
