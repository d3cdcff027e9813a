//! The two programs, called with the same limits.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail};
use clap::ValueEnum;
use serde_json::Value;

use super::{Args, process, shape::Shape, tokenizer, work};

/// A program of the comparison.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// This one.
    Quire,
    /// The peer.
    Vllm,
    /// A second peer, without servers.
    Sglang,
}

impl Side {
    pub const PEERS: [Self; 2] = [Self::Vllm, Self::Sglang];

    /// As tables call it.
    pub fn title(self) -> &'static str {
        match self {
            Self::Quire => "Quire",
            Self::Vllm => "vLLM",
            Self::Sglang => "SGLang",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::value_variants().iter().copied().find(|side| side.to_string() == name)
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Quire => "quire",
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
        })
    }
}

/// Limits of both engines.
const MAX_NUM_SEQS: u32 = 256;
const MAX_NUM_BATCHED_TOKENS: u32 = 8192;
const GPU_MEMORY_UTILIZATION: f64 = 0.85;

/// A program and a model.
pub struct Stage<'a> {
    args: &'a Args,
    pub shape: Shape,
    pub side: Side,
    /// Scratch files of the comparison, the model's folder among them.
    pub work: PathBuf,
    /// Ids below this are tokens.
    pub vocab_size: u32,
    /// Longest sequence that both sides are told, tokens: no longer than the model has positions.
    pub max_model_len: u32,
}

/// The largest of a number of each case.
fn most(cases: &str, number: impl Fn(&Value) -> u64) -> anyhow::Result<u64> {
    let number = |line: &str| Ok(number(&serde_json::from_str::<Value>(line)?));
    cases
        .lines()
        .map(number)
        .try_fold(0, |most, count: serde_json::Result<u64>| Ok(most.max(count.context("--cases")?)))
}

/// The most adapters that a case's prompts take in turn.
fn most_adapters(cases: &str) -> anyhow::Result<u64> {
    most(cases, |case| case["adapters"].as_u64().unwrap_or(0))
}

/// Tokens of the longest sequence.
fn longest(cases: &str) -> anyhow::Result<u64> {
    let of_prompt = |prompt: &Value| prompt[0].as_u64().unwrap_or(0) + prompt[1].as_u64().unwrap_or(0);
    most(cases, |case| case["prompts"].as_array().into_iter().flatten().map(of_prompt).max().unwrap_or(0))
}

impl<'a> Stage<'a> {
    /// Writes the folder of the model, which is the same for both programs.
    pub fn new(args: &'a Args, shape: Shape, side: Side) -> anyhow::Result<Self> {
        let work = std::env::temp_dir().join("quire-gpu-compare");
        let config = match &args.config {
            Some(path) => fs::read_to_string(path).with_context(|| path.display().to_string())?,
            None => shape.config().context("--config")?.to_owned(),
        };
        let value: Value = serde_json::from_str(&config).context("config.json")?;
        let number = |key: &str| value[key].as_u64().and_then(|size| u32::try_from(size).ok());
        let vocab_size = number("vocab_size").context("vocab_size")?;
        let positions = number("max_position_embeddings").unwrap_or(u32::MAX);
        let mut stage = Self { args, shape, side, work, vocab_size, max_model_len: 0 };
        let longest = u32::try_from(longest(&stage.cases()?)?).unwrap_or(u32::MAX);
        stage.max_model_len = shape.max_model_len().max(longest).min(positions);
        let described = stage.described();
        fs::create_dir_all(&described).with_context(|| described.display().to_string())?;
        fs::write(described.join("config.json"), config)?;
        tokenizer::write(&described, vocab_size)?;
        stage.write_weights()?;
        Ok(stage)
    }

    /// The model without weights.
    fn described(&self) -> PathBuf {
        self.work.join(self.shape.to_string())
    }

    fn model(&self) -> PathBuf {
        match &self.args.weights {
            Some(folder) => folder.join(self.shape.to_string()),
            None => self.described(),
        }
    }

    /// Writes those that both programs load, where the folder has none of this very model.
    fn write_weights(&self) -> anyhow::Result<()> {
        let (from, to) = (self.described().join("config.json"), self.model().join("config.json"));
        if self.args.weights.is_none() || (to.exists() && fs::read(&from)? == fs::read(&to)?) {
            return Ok(());
        }
        // Renamed when it is whole, so that an interrupted run leaves no half model.
        let part = self.model().with_extension("part");
        for folder in [&part, &self.model()].into_iter().filter(|folder| folder.exists()) {
            fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
        }
        fs::create_dir_all(&part).with_context(|| part.display().to_string())?;
        let mut command = self.quire();
        command.args(["bench", "weights"]).args([&self.described(), &part]);
        process::run(self.logged(command)?)?;
        fs::rename(&part, self.model()).with_context(|| self.model().display().to_string())
    }

