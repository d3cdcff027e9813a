//! The tensors of an adapter's file, by the modules of the model that they belong to.

use std::collections::BTreeMap;

use super::error::tensor_error;
use super::{AdapterError, LoraForm};

/// What PEFT writes before a module's name.
const PREFIX: &str = "base_model.model.";

/// What an adapter's file has of a module: names of tensors.
#[derive(Default)]
pub(super) struct Module {
    /// As a linear layer.
    pub linear: Pair,
    /// As an embedding.
    pub embedding: Pair,
    /// The model's own matrix, which PEFT writes beside the adapters of embeddings and heads.
    pub frozen: Option<String>,
    /// A matrix in place of the model's.
    pub saved: Option<String>,
}

/// A module's two matrices.
#[derive(Default)]
pub(super) struct Pair {
    a: Option<String>,
    b: Option<String>,
}

/// What a tensor is of its module.
#[derive(Clone, Copy)]
enum Part {
    A,
    B,
    EmbeddingA,
    EmbeddingB,
    Frozen,
    Saved,
}

/// How a tensor's name goes on after its module's; the longer of two that end alike comes first.
const ENDS: [(&str, Part); 13] = [
    (".lora_A.weight", Part::A),
    (".lora_A.default.weight", Part::A),
    (".lora_B.weight", Part::B),
    (".lora_B.default.weight", Part::B),
    (".lora_embedding_A", Part::EmbeddingA),
    (".lora_embedding_A.default", Part::EmbeddingA),
    (".lora_embedding_B", Part::EmbeddingB),
    (".lora_embedding_B.default", Part::EmbeddingB),
    (".base_layer.weight", Part::Frozen),
    // PEFT writes this, too, where a model was given more rows and others in their place.
    (".original_module.weight", Part::Frozen),
    (".modules_to_save.weight", Part::Saved),
    (".modules_to_save.default.weight", Part::Saved),
    (".weight", Part::Saved),
];

impl Module {
    /// Whether it changes what the model computes.
    pub(super) fn adapts(&self) -> bool {
        !(self.linear.is_empty() && self.embedding.is_empty() && self.saved.is_none())
    }

    fn slot(&mut self, part: Part) -> &mut Option<String> {
        match part {
            Part::A => &mut self.linear.a,
            Part::B => &mut self.linear.b,
            Part::EmbeddingA => &mut self.embedding.a,
            Part::EmbeddingB => &mut self.embedding.b,
            Part::Frozen => &mut self.frozen,
            Part::Saved => &mut self.saved,
        }
    }
}

impl Pair {
    fn is_empty(&self) -> bool {
        self.a.is_none() && self.b.is_none()
    }

    /// Both names; absent: the module has neither.
    pub(super) fn both(&self, module: &str) -> Result<Option<[&str; 2]>, AdapterError> {
        match (&self.a, &self.b) {
            (Some(a), Some(b)) => Ok(Some([a, b])),
            (None, None) => Ok(None),
            (Some(one), None) | (None, Some(one)) => {
                let reason = format!("module {module:?} has one of its two matrices A and B, but not the other");
                Err(tensor_error(one, reason))
            }
        }
    }
}

/// The modules of a file with these tensors, by their names in the model.
pub(super) fn modules(tensors: Vec<&str>) -> Result<BTreeMap<String, Module>, AdapterError> {
    let mut modules: BTreeMap<String, Module> = BTreeMap::new();
    for tensor in tensors {
        let name = tensor.strip_prefix(PREFIX).unwrap_or(tensor);
        // What else PEFT has for a module (`lora_magnitude_vector.weight`) is no module.
        let module_of = |end: &str| name.strip_suffix(end).filter(|module| !module.contains(".lora_"));
        let part_of = |(end, part): &(&'static str, Part)| Some((module_of(end)?, *part));
        let Some((module, part)) = ENDS.iter().find_map(part_of) else {
            let reason = "this is no matrix of an adapter (lora_A.weight, lora_B.weight, lora_embedding_A, \
                          lora_embedding_B) or of a saved module; biases and magnitudes cannot be served: merge the \
                          adapter into its model";
            return Err(tensor_error(tensor, reason.to_owned()));
        };
        *modules.entry(module.to_owned()).or_default().slot(part) = Some(tensor.to_owned());
    }
    Ok(modules)
}

/// Whether a module of an adapter is the one whose matrix a model's files call `tensor`. Either may lack the first
/// word, where it was saved from a model without its head.
pub(super) fn is_named(tensor: &str, module: &str) -> bool {
    let Some(own) = tensor.strip_suffix(".weight") else { return false };
    let without_first = |name: &str| name.split_once('.').map(|(_, rest)| rest.to_owned());
    own == module
        || without_first(own).is_some_and(|rest| rest == module)
        || without_first(module).is_some_and(|rest| rest == own)
}

impl LoraForm {
    /// Whether its matrices are an embedding's, which PEFT names in another way.
    pub(super) fn is_embedding(self) -> bool {
        self == Self::Embedding
    }
}
