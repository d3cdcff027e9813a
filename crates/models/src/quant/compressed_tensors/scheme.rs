//! What `config_groups` says: which modules are stored how.

use kernels::ops::{ALL_COLUMNS, GroupedFormat, InputRounding, Levels, WeightFormat, Zeros};
use model_spec::{ConfigError, ConfigFile};
use regex::Regex;
use safetensors::Dtype;

use crate::quant::grouped::dummy_codes;
use crate::quant::input::InputScheme;
use crate::quant::packed::{CONV1D, code_bits};
use crate::quant::scaled::{MadeScales, ScaledE4m3};
use crate::quant::stored_codes::words;
use crate::quant::{BLOCK_SIZE, block_size};
use crate::weights::{Content, Made, RandomTensor, RandomWeight, integers};

/// A group of modules that are quantised alike.
#[derive(Debug)]
pub(super) struct Scheme {
    targets: Vec<Target>,
    /// Rows and columns of 8-bit floats that share a scale, where scales are of blocks.
    pub block: Option<[usize; 2]>,
    pub input: InputScheme,
    weights: Weights,
}

/// What weights are.
#[derive(Clone, Copy, Debug)]
struct Weights {
    floats: bool,
    bits: usize,
    /// Columns that share a scale, or [`ALL_COLUMNS`].
    group: usize,
    /// One scale is for all rows.
    by_tensor: bool,
    symmetric: bool,
    /// Codes lie in words.
    packed: bool,
}

/// Modules that a group means.
#[derive(Debug)]
enum Target {
    /// All of a class: `Linear`.
    Class,
    /// Those whose names begin so.
    Pattern(Regex),
    /// One, by its name or the end of it.
    Name(String),
}

impl Scheme {
    /// What random weights are made up as; absent for floats of four bits.
    pub(super) fn dummy(&self) -> Option<WeightFormat> {
        let Weights { floats, bits, group, .. } = self.weights;
        let input = self.input.dummy();
        match (floats, bits) {
            (true, 8) => {
                let scale_cols = self.block.map_or(ALL_COLUMNS, |[_, cols]| cols);
                Some(WeightFormat::ScaledE4m3 { scale_cols, input })
            }
            (true, _) => None,
            (false, _) => {
                let codes = dummy_codes(code_bits(bits), group, Levels::Integers(Zeros::Middle));
                let WeightFormat::Grouped(format) = codes else { return None };
                Some(WeightFormat::Grouped(GroupedFormat { input, ..format }))
            }
        }
    }

    /// The tensors of a module, made up.
    pub(super) fn made(&self, weight: &RandomWeight<'_>) -> Made {
        let Weights { floats, bits, group, by_tensor, symmetric, packed } = self.weights;
        let ([rows, cols], stem) = (weight.shape, weight.stem());
        if floats && bits == 8 {
            let made = match (self.block, by_tensor) {
                (Some([1, _]), _) => MadeScales::Unknown,
                (Some(_), _) | (None, true) => MadeScales::Usual,
                (None, false) => MadeScales::Rows,
            };
            return ScaledE4m3 { block: self.block, input: self.input, made }.made_with(weight, weight.dtype);
        }
        if weight.conv1d {
            return Made::Refused(CONV1D);
        }
        if floats || weight.experts.is_some() {
            return Made::Unknown;
        }
        let groups = weight.groups(group);
        let scales = if by_tensor { vec![1] } else { vec![rows, groups] };
        let mut made = match packed {
            true => {
                let shape = [rows as i64, cols as i64].into_iter().flat_map(i64::to_le_bytes).collect();
                let (name, content) = (format!("{stem}weight_shape"), Content::Given(shape));
                let line = vec![rows, words(cols, bits)];
                vec![
                    RandomTensor::drawn(format!("{stem}weight_packed"), Dtype::I32, line, integers(bits)),
                    RandomTensor { name, dtype: Dtype::I64, shape: vec![2], content },
                ]
            }
            false => {
                let signed = integers(bits).map(|code| code.wrapping_sub(128));
                vec![RandomTensor::drawn(format!("{stem}weight"), Dtype::I8, vec![rows, cols], signed)]
            }
        };
        let scale = weight.integer_scale(bits);
        made.push(RandomTensor::filled(format!("{stem}weight_scale"), weight.dtype, scales, scale));
        if packed && !symmetric {
            let (name, middle) = (format!("{stem}weight_zero_point"), 1 << (bits - 1));
            made.push(RandomTensor::words(name, vec![words(rows, bits), groups], middle, bits));
        }
        if let InputRounding::StaticInt8(scale) = self.input.dummy() {
            made.push(RandomTensor::filled(format!("{stem}input_scale"), weight.dtype, vec![1], scale));
        }
        Made::Tensors(made)
    }

