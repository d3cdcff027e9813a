//! Flags that `quire serve` uses itself and passes to no process. They are read as all others are.

use std::net::IpAddr;

use clap::{Arg, ArgAction, Command, value_parser};
use service_kit::{
    GatewayPorts,
    values::{count, duration},
};

/// Their descriptions.
pub(super) fn command() -> Command {
    let flag = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    Command::new("serve").args([
        flag(
            "api-server-count",
            "N",
            "Number of gateway processes, which share the port; 0: those of --listen-gateways alone serve the API, and \
             the port has /health, /metrics and /version",
        )
        .default_value("1")
        .value_parser(count(0..=256_u32)),
        flag("config", "FILE", "YAML file of flags by their long names; the command line takes precedence"),
        Arg::new("data-parallel-external-lb").long("data-parallel-external-lb").action(ArgAction::SetTrue).help(
            "Serve one engine, that of --data-parallel-rank: other servers have the others, behind a load balancer",
        ),
        flag("data-parallel-size", "N", "Number of engines, each with its own scheduler, workers and KV cache")
            .default_value("1")
            .value_parser(count(1..=1024_u32)),
        flag("data-parallel-size-local", "N", "Number of those that are here [default: all]")
            .value_parser(count(1..=1024_u32)),
        flag("download-dir", "DIR", "Folder for downloaded models [default: the Hugging Face hub's cache]"),
        flag("engine-ready-timeout", "SECONDS", "How long the engine may take to start [default: no limit]")
            .env("VLLM_ENGINE_READY_TIMEOUT_S")
            .value_parser(duration),
        flag("hf-overrides", "JSON", "Keys of the model's config.json that count instead of its own, as a JSON object")
            .default_value("{}"),
        flag("hf-token", "TOKEN", "Hugging Face token for gated models").env("HF_TOKEN").hide_env_values(true),
        Arg::new("headless")
            .long("headless")
            .action(ArgAction::SetTrue)
            .help("Start workers alone, for the engine of --master-addr: of every node but the first"),
        flag(
            "listen-gateways",
            "ADDRESS",
            "Take gateways of other hosts (quire gateway --engine) at grpc://HOST:PORT and the ports behind that one",
        )
        .value_parser(value_parser!(GatewayPorts)),
        flag("master-addr", "HOST", "The first node's name or address, where workers of other nodes come for plans"),
        flag("master-port", "PORT", "The port there").default_value("29501").value_parser(count(1..=65_535_u16)),
        flag("nnodes", "N", "Number of nodes that the workers are spread over")
            .default_value("1")
            .value_parser(count(1..=4096_u32)),
        flag(
            "node-interface",
            "NAMES",
            "Interface whose address is this node's, as NCCL names them: eth, =eth0, ^docker,lo",
        ),
        flag("node-ip", "IP", "This node's address for other nodes [default: the one that leads to --master-addr]")
            .env("VLLM_HOST_IP")
            .value_parser(value_parser!(IpAddr)),
        flag("node-rank", "N", "This node's number: 0 is the one that serves HTTP")
            .default_value("0")
            .value_parser(count(0..=4095_u32)),
        flag("model", "MODEL", "The model, as the positional MODEL [default: wren, built in]"),
        flag("revision", "NAME", "Branch, tag or commit of a Hugging Face model").default_value("main"),
        flag("tokenizer", "MODEL", "Folder or Hugging Face id of another tokenizer [default: MODEL]"),
    ])
}
