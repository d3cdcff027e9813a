//! Quantisation methods: how checkpoints store weights in fewer bits. One method a file, and one line in [`METHODS`].
//!
//! A method reads the checkpoint's `quantization_config` and then answers for each slice of a weight: do tensors of
//! mine stand for it, do they fit, and what do they hold? It gives what is stored ([`Fetched`]); whether a device
//! multiplies by that or by decoded numbers, how slices are stacked, and which part of a weight a rank needs is decided
//! elsewhere, once for all methods.

mod auto_round;
mod awq;
mod bitsandbytes;
mod compressed_tensors;
mod fbgemm_fp8;
mod float4;
mod fp8;
mod gguf;
mod gptq;
mod grouped;
mod input;
mod left_out;
#[cfg(test)]
mod made;
mod modelopt;
mod mxfp4;
mod online;
mod packed;
mod quark;
mod scaled;
mod squeezellm;
mod stored_codes;
#[cfg(test)]
mod units;

use std::path::Path;

use kernels::decode::decode;
use kernels::ops::{ALL_COLUMNS, HostMatrix};
use model_spec::{ConfigError, ConfigFile};

use crate::error::LoadError;
use crate::weights::{DummyFormat, Fetched, Made, RandomTensor, RandomWeight, Slice, Stored, Tensors, spread_rows};

/// Methods by their `quant_method`, sorted.
const METHODS: &[(&str, Read)] = &[
    ("auto-round", auto_round::read),
    ("awq", awq::read),
    ("bitsandbytes", bitsandbytes::read),
    ("compressed-tensors", compressed_tensors::read),
    ("fbgemm_fp8", fbgemm_fp8::read),
    ("fp8", fp8::read),
    ("gptq", gptq::read),
    ("modelopt", modelopt::read),
    ("mxfp4", mxfp4::read),
    ("quark", quark::read),
    ("squeezellm", squeezellm::read),
];

/// Other names that `--quantization` knows, of kernels that vLLM has for a method, and the method.
const ALIASES: &[(&str, &str)] = &[
    ("auto_awq", "awq"),
    ("auto_gptq", "gptq"),
    ("awq_marlin", "awq"),
    ("gpt_oss_mxfp4", "mxfp4"),
    ("gptq_marlin", "gptq"),
    ("inc", "auto-round"),
    ("moe_wna16", "awq"),
    ("moe_wna16", "gptq"),
    ("modelopt_fp4", "modelopt"),
    ("modelopt_mixed", "modelopt"),
    ("modelopt_mxfp8", "modelopt"),
];

use left_out::LeftOut;

pub(crate) use gguf::Gguf;
pub(crate) use online::Online;

/// The method of files whose tensors name their types themselves.
pub(crate) const GGUF: &str = "gguf";

/// Reads a `quantization_config`; fails where it asks for what is not supported.
type Read = fn(&ConfigFile) -> Result<Quantized, ConfigError>;

/// How a checkpoint's weights are stored.
pub(crate) trait Quantization: Send + Sync {
    /// Checks the tensors that stand for a slice; absent where it is stored as plain numbers, under its own name.
    fn check(&self, slice: &Slice, tensors: Tensors<'_>) -> Result<Option<Stored>, LoadError>;
    /// Fetches the slice, touching nothing else; absent as in [`Quantization::check`].
    fn fetch<'a>(&self, slice: &Slice, tensors: Tensors<'a>) -> Result<Option<Fetched<'a>>, LoadError>;
    /// Whether random weights may stand for its own: those of methods that are decoded while they load.
    fn is_decoded(&self) -> bool;
    /// What its weights are made up as; absent where that is not known.
    fn dummy(&self) -> Option<DummyFormat> {
        None
    }
    /// The tensors that a checkpoint has for a weight, made up.
    fn made(&self, weight: &RandomWeight<'_>) -> Made {
        let _ = weight;
        Made::Unknown
    }
}

