//! How many tokens an adapter knows: its embedding and its head may have other rows than the model's.

use std::collections::BTreeMap;

use super::error::{misshapen, tensor_error};
use super::modules::{Module, is_named};
use super::{AdapterError, AdapterLayout, LoraForm, Projection, Vocabulary};
use crate::weights::{Tensor, TensorLocation, Tensors};

/// Rows of an adapter's embedding and head, its own or the model's.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownTokens {
    embedding: usize,
    head: usize,
    /// It has one of the two.
    is_own: bool,
}

impl KnownTokens {
    /// Rows of the embedding, or of the head.
    pub(super) fn of(&self, form: LoraForm) -> usize {
        if form.is_embedding() { self.embedding } else { self.head }
    }

    /// Tokens that the adapter knows, where these are its own.
    pub(super) fn vocab_size(&self) -> Option<usize> {
        self.is_own.then_some(self.embedding)
    }
}

impl AdapterLayout {
    /// The tokens that a file with these modules knows.
    pub(super) fn known_tokens(
        &self,
        modules: &BTreeMap<String, Module>,
        tensors: Tensors<'_>,
    ) -> Result<KnownTokens, AdapterError> {
        let own = self.vocab.own;
        let mut known = KnownTokens { embedding: own, head: own, is_own: false };
        let mut named = None;
        for (module, found) in modules {
            let Some((form, tensor)) = self.own_matrix(module, found, tensors)? else { continue };
            let rows = tensor.shape[0];
            known.is_own = true;
            match form.is_embedding() {
                true => {
                    known.embedding = rows;
                    named.get_or_insert(tensor.name);
                }
                false => (known.head, named) = (rows, Some(tensor.name)),
            }
        }
        let KnownTokens { embedding, head, .. } = known;
        match named.filter(|_| head > embedding) {
            None => Ok(known),
            Some(tensor) => {
                let reason = format!(
                    "the head gives {head} tokens, and the embedding knows {embedding}: save both with the adapter \
                     (modules_to_save of embed_tokens and lm_head, or save_embedding_layers)"
                );
                Err(tensor_error(&tensor, reason))
            }
        }
    }

    /// What a module has in place of the model's matrix, if it is the embedding or the head and has one. PEFT writes
    /// the model's own beside the adapters of embeddings and heads: it is in place of it where it was given other rows.
    pub(super) fn own_matrix<'a>(
        &self,
        module: &str,
        found: &Module,
        tensors: Tensors<'a>,
    ) -> Result<Option<(LoraForm, Tensor<'a>)>, AdapterError> {
        let (name, is_saved) = match (&found.saved, &found.frozen) {
            (Some(saved), _) => (saved, true),
            (None, Some(frozen)) => (frozen, false),
            (None, None) => return Ok(None),
        };
        let tensor = tensors.find(name).map_err(Box::new)?;
        let form = self.check_vocabulary(module, &tensor)?;
        Ok((is_saved || tensor.shape[0] != self.vocab.own).then_some((form, tensor)))
    }

    /// Whether a module is the embedding or the head. Fails where it is neither, or its matrix does not fit this model.
    fn check_vocabulary(&self, module: &str, tensor: &Tensor<'_>) -> Result<LoraForm, AdapterError> {
        let named =
            |form: LoraForm, location: &TensorLocation| form != LoraForm::Linear && is_named(&location.tensor, module);
        let mut ours = self.layers.iter().flat_map(|layer| layer.projections.iter().map(|one| (layer.form, one)));
        let ours = ours.find(|(form, one)| named(*form, &one.location));
        let mut elsewhere = self.elsewhere.iter().filter(|(form, location)| named(*form, location));
        let (form, width) = match (ours, elsewhere.next()) {
            (Some((form, Projection { shape: [outputs, inputs], .. })), _) => {
                (form, Some(if form.is_embedding() { *outputs } else { *inputs }))
            }
            (None, Some((form, _))) => (*form, None),
            (None, None) => {
                let reason = format!(
                    "{module:?} is no embedding and no head of this model that takes adapters, and other modules \
                     cannot be replaced: merge the adapter into its model"
                );
                return Err(tensor_error(&tensor.name, reason));
            }
        };
        let Vocabulary { own, extra } = self.vocab;
        let is_known = |rows: usize| rows == own || (extra > 0 && rows > 0 && rows <= own + extra);
        match tensor.shape {
            [rows, found] if is_known(*rows) && width.is_none_or(|width| width == *found) => Ok(form),
            [_, found] => Err(misshapen(form, tensor, &[own, width.unwrap_or(*found)], self.vocab)),
            _ => Err(misshapen(form, tensor, &[own, width.unwrap_or_default()], self.vocab)),
        }
    }
}
