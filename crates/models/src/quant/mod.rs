//! Quantisation methods: how checkpoints store weights in fewer bits. One method a file, and one line in [`METHODS`].
//!
//! A method reads the checkpoint's `quantization_config` and then answers for each slice of a weight: do tensors of
//! mine stand for it, do they fit, and what do they hold? It gives what is stored ([`Fetched`]); whether a device
//! multiplies by that or by decoded numbers, how slices are stacked, and which part of a weight a rank needs is decided
//! elsewhere, once for all methods.

mod awq;
mod compressed_tensors;
mod fp8;
mod gguf;
mod mxfp4;
mod scaled;
#[cfg(test)]
mod units;

use kernels::decode::decode;
use kernels::ops::HostMatrix;
use model_spec::{ConfigError, ConfigFile};

use crate::error::LoadError;
use crate::weights::{Fetched, Slice, Stored, Tensors, spread};

/// Methods by their `quant_method`, sorted.
const METHODS: &[(&str, Read)] =
    &[("awq", awq::read), ("compressed-tensors", compressed_tensors::read), ("fp8", fp8::read), ("mxfp4", mxfp4::read)];

pub(crate) use gguf::Gguf;

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
}

/// The numbers of a slice, as f32, of all that is stored in its tensor: where it cuts through what stays together, or
/// lies the other way round.
fn decode_slice(matrix: &HostMatrix<'_>, slice: &Slice, threads: usize) -> Vec<u8> {
    let upright = slice.upright();
    let (rows, cols) = (upright.rows.clone(), upright.cols.clone());
    let first_row = upright.location.stack.map_or(0, |stack| stack.index * (matrix.rows / stack.count));
    let mut bytes = vec![0; rows.len() * cols.len() * 4];
    spread(&mut bytes, cols.len().max(1) * 4, threads, |first, part| {
        let mut values = vec![0.0; matrix.cols];
        for (row, out) in part.chunks_exact_mut(cols.len().max(1) * 4).enumerate() {
            let stored = first_row + upright.location.rows.stored(rows.start + first + row);
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
    /// `quant_method`.
    pub method: Option<&'static str>,
}

impl Quantized {
    /// Fails where random weights cannot stand for the stored ones.
    pub(crate) fn check_dummy(&self) -> Result<(), LoadError> {
        match (&self.weights, self.method) {
            (Some(weights), Some(method)) if !weights.is_decoded() => Err(LoadError::DummyQuantized { method }),
            _ => Ok(()),
        }
    }
}

/// Reads what a model's `config.json` says; fails where its weights are stored in a way that is not supported.
pub(crate) fn read(config: &ConfigFile) -> Result<Quantized, ConfigError> {
    let Some(quantization) = config.object("quantization_config")? else { return Ok(Quantized::default()) };
    let method = quantization.text_or("quant_method", "")?;
    let Some((method, read)) = METHODS.iter().find(|(name, _)| *name == method) else {
        let all: Vec<&str> = METHODS.iter().map(|(name, _)| *name).collect();
        let reason = format!("supported are {}, GGUF files, and bf16, f16 or f32 checkpoints", all.join(", "));
        return Err(quantization.unsupported("quant_method", &reason));
    };
    Ok(Quantized { method: Some(method), ..read(&quantization)? })
}

/// Fails where `asked`, by `--quantization`, is not how the checkpoint is stored.
pub(crate) fn check_asked(asked: Option<&str>, found: Option<&'static str>) -> Result<(), LoadError> {
    let Some(asked) = asked.filter(|asked| Some(*asked) != found) else { return Ok(()) };
    Err(LoadError::Quantization { asked: asked.to_owned(), found: found.unwrap_or("not quantised") })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

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
            r#"{"quant_method": "gptq"}"#,
            &["quantization_config.quant_method", "gptq", "awq, compressed-tensors, fp8"],
        );
        check(r#"{"quant_method": "fp8", "activation_scheme": "odd"}"#, &["activation_scheme", "static", "dynamic"]);
        check(r#"{"quant_method": "fp8", "fmt": "e5m2"}"#, &["fmt", "e4m3"]);
        check(r#"{"quant_method": "fp8", "weight_block_size": [128]}"#, &["weight_block_size"]);
        check(
            r#"{"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": [128, 128]}"#,
            &["activation_scheme", "weight_block_size"],
        );
        check(r#"{"quant_method": "awq", "bits": 8}"#, &["bits", "4 bits"]);
        check(r#"{"quant_method": "awq", "version": "gemv"}"#, &["version", "gemm"]);
        let group = |weights: &str| {
            format!(
                r#"{{"quant_method": "compressed-tensors", "config_groups": {{"group_0": {{"targets": ["Linear"],
                "weights": {weights}}}}}}}"#
            )
        };
        check(&group(r#"{"type": "int", "num_bits": 4, "strategy": "group"}"#), &["int of 4 bits", "float of 8 bits"]);
        check(&group(r#"{"type": "float", "num_bits": 8, "strategy": "group"}"#), &["strategy", "channel"]);
    }

    #[test]
    fn what_is_asked_for_must_be_there() {
        assert!(check_asked(None, Some("fp8")).is_ok() && check_asked(Some("fp8"), Some("fp8")).is_ok());
        let message = check_asked(Some("awq"), Some("fp8")).expect_err("another").to_string();
        assert!(message.contains("awq") && message.contains("fp8"), "{message}");
        assert!(check_asked(Some("fp8"), None).expect_err("none").to_string().contains("not quantised"));
    }
}