/// The numbers of a slice, as f32, of all that is stored in its tensor: where it cuts through what stays together, or
/// lies the other way round.
fn decode_slice(matrix: &HostMatrix<'_>, slice: &Slice, threads: usize) -> Vec<u8> {
    let upright = slice.upright();
    let (rows, cols) = (upright.rows.clone(), upright.cols.clone());
    let first_row = upright.location.stack.map_or(0, |stack| stack.index * (matrix.rows / stack.count));
    let bytes = spread_rows([rows.len(), cols.len() * 4], threads, || {
        let (rows, cols, location) = (&rows, &cols, &upright.location);
        let mut values = vec![0.0; matrix.cols];
        move |row, out: &mut [u8]| {
            let stored = first_row + location.rows.stored(rows.start + row);
            decode(matrix, stored..stored + 1, &mut values);
            out.as_chunks_mut::<4>().0.iter_mut().zip(&values[cols.clone()]).for_each(|(to, x)| *to = x.to_le_bytes());
        }
    });
    if slice.location.transposed { upright.turned(&bytes) } else { bytes }
}

/// What a `quantization_config` says.
#[derive(Default)]
pub(crate) struct Quantized {
    /// How weights are stored; absent: as plain numbers.
    pub weights: Option<Box<dyn Quantization>>,
    /// The checkpoint was made for a KV cache of 8-bit floats.
    pub fp8_cache: bool,
    /// What it leaves as plain numbers.
    pub left_out: LeftOut,
    /// `quant_method`.
    pub method: Option<&'static str>,
}

impl Quantized {
    /// What random weights are made up as, where that is no numbers; fails where it is not known.
    pub(crate) fn dummy(&self) -> Result<Option<DummyFormat>, LoadError> {
        match self.weights.as_ref().and_then(|weights| weights.dummy()) {
            Some(format) => Ok(Some(format)),
            None => self.check_dummy().map(|()| None),
        }
    }

    /// The tensors that `file` has for a projection, made up; absent where it has its plain one.
    pub(crate) fn made(&self, weight: &RandomWeight<'_>, file: &Path) -> Result<Option<Vec<RandomTensor>>, LoadError> {
        let Some(weights) = self.weights.as_ref().filter(|_| !self.left_out.covers(weight.name)) else {
            return Ok(None);
        };
        match weights.made(weight) {
            Made::Plain => Ok(None),
            Made::Tensors(tensors) => Ok(Some(tensors)),
            Made::Unknown => Err(LoadError::DummyQuantized { method: self.method.unwrap_or("this method") }),
            Made::Refused(reason) => {
                Err(LoadError::Tensor { file: file.to_owned(), tensor: weight.name.to_owned(), reason })
            }
        }
    }

    /// Fails where random numbers cannot stand for the stored weights.
    fn check_dummy(&self) -> Result<(), LoadError> {
        match (&self.weights, self.method) {
            (Some(weights), Some(method)) if !weights.is_decoded() => Err(LoadError::DummyQuantized { method }),
            _ => Ok(()),
        }
    }
}

/// Reads what a model's `config.json` says; fails where its weights are stored in a way that is not supported.
pub(crate) fn read(config: &ConfigFile) -> Result<Quantized, ConfigError> {
    // The older key is llm-compressor's first one.
    let key = config.spelled(&["quantization_config", "compression_config"]).unwrap_or("quantization_config");
    let stated = config.object(key)?;
    let stated =
        stated.map(|quantization| quantization.text_or("quant_method", "").map(|method| (quantization, method)));
    let Some((quantization, method)) = stated.transpose()?.map_or_else(|| beside(config), |found| Ok(Some(found)))?
    else {
        return Ok(Quantized::default());
    };
    let Some((method, read)) = METHODS.iter().find(|(name, _)| *name == method) else {
        let all: Vec<&str> = METHODS.iter().map(|(name, _)| *name).collect();
        let reason = format!("supported are {}, GGUF files, and bf16, f16 or f32 checkpoints", all.join(", "));
        return Err(quantization.unsupported("quant_method", &reason));
    };
    let left_out = LeftOut::read(&quantization)?;
    Ok(Quantized { method: Some(method), left_out, ..read(&quantization)? })
}