    /// That of a weight, by its tensor's name: of the group that means it most closely.
    pub(super) fn of<'a>(schemes: &'a [Self], tensor: &str) -> &'a Self {
        let module = tensor.strip_suffix(".weight").unwrap_or(tensor);
        let means = |target: &Target| match target {
            Target::Class => 1,
            Target::Pattern(pattern) if pattern.is_match(module) => 2,
            Target::Name(name) if module == name || module.ends_with(&format!(".{name}")) => 3,
            _ => 0,
        };
        let closest = |scheme: &&Self| scheme.targets.iter().map(means).max();
        // Of several that mean it as closely, the first.
        schemes.iter().rev().max_by_key(closest).unwrap_or_else(|| unreachable!("no schemes"))
    }
}

/// All groups of a config that quantise weights.
pub(super) fn read(config: &ConfigFile) -> Result<Vec<Scheme>, ConfigError> {
    if config.text_or("format", "")? == "marlin-24" {
        let reason = "sparse weights are not supported; dense are pack-quantized, int-quantized, float-quantized, \
                      naive-quantized, nvfp4-pack-quantized and mxfp4-pack-quantized";
        return Err(config.unsupported("format", reason));
    }
    if let Some(sparsity) = config.object("sparsity_config")?
        && sparsity.text_or("format", "dense")? != "dense"
    {
        return Err(sparsity.unsupported("format", "sparse weights are not supported; save them dense"));
    }
    if let Some(transforms) = config.object("transform_config")?
        && transforms.object("config_groups")?.is_some_and(|groups| groups.keys().next().is_some())
    {
        return Err(transforms.unsupported("config_groups", "rotated weights are not supported"));
    }
    let format = config.text_or("format", "")?;
    let Some(groups) = config.object("config_groups")? else { return Ok(Vec::new()) };
    let names: Vec<String> = groups.keys().map(str::to_owned).collect();
    let mut schemes = Vec::new();
    for name in names {
        if let Some(group) = groups.object(&name)? {
            schemes.push(read_group(&group, &format)?);
        }
    }
    Ok(schemes)
}

/// `format` is what the config says of groups that do not say it.
fn read_group(group: &ConfigFile, format: &str) -> Result<Scheme, ConfigError> {
    let Some(weights) = group.object("weights")? else {
        return Err(group.missing("weights", "a scheme of weights of 4 or 8 bits"));
    };
    let (kind, bits) = (weights.text_or("type", "int")?, weights.size_or("num_bits", 8)?);
    let strategy = weights.text_or("strategy", "tensor")?;
    let block = match (kind.as_str(), bits, strategy.as_str()) {
        ("float", 8, "tensor" | "channel") | ("float", 4, "tensor_group" | "group") => None,
        ("float", 8, "block") => Some(read_block(&weights)?),
        ("float", 8, "group") => Some([1, weights.size("group_size")?]),
        ("float", 8, _) => return Err(weights.unsupported("strategy", "expected tensor, channel, group or block")),
        ("int", 2 | 4 | 8, "tensor" | "channel" | "group") => None,
        ("int", 2 | 4 | 8, _) => return Err(weights.unsupported("strategy", "expected tensor, channel or group")),
        _ => {
            let reason = format!(
                "{kind} of {bits} bits by {strategy}: weights are int of 2, 4 or 8 bits, float of 8 bits, or float of \
                 4 bits by tensor_group or group"
            );
            return Err(weights.unsupported("num_bits", &reason));
        }
    };
    let columns = weights.size_or("group_size", 0)?;
    let group_size = if strategy.ends_with("group") && columns > 0 { columns } else { ALL_COLUMNS };
    let input = read_input(group)?;
    let packed = match group.text_or("format", format)?.as_str() {
        "int-quantized" | "naive-quantized" => false,
        "pack-quantized" => true,
        _ => group.object("input_activations")?.is_none(),
    };
    let weights = Weights {
        floats: kind == "float",
        bits,
        group: group_size,
        by_tensor: strategy == "tensor",
        symmetric: weights.flag_or("symmetric", true)?,
        packed,
    };
    Ok(Scheme { targets: read_targets(group)?, block, input, weights })
}

