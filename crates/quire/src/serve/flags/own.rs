//! Flags that `quire serve` uses itself and passes to no process. They are read as all others are.

use clap::{Arg, Command};
use service_kit::values::{count, duration};

/// Their descriptions.
pub(super) fn command() -> Command {
    let flag = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    Command::new("serve").args([
        flag("api-server-count", "N", "Number of gateway processes, which share the port")
            .default_value("1")
            .value_parser(count(1..=256_u32)),
        flag("config", "FILE", "YAML file of flags by their long names; the command line takes precedence"),
        flag("download-dir", "DIR", "Folder for downloaded models [default: the Hugging Face hub's cache]"),
        flag("engine-ready-timeout", "SECONDS", "How long the engine may take to start [default: no limit]")
            .env("VLLM_ENGINE_READY_TIMEOUT_S")
            .value_parser(duration),
        flag("hf-token", "TOKEN", "Hugging Face token for gated models").env("HF_TOKEN").hide_env_values(true),
        flag("model", "MODEL", "The model, as the positional MODEL [default: wren, built in]"),
        flag("revision", "NAME", "Branch, tag or commit of a Hugging Face model").default_value("main"),
        flag("tokenizer", "MODEL", "Folder or Hugging Face id of another tokenizer [default: MODEL]"),
    ])
}