/// What a file beside `config.json` says, of tools that write their own, and its method: AutoGPTQ's
/// `quantize_config.json`, the `quant_config.json` of AutoAWQ and SqueezeLLM, and Model Optimizer's
/// `hf_quant_config.json`.
fn beside(config: &ConfigFile) -> Result<Option<(ConfigFile, String)>, ConfigError> {
    for name in ["quantize_config.json", "quant_config.json", "hf_quant_config.json"] {
        let Some(found) = ConfigFile::read_optional(&config.file().with_file_name(name))? else { continue };
        let usual = match name {
            "quantize_config.json" => "gptq",
            "hf_quant_config.json" => "modelopt",
            _ if found.get("wbits").is_some() => "squeezellm",
            _ => "awq",
        };
        let method = found.text_or("quant_method", usual)?;
        return Ok(Some((found, method)));
    }
    Ok(None)
}

/// `group_size`: columns that share a scale, or [`ALL_COLUMNS`], which is written as -1.
fn group_size(config: &ConfigFile, default: usize) -> Result<usize, ConfigError> {
    let key = config.spelled(&["group_size", "q_group_size"]).unwrap_or("group_size");
    match config.number_or(key, default as f64)? {
        -1.0 => Ok(ALL_COLUMNS),
        size if size >= 1.0 && size.fract() == 0.0 => Ok(size as usize),
        _ => Err(config.unsupported(key, "expected a number of columns, or -1 for all")),
    }
}

/// Rows and columns of a block that shares a scale, where `key` says them.
fn block_size(config: &ConfigFile, key: &str) -> Result<Option<[usize; 2]>, ConfigError> {
    match config.numbers_opt(key)?.as_deref() {
        None => Ok(None),
        Some([rows, cols]) if *rows >= 1.0 && *cols >= 1.0 => Ok(Some([*rows as usize, *cols as usize])),
        Some(_) => Err(config.unsupported(key, BLOCK_SIZE)),
    }
}

/// What is expected of the size of a block.
const BLOCK_SIZE: &str = "expected rows and columns of a block";

/// Fails where `asked`, by `--quantization`, is neither how the checkpoint is stored nor what its numbers can become
/// while it loads; which that is, where it is that.
pub(crate) fn check_asked(asked: Option<&str>, found: Option<&'static str>) -> Result<Option<Online>, LoadError> {
    if let (Some(online), None) = (asked.and_then(Online::named), found) {
        return Ok(Some(online));
    }
    let means = |asked: &str| {
        Some(asked) == found || ALIASES.iter().any(|(alias, method)| *alias == asked && Some(*method) == found)
    };
    let Some(asked) = asked.filter(|asked| !means(asked)) else { return Ok(None) };
    Err(LoadError::Quantization { asked: asked.to_owned(), found: found.unwrap_or("not quantised") })
}

#[cfg(test)]
mod tests {
    use kernels::ops::{CodeBits, WeightFormat};

    use super::*;