    fn load_format(&self) -> &'static str {
        if self.args.weights.is_some() { "auto" } else { "dummy" }
    }

    /// The lines of the cases: those of `--cases`, otherwise the table's.
    pub fn cases(&self) -> anyhow::Result<String> {
        match &self.args.cases {
            Some(path) => fs::read_to_string(path).with_context(|| path.display().to_string()),
            None => Ok(work::cases(self.shape)),
        }
    }

    /// Measures the cases of a file and appends a line for each to another.
    pub fn offline(&self, cases: &Path, output: &Path) -> anyhow::Result<Command> {
        let mut command = match self.side {
            Side::Quire => {
                let mut command = self.quire();
                command.args(["bench", "cases"]).arg(self.model());
                self.quire_engine(&mut command);
                let adapters = most_adapters(&self.cases()?)?;
                if adapters > 0 {
                    // Random ones, whose folders are not looked at; vLLM's script writes its own.
                    command.arg("--lora-modules").args((0..adapters).map(|at| format!("a{at}=-")));
                }
                command
            }
            Side::Vllm => {
                self.script("vllm_offline.py", include_str!("../../../tests/peers/vllm_offline.py"), "--model")?
            }
            Side::Sglang => self.script(
                "sglang_offline.py",
                include_str!("../../../tests/peers/sglang_offline.py"),
                "--model-path",
            )?,
        };
        command.arg("--cases").arg(cases).arg("--output-jsonl").arg(output).args(self.limits()).args(&self.args.flags);
        process::log_to(&mut command, &self.args.out)?;
        Ok(command)
    }

    /// A peer's script, which is told by `flag` where the model lies.
    fn script(&self, name: &str, text: &str, flag: &str) -> anyhow::Result<Command> {
        let script = self.work.join(name);
        fs::write(&script, text)?;
        fs::write(self.work.join("peer_cases.py"), include_str!("../../../tests/peers/peer_cases.py"))?;
        let mut command = Command::new(&self.args.python);
        command.arg(script).arg(flag).arg(self.model()).args(["--load-format", self.load_format()]);
        Ok(command)
    }

    /// Clients of each load behind HTTP.
    pub fn clients(&self) -> &[usize] {
        &self.args.clients
    }

    /// Serves the model on a port.
    pub fn server(&self, port: u16) -> anyhow::Result<Command> {
        let mut command = match self.side {
            Side::Quire => {
                let mut command = self.quire();
                command.arg("serve").arg(self.model());
                self.quire_engine(&mut command);
                command
            }
            Side::Vllm => {
                let mut command = Command::new(&self.args.python);
                command.args(["-m", "vllm.entrypoints.cli.main", "serve"]).arg(self.model());
                command.args(["--load-format", self.load_format(), "--dtype", "bfloat16"]);
                // As the offline script does.
                command.envs([
                    ("HF_HUB_OFFLINE", "1"),
                    ("VLLM_NO_USAGE_STATS", "1"),
                    ("VLLM_LOGGING_LEVEL", "WARNING"),
                ]);
                command
            }
            Side::Sglang => bail!("SGLang is measured without servers alone: --parts offline"),
        };
        command.args(self.limits()).args(&self.args.flags);
        command.args(["--no-enable-prefix-caching", "--disable-uvicorn-access-log"]);
        command.args(["--host", "127.0.0.1", "--port", &port.to_string(), "--served-model-name", "model"]);
        process::log_to(&mut command, &self.args.out)?;
        Ok(command)
    }

    /// The `quire` command, which makes the load for both sides too.
    pub fn quire(&self) -> Command {
        Command::new(&self.args.quire)
    }

    /// The output of a command that is not measured goes where that of the others goes.
    pub fn logged(&self, mut command: Command) -> anyhow::Result<Command> {
        process::log_to(&mut command, &self.args.out)?;
        Ok(command)
    }

    fn quire_engine(&self, command: &mut Command) {
        let load_format = self.load_format();
        command.args(["--load-format", load_format, "--dtype", "bfloat16", "--device", &self.args.device]);
        if self.args.device == "cpu" {
            command.args(["--kv-cache-memory-bytes", "1G"]);
        }
    }

    fn limits(&self) -> [String; 4] {
        [
            format!("--max-model-len={}", self.max_model_len),
            format!("--max-num-seqs={MAX_NUM_SEQS}"),
            format!("--max-num-batched-tokens={MAX_NUM_BATCHED_TOKENS}"),
            format!("--gpu-memory-utilization={GPU_MEMORY_UTILIZATION}"),
        ]
    }
}
