//! `auto-round` (arXiv 2309.05516): what Intel's AutoRound writes under its own name, with the tensors of `gptq.rs` or
//! `awq.rs`.
//!
//! `packing_format` says which: `auto_round:auto_gptq` or `auto_round:auto_awq`. Layers that `extra_config` gives other
//! bits are found by the shapes of their tensors, those that it leaves at 16 by their own.

use model_spec::{ConfigError, ConfigFile};

use super::{Quantized, awq, gptq};

pub(super) fn read(config: &ConfigFile) -> Result<Quantized, ConfigError> {
    if config.text_or("data_type", "int")? != "int" {
        return Err(config.unsupported("data_type", "int is supported"));
    }
    let key = config.spelled(&["packing_format", "backend"]).unwrap_or("packing_format");
    let packing = config.text_or(key, "auto_round:auto_gptq")?;
    match packing.strip_prefix("auto_round:").unwrap_or(&packing) {
        "auto_gptq" | "gptq" => gptq::read(config),
        "auto_awq" | "awq" => awq::read(config),
        _ => Err(config.unsupported(key, "auto_round:auto_gptq and auto_round:auto_awq are supported")),
    }
}
