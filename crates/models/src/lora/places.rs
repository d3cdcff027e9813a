//! Which parts of a network the modules of an adapter are, by name.

use std::collections::HashMap;

use super::{AdapterLayout, LoraForm};

/// What Mixtral calls what other models call `.mlp.`.
pub(super) const MIXTRAL: &str = ".block_sparse_moe.";

/// What a module of an adapter is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// A projection of one of the layout's layers.
    Projection { layer: usize, index: usize },
    /// A parameter with all experts of one of its layers.
    Parameter { layer: usize },
    /// Part of another stage.
    Elsewhere(LoraForm),
}

/// The places of a layout. Names may lack their first word, where they were saved from a model without its head.
#[derive(Default)]
pub(super) struct Places<'a> {
    whole: HashMap<&'a str, Vec<Place>>,
    /// By names without their first word.
    short: HashMap<&'a str, Vec<Place>>,
}

impl<'a> Places<'a> {
    pub(super) fn of(layout: &'a AdapterLayout) -> Self {
        let mut places = Self::default();
        for (layer, one) in layout.layers.iter().enumerate() {
            for (index, projection) in one.projections.iter().enumerate() {
                // What several experts share is no module of one of them.
                let tensor = projection.location.stack.is_none().then_some(projection.location.tensor.as_str());
                places.add(tensor.and_then(module_of), Place::Projection { layer, index });
            }
            for module in one.parameter.iter().flat_map(|parameter| &parameter.modules) {
                places.add(Some(module), Place::Parameter { layer });
            }
        }
        for (form, location) in &layout.elsewhere {
            places.add(module_of(&location.tensor), Place::Elsewhere(*form));
        }
        places
    }

    fn add(&mut self, module: Option<&'a str>, place: Place) {
        let Some(module) = module else { return };
        self.whole.entry(module).or_default().push(place);
        if let Some(short) = without_first(module) {
            self.short.entry(short).or_default().push(place);
        }
    }

    /// What a module is. `transformers` calls `mlp` since its version 5 what Mixtral's files call `block_sparse_moe`.
    pub(super) fn find(&self, module: &str) -> Vec<Place> {
        let found = self.find_as_is(module);
        if found.is_empty() { self.find_as_is(&module.replace(".mlp.", MIXTRAL)) } else { found }
    }

    fn find_as_is(&self, module: &str) -> Vec<Place> {
        let shorter = without_first(module).and_then(|module| self.whole.get(module));
        let found = [self.whole.get(module), self.short.get(module), shorter];
        found.into_iter().flatten().flatten().copied().collect()
    }

    /// Whether a name is how that of a module ends.
    pub(super) fn has_end(&self, name: &str) -> bool {
        let renamed = name.replace("mlp.", &MIXTRAL[1..]);
        self.whole.keys().any(|module| is_end(module, name) || is_end(module, &renamed))
    }
}

/// Whether a name ends so, in whole words.
pub(super) fn is_end(name: &str, end: &str) -> bool {
    name.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// The module whose matrix a model's files call `tensor`.
pub(super) fn module_of(tensor: &str) -> Option<&str> {
    tensor.strip_suffix(".weight")
}

fn without_first(module: &str) -> Option<&str> {
    module.split_once('.').map(|(_, rest)| rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_lack_their_first_word() {
        let mut places = Places::default();
        let [one, other] = [0, 1].map(|index| Place::Projection { layer: 0, index });
        places.add(Some("model.layers.0.mlp"), one);
        places.add(Some("lm_head"), other);
        for name in ["model.layers.0.mlp", "layers.0.mlp", "base.model.layers.0.mlp"] {
            assert_eq!(places.find(name), [one], "{name}");
        }
        assert_eq!(places.find("lm_head"), [other]);
        assert_eq!(places.find("0.mlp"), []);
        assert!(places.has_end("0.mlp") && places.has_end("lm_head") && !places.has_end("head"));
    }

    #[test]
    fn mixtrals_modules_have_two_names() {
        let mut places = Places::default();
        let place = Place::Parameter { layer: 1 };
        places.add(Some("model.layers.0.block_sparse_moe.gate"), place);
        for name in ["model.layers.0.block_sparse_moe.gate", "model.layers.0.mlp.gate", "layers.0.mlp.gate"] {
            assert_eq!(places.find(name), [place], "{name}");
        }
        assert!(places.has_end("mlp.gate") && places.has_end("gate") && !places.has_end("mlp"));
    }
}