    fn config(quantization: &str) -> ConfigFile {
        let text = format!(r#"{{"quantization_config": {quantization}}}"#);
        ConfigFile::parse(Path::new("m/config.json"), text.as_bytes()).expect("JSON")
    }

    #[test]
    fn the_table_is_sorted() {
        assert!(METHODS.is_sorted_by_key(|(name, _)| *name));
    }

    #[test]
    fn what_cannot_be_served_is_refused_with_what_can() {
        let check = |text: &str, words: &[&str]| {
            let message = read(&config(text)).err().expect(text).to_string();
            assert!(words.iter().all(|word| message.contains(word)), "{text}: {message}");
        };
        check(
            r#"{"quant_method": "quip"}"#,
            &[
                "quantization_config.quant_method",
                "quip",
                "auto-round, awq, bitsandbytes, compressed-tensors, fbgemm_fp8, fp8",
            ],
        );
        check(r#"{"quant_method": "gptq", "bits": 5}"#, &["bits", "2, 3, 4 and 8"]);
        check(r#"{"quant_method": "gptq", "group_size": 0}"#, &["group_size", "-1"]);
        check(r#"{"quant_method": "gptq", "checkpoint_format": "marlin"}"#, &["checkpoint_format", "gptq_v2"]);
        check(r#"{"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}"#, &["quant_algo", "NVFP4 and MIXED"]);
        let mixed = r#"{"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers":
            {"model.layers.0.mlp.up_proj": {"quant_algo": "W4A16_AWQ"}}}"#;
        check(mixed, &["quant_algo", "model.layers.0.mlp.up_proj", "MXFP8"]);
        check(r#"{"quant_method": "squeezellm", "wbits": 3}"#, &["wbits", "4 bits"]);
        check(
            r#"{"quant_method": "bitsandbytes", "bnb_4bit_quant_storage": "bfloat16"}"#,
            &["bnb_4bit_quant_storage", "bfloat16", "uint8"],
        );
        check(r#"{"quant_method": "fbgemm_fp8", "activation_scale_ub": 12}"#, &["activation_scale_ub", "1000"]);
        check(r#"{"quant_method": "fp8", "activation_scheme": "odd"}"#, &["activation_scheme", "static", "dynamic"]);
        check(r#"{"quant_method": "fp8", "fmt": "e5m2"}"#, &["fmt", "e4m3"]);
        check(r#"{"quant_method": "fp8", "weight_block_size": [128]}"#, &["weight_block_size"]);
        check(
            r#"{"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": [128, 128]}"#,
            &["activation_scheme", "weight_block_size"],
        );
        check(r#"{"quant_method": "auto-round", "data_type": "nv_fp"}"#, &["data_type", "int"]);
        check(r#"{"quant_method": "auto-round", "packing_format": "odd"}"#, &["packing_format", "auto_round:auto_awq"]);
        let quark = |global: &str| format!(r#"{{"quant_method": "quark", "global_quant_config": {global}}}"#);
        check(r#"{"quant_method": "quark"}"#, &["global_quant_config"]);
        check(&quark(r#"{"weight": {"dtype": "fp6_e2m3", "qscheme": "per_group"}}"#), &["dtype", "fp6_e2m3", "int8"]);
        check(&quark(r#"{"weight": {"dtype": "int4", "qscheme": "per_group"}}"#), &["group_size"]);
        check(&quark(r#"{"weight": {"dtype": "int8", "symmetric": false}}"#), &["symmetric", "zero points"]);
        check(&quark(r#"{"weight": [{"dtype": "fp8_e4m3"}, {"dtype": "int4"}]}"#), &["weight", "NVFP4"]);
        check(&quark(r#"{"weight": null, "output_tensors": {"dtype": "int8"}}"#), &["output_tensors", "KV cache"]);
        let input = r#"{"weight": {"dtype": "int8"}, "input_tensors": {"dtype": "int8", "is_dynamic": true}}"#;
        check(&quark(input), &["input_tensors.dtype", "dynamic"]);
        let rotated = r#"{"quant_method": "quark", "algo_config": [{"name": "rotation", "online_config":
            {"online_rotation_layers": ["model.layers.0.mlp.down_proj"]}}], "global_quant_config": {}}"#;
        check(rotated, &["algo_config", "rotated"]);
        check(r#"{"quant_method": "awq", "bits": 8}"#, &["bits", "4 bits"]);
        check(r#"{"quant_method": "awq", "version": "exllama"}"#, &["version", "gemm and gemv"]);
        let group = |weights: &str| {
            format!(
                r#"{{"quant_method": "compressed-tensors", "config_groups": {{"group_0": {{"targets": ["Linear"],
                "weights": {weights}}}}}}}"#
            )
        };
        check(&group(r#"{"type": "int", "num_bits": 3, "strategy": "group"}"#), &["int of 3 bits", "float of 8 bits"]);
        check(&group(r#"{"type": "int", "num_bits": 4, "strategy": "block"}"#), &["strategy", "channel"]);
        check(r#"{"quant_method": "compressed-tensors", "format": "marlin-24"}"#, &["format", "sparse"]);
        check(&group(r#"{"type": "float", "num_bits": 8, "strategy": "group"}"#), &["group_size"]);
        check(&group(r#"{"type": "float", "num_bits": 8, "strategy": "token"}"#), &["strategy", "channel"]);
    }

    #[test]
    fn the_older_key_says_it_too() {
        let text = br#"{"compression_config": {"quant_method": "compressed-tensors", "config_groups": {"group_0":
            {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "tensor"}}}}}"#;
        let config = ConfigFile::parse(Path::new("m/config.json"), text).expect("JSON");
        assert_eq!(read(&config).expect("a method").method, Some("compressed-tensors"));
    }

    #[test]
    fn files_beside_the_config_say_it_too() {
        let folder = tempfile::tempdir().expect("a folder");
        let of = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).expect("written");
            let config = ConfigFile::parse(&folder.path().join("config.json"), b"{}").expect("JSON");
            let found = read(&config).map(|quantized| (quantized.method, quantized.dummy().expect("a format")));
            std::fs::remove_file(folder.path().join(name)).expect("removed");
            found
        };
        let group = |format: Option<DummyFormat>| match format.map(|format| format.format) {
            Some(WeightFormat::Grouped(format)) => Some((format.bits, format.group)),
            _ => None,
        };
        let (method, format) = of("quantize_config.json", r#"{"bits": 8, "group_size": 64}"#).expect("gptq");
        assert_eq!((method, group(format)), (Some("gptq"), Some((CodeBits::Eight, 64))));
        let text = r#"{"zero_point": true, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}"#;
        let (method, format) = of("quant_config.json", text).expect("awq");
        assert_eq!((method, group(format)), (Some("awq"), Some((CodeBits::Four, 32))));
        let text = r#"{"producer": {"name": "modelopt"}, "quantization":
            {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}"#;
        let (method, format) = of("hf_quant_config.json", text).expect("modelopt");
        let floats = matches!(format.map(|format| format.format), Some(WeightFormat::ScaledE4m3 { .. }));
        assert!(method == Some("modelopt") && floats);
        let message = of("quant_config.json", r#"{"wbits": 3}"#).expect_err("3 bits").to_string();
        assert!(message.contains("quant_config.json") && message.contains("wbits"), "{message}");
        let refused = of("quantize_config.json", r#"{"quant_method": "quip"}"#).expect_err("unknown").to_string();
        assert!(refused.contains("quip"), "{refused}");
    }

    #[test]
    fn what_is_asked_for_must_be_there() {
        assert!(check_asked(None, Some("fp8")).is_ok() && check_asked(Some("fp8"), Some("fp8")).is_ok());
        let message = check_asked(Some("awq"), Some("fp8")).expect_err("another").to_string();
        assert!(message.contains("awq") && message.contains("fp8"), "{message}");
        assert!(check_asked(Some("gptq"), None).expect_err("none").to_string().contains("not quantised"));
        for (alias, method) in
            [("gptq_marlin", "gptq"), ("moe_wna16", "gptq"), ("moe_wna16", "awq"), ("inc", "auto-round")]
        {
            assert!(check_asked(Some(alias), Some(method)).expect("an alias").is_none());
        }
        assert!(check_asked(Some("moe_wna16"), Some("fp8")).is_err());
        assert!(check_asked(Some("int4"), Some("gptq")).is_err());
        assert_eq!(check_asked(Some("fp8"), None).expect("numbers"), Online::named("fp8_per_channel"));
    }
}