fn read_block(weights: &ConfigFile) -> Result<[usize; 2], ConfigError> {
    block_size(weights, "block_structure")?.ok_or_else(|| weights.unsupported("block_structure", BLOCK_SIZE))
}

fn read_targets(group: &ConfigFile) -> Result<Vec<Target>, ConfigError> {
    let texts = group.texts_opt("targets")?.unwrap_or_else(|| vec!["Linear".to_owned()]);
    let target = |text: String| match text.strip_prefix("re:") {
        Some(pattern) => Regex::new(&format!("^(?:{pattern})"))
            .map(Target::Pattern)
            .map_err(|_| group.unsupported("targets", "one of them is no regular expression")),
        None if text == "Linear" => Ok(Target::Class),
        None => Ok(Target::Name(text)),
    };
    texts.into_iter().map(target).collect()
}

/// How activations are rounded.
fn read_input(group: &ConfigFile) -> Result<InputScheme, ConfigError> {
    let Some(input) = group.object("input_activations")? else { return Ok(InputScheme::None) };
    let (kind, bits) = (input.text_or("type", "int")?, input.size_or("num_bits", 8)?);
    let dynamic = input.get("dynamic").is_some_and(|dynamic| *dynamic != false);
    let strategy = input.text_or("strategy", "tensor")?;
    if kind == "int" && !input.flag_or("symmetric", true)? {
        // Those with zero points stay as they are computed.
        return Ok(InputScheme::None);
    }
    match (kind.as_str(), bits, dynamic, strategy.as_str()) {
        ("float", 8, false, "tensor") => Ok(InputScheme::Static),
        ("float", 8, true, "token") => Ok(InputScheme::PerToken),
        ("float", 8, true, "group") => Ok(InputScheme::PerGroup(input.size("group_size")?)),
        ("int", 8, false, "tensor") => Ok(InputScheme::StaticInt8),
        ("int", 8, true, "token") => Ok(InputScheme::PerTokenInt8 { outliers: f32::INFINITY }),
        // Activations of four bits stay as they are computed.
        ("float", 4, _, _) => Ok(InputScheme::None),
        (_, 8, _, _) => Err(input.unsupported("strategy", "expected static by tensor, or dynamic by token or group")),
        _ => {
            let reason = format!("{kind} of {bits} bits: activations are int or float of 8 bits, or float of 4");
            Err(input.unsupported("num_bits", &reason))
        }
    }
}

/// Whether the KV cache is quantised; its scales are tensors of the checkpoint. (`kv_cache_scheme`, as vLLM reads it.)
pub(super) fn keeps_fp8(config: &ConfigFile) -> Result<bool, ConfigError> {
    let Some(scheme) = config.object("kv_cache_scheme")? else { return Ok(false) };
    let kind =
        (scheme.text_or("type", "float")?, scheme.size_or("num_bits", 8)?, scheme.text_or("strategy", "tensor")?);
    if !matches!((&*kind.0, kind.1, &*kind.2), ("float", 8, "tensor" | "attn_head")) {
        let (kind, bits, strategy) = kind;
        let reason = format!(
            "{kind} of {bits} bits by {strategy}: a KV cache is quantised to float of 8 bits by tensor or attn_head, \
             or not at all"
        );
        return Err(scheme.unsupported("strategy", &reason));
    }
    if scheme.flag_or("dynamic", false)? {
        return Err(scheme.unsupported("dynamic", "scales that follow the values are not supported; use static ones"));
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_that_means_a_module_most_closely_counts() {
        let (group, symmetric, packed) = (ALL_COLUMNS, true, false);
        let weights = Weights { floats: true, bits: 8, group, by_tensor: true, symmetric, packed };
        let scheme =
            |targets: Vec<Target>, cols| Scheme { targets, block: None, input: InputScheme::PerGroup(cols), weights };
        let pattern = Regex::new("^(?:.*mlp.*)").expect("a pattern");
        let schemes = [
            scheme(vec![Target::Class], 1),
            scheme(vec![Target::Pattern(pattern)], 2),
            scheme(vec![Target::Name("mlp.up_proj".to_owned()), Target::Name("head".to_owned())], 3),
        ];
        let found = |tensor: &str| match Scheme::of(&schemes, tensor).input {
            InputScheme::PerGroup(cols) => cols,
            other => panic!("{other:?}"),
        };
        assert_eq!(found("model.layers.0.self_attn.q_proj.weight"), 1);
        assert_eq!(found("model.layers.0.mlp.down_proj.weight"), 2);
        assert_eq!(found("model.layers.0.mlp.up_proj.weight"), 3);
    }
}
