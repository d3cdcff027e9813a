//! Scales of cached keys and values that a checkpoint brings, for caches of 8-bit floats: by the names that vLLM knows.

use std::collections::BTreeMap;

use kernels::ops::KvScales;
use model_spec::{MixerSpec, ModelSpec};

use super::{LayerParam, Names, ParamId, ParamKind, Weights};
use crate::error::LoadError;

/// How names of scales end.
const ENDS: [&str; 3] = [".k_scale", ".v_scale", ".kv_scale"];

/// Each layer's scales: 1 where there are none. Fails where one cannot be used, or belongs to nothing that could use
/// it.
pub(crate) fn read(spec: &ModelSpec, names: &Names, weights: &dyn Weights) -> Result<Vec<KvScales>, LoadError> {
    let mut found = Found(weights.scalars(&ENDS)?);
    if found.0.is_empty() {
        return Ok(vec![KvScales::default(); spec.layers.len()]);
    }
    let layers = spec.layers.iter().enumerate();
    let scales = layers.map(|(index, layer)| match &layer.mixer {
        MixerSpec::Attention(_) => found.of_layer(|part| names(ParamId::Layer(index, part), ParamKind::Weight).tensor),
        _ => Ok(KvScales::default()),
    });
    let scales = scales.collect::<Result<_, _>>()?;
    match found.0.pop_first() {
        None => Ok(scales),
        Some((tensor, _)) => {
            Err(LoadError::CacheScale { tensor, reason: "no layer of this model keeps keys and values that it scales" })
        }
    }
}

/// Scales in the files that no layer has taken yet.
struct Found(BTreeMap<String, f32>);

impl Found {
    /// `tensor`: what the layer's projections are called.
    fn of_layer(&mut self, tensor: impl Fn(LayerParam) -> String) -> Result<KvScales, LoadError> {
        let [key, value] = [(LayerParam::Key, "k_scale"), (LayerParam::Value, "v_scale")].map(|(part, scale)| {
            let projection = tensor(part);
            let projection = projection.rsplit_once('.').map_or("", |(path, _)| path).to_owned();
            let mixer = projection.rsplit_once('.').map_or("", |(path, _)| path).to_owned();
            [
                format!("{mixer}.{scale}"),
                format!("{mixer}.attn.{scale}"),
                format!("{projection}.{scale}"),
                format!("{mixer}.kv_scale"),
            ]
        });
        let alone = self.take(&value[..3])?;
        match (self.take(&key)?, alone) {
            (Some((_, key)), Some((_, value))) => Ok(KvScales { key, value }),
            // One scale for both.
            (Some((_, key)), None) => Ok(KvScales { key, value: key }),
            (None, Some((tensor, _))) => {
                Err(LoadError::CacheScale { tensor, reason: "the layer has no scale of keys beside it" })
            }
            (None, None) => Ok(KvScales::default()),
        }
    }

    /// The first of these names that is there, and its number.
    fn take(&mut self, names: &[String]) -> Result<Option<(String, f32)>, LoadError> {
        // Files saved from a model without its head lack the first word.
        let inner = |name: &String| name.split_once('.').map(|(_, rest)| rest.to_owned());
        let mut names = names.iter().flat_map(|name| [Some(name.clone()), inner(name)]).flatten();
        let Some((tensor, scale)) = names.find_map(|name| self.0.remove_entry(&name)) else { return Ok(None) };
        // What is stored is multiplied by its inverse.
        if scale > 0.0 && scale.is_finite() && (1.0 / scale).is_finite() {
            return Ok(Some((tensor, scale)));
        }
        Err(LoadError::CacheScale { tensor, reason: "a scale is a positive number" })
    }
}
