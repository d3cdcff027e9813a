//! Scales of cached keys and values that a checkpoint brings, for caches of 8-bit floats: by the names that vLLM knows.

use std::collections::BTreeMap;

use kernels::ops::KvScales;
use model_spec::{MixerSpec, ModelSpec};

use super::{LayerParam, Names, ParamId, ParamKind, Weights};
use crate::error::LoadError;

/// How names of scales end.
const ENDS: [&str; 5] = [".k_scale", ".v_scale", ".kv_scale", ".k_proj.output_scale", ".v_proj.output_scale"];

/// Of a layer.
#[derive(Clone, Default, PartialEq, Debug)]
pub(crate) struct LayerScales {
    pub(crate) all: KvScales,
    /// Of the keys, and of the values, of each K/V head of the whole model.
    pub(crate) heads: Option<[Vec<f32>; 2]>,
}

/// Each layer's scales: 1 where there are none. Fails where one cannot be used, or belongs to nothing that could use
/// it.
pub(crate) fn read(spec: &ModelSpec, names: &Names, weights: &dyn Weights) -> Result<Vec<LayerScales>, LoadError> {
    let mut found = Found { tensors: weights.numbers(&ENDS)? };
    if found.tensors.is_empty() {
        return Ok(vec![LayerScales::default(); spec.layers.len()]);
    }
    let layers = spec.layers.iter().enumerate();
    let scales = layers.map(|(index, layer)| match &layer.mixer {
        MixerSpec::Attention(attention) => {
            let tensor = |part| names(ParamId::Layer(index, part), ParamKind::Weight).tensor;
            found.of_layer(attention.kv_heads, tensor)
        }
        _ => Ok(LayerScales::default()),
    });
    let scales = scales.collect::<Result<_, _>>()?;
    match found.tensors.pop_first() {
        None => Ok(scales),
        Some((tensor, _)) => {
            Err(LoadError::CacheScale { tensor, reason: "no layer of this model keeps keys and values that it scales" })
        }
    }
}

/// Scales in the files that no layer has taken yet.
struct Found {
    tensors: BTreeMap<String, Vec<f32>>,
}

impl Found {
    /// `tensor`: what the layer's projections are called.
    fn of_layer(&mut self, heads: usize, tensor: impl Fn(LayerParam) -> String) -> Result<LayerScales, LoadError> {
        let [key, value] = [(LayerParam::Key, "k_scale"), (LayerParam::Value, "v_scale")].map(|(part, scale)| {
            let projection = tensor(part);
            let projection = projection.rsplit_once('.').map_or("", |(path, _)| path).to_owned();
            let mixer = projection.rsplit_once('.').map_or("", |(path, _)| path).to_owned();
            [
                format!("{mixer}.{scale}"),
                format!("{mixer}.attn.{scale}"),
                format!("{projection}.{scale}"),
                format!("{projection}.output_scale"),
                format!("{mixer}.kv_scale"),
            ]
        });
        let alone = self.take(&value[..4], heads)?;
        match (self.take(&key, heads)?, alone) {
            (Some((_, key)), Some((_, value))) => Ok(LayerScales::of(key, value, heads)),
            // One scale for both.
            (Some((_, key)), None) => Ok(LayerScales::of(key.clone(), key, heads)),
            (None, Some((tensor, _))) => {
                Err(LoadError::CacheScale { tensor, reason: "the layer has no scale of keys beside it" })
            }
            (None, None) => Ok(LayerScales::default()),
        }
    }

    /// The first of these names that is there, and its numbers: one, or one for each of `heads`.
    fn take(&mut self, names: &[String], heads: usize) -> Result<Option<(String, Vec<f32>)>, LoadError> {
        // Files saved from a model without its head lack the first word.
        let inner = |name: &String| name.split_once('.').map(|(_, rest)| rest.to_owned());
        let mut names = names.iter().flat_map(|name| [Some(name.clone()), inner(name)]).flatten();
        let Some((tensor, scales)) = names.find_map(|name| self.tensors.remove_entry(&name)) else { return Ok(None) };
        // What is stored is multiplied by its inverse.
        let is_scale = |scale: &f32| *scale > 0.0 && scale.is_finite() && (1.0 / scale).is_finite();
        let reason = match scales.len() {
            1 if is_scale(&scales[0]) => return Ok(Some((tensor, scales))),
            count if count != 1 && count != heads => "it has neither one number nor one for each key/value head",
            _ if !scales.iter().all(is_scale) => "a scale is a positive number",
            _ => return Ok(Some((tensor, scales))),
        };
        Err(LoadError::CacheScale { tensor, reason })
    }
}

impl LayerScales {
    /// Of one scale each, or one for each head.
    fn of(key: Vec<f32>, value: Vec<f32>, heads: usize) -> Self {
        if let ([key], [value]) = (&key[..], &value[..]) {
            return Self { all: KvScales { key: *key, value: *value }, heads: None };
        }
        let by_head = |scales: Vec<f32>| if scales.len() == 1 { vec![scales[0]; heads] } else { scales };
        Self { all: KvScales::default(), heads: Some([by_head(key), by_head(value)]) }
    }
}
