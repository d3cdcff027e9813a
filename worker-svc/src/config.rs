//! The worker's flags, checked once.

mod pooling;
mod stages;

use std::{collections::BTreeSet, env, ffi::OsString, path::PathBuf, thread::available_parallelism};

use clap::{ArgAction, ValueEnum};
use kernels::cpu::{CpuOptions, Isa};
use kernels::ops::{DType, KvDType};
use kernels_cuda::{AllReduce, AttentionBackend, CascadeAttention, CudaOptions, Folders, Surroundings, WholeSteps};
use models::{ActivationRounding, LoadFormat, LoadOptions, LoraOptions, NetworkHead, StateOptions};
use proto::Setting;
use service_kit::{
    Address, CommonArgs, FingerprintArgs, GroupArgs, LengthArgs, LoraArgs, ReplicaArgs,
    values::{count, share, size},
};

use crate::{adapters::AdapterSource, idle::graph_capture};
pub use pooling::PoolingArgs;
pub(crate) use stages::Place;
pub use stages::StageArgs;

/// What `--quantization` names.
const QUANTIZATIONS: [&str; 29] = [
    "none",
    "auto-round",
    "auto_awq",
    "auto_gptq",
    "awq",
    "awq_marlin",
    "bitsandbytes",
    "compressed-tensors",
    "fbgemm_fp8",
    "fp8",
    "fp8_per_block",
    "fp8_per_channel",
    "fp8_per_tensor",
    "gguf",
    "gpt_oss_mxfp4",
    "gptq",
    "gptq_marlin",
    "inc",
    "int4",
    "int8_per_channel_weight_only",
    "modelopt",
    "modelopt_fp4",
    "modelopt_mixed",
    "modelopt_mxfp8",
    "moe_wna16",
    "mxfp4",
    "mxfp8",
    "quark",
    "squeezellm",
];

/// Flags of `quire worker`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Flags that every process has.
    #[command(flatten)]
    pub common: CommonArgs,

    /// The model: a folder with config.json and weights, or a GGUF file
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,

    /// The tokenizer, where it is not the model's: a folder, or a GGUF file
    #[arg(long, value_name = "DIR")]
    pub tokenizer: Option<PathBuf>,

    /// The scheduler whose plans this worker executes
    #[arg(long, value_name = "ADDRESS")]
    pub scheduler: Address,

    /// The model that all processes serve.
    #[command(flatten)]
    pub fingerprint: FingerprintArgs,

    /// This worker's rank in its group: those of the first pipeline stage come first
    #[arg(long, default_value_t = 0)]
    pub rank: u32,

    /// Pipeline stages.
    #[command(flatten)]
    pub stages: StageArgs,

    /// Flags that the scheduler has too.
    #[command(flatten)]
    pub group: GroupArgs,

    /// Its engine's place among engines.
    #[command(flatten)]
    pub replica: ReplicaArgs,

    /// Device; auto: a GPU if one can be used. Each rank takes the GPU of its number on the machine
    #[arg(long, value_name = "DEVICE", default_value = "auto", overrides_with = "device")]
    pub device: Device,

    /// Use NCCL for all-reduces between GPUs
    #[arg(long)]
    pub disable_custom_all_reduce: bool,

    /// Folders to search for CUDA's libraries first, separated by `:`
    #[arg(long, value_name = "DIRS", env = "QUIRE_CUDA_LIBRARY_PATH", hide_env_values = true)]
    pub cuda_library_path: Option<OsString>,

    /// Folder of compiled GPU kernels [default: quire/kernels in the user's cache folder]
    #[arg(long, value_name = "DIR", env = "QUIRE_KERNEL_CACHE", hide_env_values = true)]
    pub kernel_cache: Option<PathBuf>,

    /// Data type of weights and activations; auto: the model's
    #[arg(long, value_name = "TYPE", default_value = "auto")]
    pub dtype: Precision,

    /// Data type of the KV cache; auto: that of activations, fp8: 8-bit floats, twice as many tokens as 16 bits
    #[arg(long, value_name = "TYPE", default_value = "auto")]
    pub kv_cache_dtype: CachePrecision,

    /// Data type of recurrent states (Mamba, linear attention) and of the last inputs of their convolutions; auto: on a
    /// GPU that computes in 16 bits float16 for states and its own type for inputs, else float32
    #[arg(long, value_name = "TYPE", default_value = "auto")]
    pub mamba_cache_dtype: Precision,

    /// Data type of recurrent states alone; auto: what --mamba-cache-dtype says
    #[arg(long, value_name = "TYPE", default_value = "auto")]
    pub mamba_ssm_cache_dtype: Precision,

    /// Format of the weights; auto: whatever the folder has, dummy: random weights from config.json alone
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    pub load_format: Format,

    /// Quantization method that the checkpoint must have, none: any; or what the weights of a 16-bit checkpoint become
    /// while it loads: fp8 (per channel), fp8_per_tensor, fp8_per_block, mxfp8, int8_per_channel_weight_only or int4
    /// [default: the checkpoint's]
    #[arg(long, value_name = "METHOD", value_parser = QUANTIZATIONS)]
    pub quantization: Option<String>,

    /// What the model is run for.
    #[command(flatten)]
    pub pooling: PoolingArgs,

    /// Tokens in a KV block
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = count(1..=256_u32))]
    pub block_size: u32,

    /// Attention kernels of a GPU; auto: the best for the model's heads, hopper: for prompts the one for Hopper, mma:
    /// those on tensor cores of any architecture, plain: one for any shape and type
    #[arg(long, value_name = "KERNELS", default_value = "auto", ignore_case = true)]
    pub attention_backend: AttentionKernel,

    /// Do not read the KV blocks that sequences share once for all of them in decode attention, whose sums come in
    /// another order then
    #[arg(long)]
    pub disable_cascade_attn: bool,

    /// The longest sequence.
    #[command(flatten)]
    pub length: LengthArgs,

    /// Share of the device's memory to use
    #[arg(long, value_name = "SHARE", default_value_t = 0.92, value_parser = share)]
    pub gpu_memory_utilization: f64,

    /// KV memory of each worker in bytes, instead of a share of the device's (4G) [default: measured]
    #[arg(long, value_name = "SIZE", value_parser = size(1..=u64::MAX))]
    pub kv_cache_memory_bytes: Option<u64>,

    /// Number of KV blocks, whatever the memory, for tests [default: measured]
    #[arg(long, value_name = "N", value_parser = count(1..=u32::MAX))]
    pub num_gpu_blocks_override: Option<u32>,

    /// Adapters, as the scheduler has them.
    #[command(flatten)]
    pub lora: LoraArgs,

    /// Maximum rank of an adapter
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = count(1..=512_u32))]
    pub max_lora_rank: u32,

    /// Data type of adapters on the device; auto: that of activations
    #[arg(long, value_name = "TYPE", default_value = "auto")]
    pub lora_dtype: Precision,

    /// Give each of --max-loras room for adapters of experts, where the model is a mixture of them
    #[arg(long, default_value_t = true, action = ArgAction::Set)]
    pub enable_lora_experts: bool,

    /// Give each of --max-loras room for an embedding and a head in place of the model's, for adapters with
    /// modules_to_save
    #[arg(long)]
    pub enable_lora_modules_to_save: bool,

    /// Do not use CUDA graphs: launch every step kernel by kernel
    #[arg(long)]
    pub enforce_eager: bool,

    /// Decode a single sequence by one persistent kernel per step (Hopper and later) [default: auto, if measured
    /// faster]
    #[arg(long, value_name = "BOOL")]
    pub single_kernel_decode: Option<bool>,

    /// Largest CUDA graph capture size, in sequences [default: 512]
    #[arg(long, value_name = "N", value_parser = count(1..=65_535_u32))]
    pub max_cudagraph_capture_size: Option<u32>,

    /// CUDA graph capture sizes, in sequences; decode steps are padded to the next one [default: 1, 2, 4, 8, 16, …]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = count(1..=65_535_u32))]
    pub cudagraph_capture_sizes: Vec<u32>,

    /// Threads of each worker [default: cores / workers]
    #[arg(long = "cpu-threads", alias = "threads", value_name = "N", value_parser = count(1..=u32::MAX))]
    pub threads: Option<u32>,

    /// Strongest instruction set that kernels of the CPU may use [default: the machine's]
    #[arg(long, value_name = "ISA", ignore_case = true)]
    pub max_cpu_isa: Option<CpuIsa>,
}

/// Which device to compute on.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The best there is.
    Auto,
    /// The machine's own processors.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

/// Attention kernels of a GPU.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionKernel {
    /// The best that are for the model's heads on this GPU.
    Auto,
    /// For prompts the one for Hopper.
    Hopper,
    /// Those on tensor cores, on any architecture.
    Mma,
    /// One that is for any shape and type.
    Plain,
}

/// An instruction set of the CPU's kernels, weakest first.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuIsa {
    /// What the compiler makes of plain Rust.
    Portable,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512, with VNNI where there is.
    Avx512,
    /// AVX-512 and tiles.
    Amx,
}

/// What to compute in.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// As the model's config says.
    Auto,
    /// IEEE single.
    #[value(alias = "float")]
    Float32,
    /// bfloat16.
    Bfloat16,
    /// IEEE half.
    #[value(alias = "half")]
    Float16,
}

/// What keys and values are kept in.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachePrecision {
    /// What is computed in, or what the checkpoint is quantised for.
    Auto,
    /// bfloat16, where that is computed in.
    Bfloat16,
    /// IEEE half, where that is computed in.
    Float16,
    /// 8-bit floats with 4 bits of exponent, with a checkpoint's scales or a scale of 1.
    #[value(name = "fp8_e4m3", alias = "fp8")]
    Fp8E4m3,
}

/// Where weights come from.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The model's files.
    #[value(alias = "hf")]
    Auto,
    /// The model's files, which must be safetensors.
    Safetensors,
    /// The model's files, which must be PyTorch's.
    Pt,
    /// The model's files, which must be GGUF.
    Gguf,
    /// Random numbers; only config.json is needed.
    Dummy,
}

/// `quire/kernels` in the user's cache folder (XDG Base Directory Specification); absent without a home.
pub fn default_kernel_cache() -> Option<PathBuf> {
    let folder = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("quire/kernels"))
}

/// A choice as it is spelled on the command line.
fn word(choice: impl ValueEnum) -> String {
    choice.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

impl Args {
    /// Threads to compute with: at least one.
    pub(crate) fn threads(&self) -> usize {
        let cores = || available_parallelism().map_or(1, usize::from) / self.local_world_size() as usize;
        self.threads.map_or_else(cores, |threads| threads as usize).max(1)
    }

    /// Threads and instructions of the CPU.
    pub(crate) fn cpu_options(&self) -> CpuOptions {
        let most = self.max_cpu_isa.map(|isa| match isa {
            CpuIsa::Portable => Isa::Portable,
            CpuIsa::Avx2 => Isa::Avx2,
            CpuIsa::Avx512 => Isa::Avx512,
            CpuIsa::Amx => Isa::Amx,
        });
        let isa = most.and_then(|most| Isa::available().into_iter().rfind(|isa| *isa <= most));
        CpuOptions { threads: self.threads(), isa }
    }

    /// The GPU of this rank, and where what it needs may be.
    pub(crate) fn cuda_options(&self) -> CudaOptions {
        let (virtual_env, path) = (env::var_os("VIRTUAL_ENV"), env::var_os("PATH"));
        let surroundings = Surroundings {
            named: self.cuda_library_path.as_deref(),
            virtual_env: virtual_env.as_deref(),
            path: path.as_deref(),
        };
        let attention = match self.attention_backend {
            AttentionKernel::Auto => AttentionBackend::Auto,
            AttentionKernel::Hopper => AttentionBackend::Hopper,
            AttentionKernel::Mma => AttentionBackend::Mma,
            AttentionKernel::Plain => AttentionBackend::Plain,
        };
        CudaOptions {
            ordinal: self.local_rank(),
            folders: Folders::of(surroundings),
            kernel_cache: self.kernel_cache.clone().or_else(default_kernel_cache),
            ranks: (self.group.world_size() > 1).then_some(if self.disable_custom_all_reduce {
                AllReduce::Nccl
            } else {
                AllReduce::Auto
            }),
            // A step that is one kernel attends by itself.
            whole_steps: match self.single_kernel_decode {
                None if self.enforce_eager || attention != AttentionBackend::Auto => WholeSteps::Never,
                None => WholeSteps::Faster,
                Some(true) => WholeSteps::Always,
                Some(false) => WholeSteps::Never,
            },
            attention,
            cascade: match self.disable_cascade_attn {
                true => CascadeAttention::Never,
                false => CascadeAttention::Paying,
            },
            ..CudaOptions::default()
        }
    }

    /// Sizes of decode steps to capture as CUDA graphs, in sequences, ascending.
    pub(crate) fn capture_sizes(&self) -> Vec<usize> {
        let most = self.max_cudagraph_capture_size.unwrap_or(graph_capture::MAX_CAPTURE_SIZE);
        if self.cudagraph_capture_sizes.is_empty() {
            return graph_capture::capture_sizes(self.group.max_num_seqs(), most);
        }
        let most = self.max_cudagraph_capture_size.unwrap_or(u32::MAX).min(self.group.max_num_seqs());
        let asked: BTreeSet<usize> =
            self.cudagraph_capture_sizes.iter().filter(|size| **size <= most).map(|size| *size as usize).collect();
        asked.into_iter().collect()
    }

    /// Settings that all ranks of a group must share, beside facts of the model: with different ones, ranks would
    /// compute different numbers, or one would run a step that the others do not, and wait for them.
    pub(crate) fn common_to_ranks(&self) -> Vec<Setting> {
        let setting = |name: &str, value: String| Setting { name: name.to_owned(), value };
        let mut settings = vec![
            setting("build", service_kit::VERSION.to_owned()),
            setting("--kv-cache-dtype", word(self.kv_cache_dtype)),
            setting("--mamba-cache-dtype", word(self.mamba_cache_dtype)),
            setting("--mamba-ssm-cache-dtype", word(self.mamba_ssm_cache_dtype)),
            setting("--attention-backend", word(self.attention_backend)),
            setting("--disable-cascade-attn", self.disable_cascade_attn.to_string()),
            setting("--load-format", word(self.load_format)),
            setting("--runner, --convert, --task or --pooler-config", format!("{:?}", self.pooling.options())),
            setting("--pipeline-layer-partition", self.stages.partition_text()),
            setting("--max-num-seqs", self.group.max_num_seqs().to_string()),
            setting("--disable-custom-all-reduce", self.disable_custom_all_reduce.to_string()),
            setting("--enforce-eager", self.enforce_eager.to_string()),
            setting("--max-loras", self.lora.slots().to_string()),
            setting("--max-lora-rank", self.max_lora_rank.to_string()),
            setting("--lora-dtype", word(self.lora_dtype)),
            setting("--enable-lora-experts", self.enable_lora_experts.to_string()),
            setting("--enable-lora-modules-to-save", self.enable_lora_modules_to_save.to_string()),
            setting("--lora-extra-vocab-size", self.lora.extra_vocab_size().to_string()),
            setting("--single-kernel-decode", self.single_kernel_decode.map_or("auto".into(), |on| on.to_string())),
            setting("--cudagraph-capture-sizes", format!("{:?}", self.capture_sizes())),
        ];
        if self.load_format == Format::Dummy {
            settings.push(setting("--seed", self.group.seed.to_string()));
        }
        settings
    }

    /// Where adapters come from: the same place as the model's weights.
    pub(crate) fn adapter_source(&self) -> AdapterSource {
        match self.load_format {
            Format::Dummy => AdapterSource::Dummy(self.group.seed),
            _ => AdapterSource::Folders,
        }
    }

    /// Room for adapters.
    fn lora_options(&self) -> Option<LoraOptions> {
        let dtype = dtype(self.lora_dtype);
        let (slots, max_rank) = (self.lora.slots() as usize, self.max_lora_rank as usize);
        let (experts, saved_modules) = (self.enable_lora_experts, self.enable_lora_modules_to_save);
        let extra_vocab = self.lora.extra_vocab_size() as usize;
        let options = LoraOptions { slots, max_rank, dtype, experts, saved_modules, extra_vocab };
        self.lora.enable_lora.then_some(options)
    }

    /// The model loader's part of the flags.
    pub(crate) fn load_options(&self) -> LoadOptions {
        LoadOptions {
            dtype: dtype(self.dtype),
            kv_cache_dtype: match self.kv_cache_dtype {
                CachePrecision::Auto => None,
                CachePrecision::Bfloat16 => Some(DType::Bf16.into()),
                CachePrecision::Float16 => Some(DType::F16.into()),
                CachePrecision::Fp8E4m3 => Some(KvDType::E4m3),
            },
            states: StateOptions {
                conv: dtype(self.mamba_cache_dtype),
                recurrent: dtype(self.mamba_ssm_cache_dtype).or(dtype(self.mamba_cache_dtype)),
            },
            placement: self.placement(),
            head: NetworkHead::Stored,
            format: match self.load_format {
                Format::Auto => LoadFormat::Auto,
                Format::Safetensors => LoadFormat::Safetensors,
                Format::Pt => LoadFormat::Torch,
                Format::Gguf => LoadFormat::Gguf,
                Format::Dummy => LoadFormat::Dummy,
            },
            quantization: self.quantization.clone().filter(|method| method != "none"),
            activations: ActivationRounding::WhereFaster,
            seed: self.group.seed,
            max_len: self.length.tokens().map(|tokens| tokens as usize),
            block_size: self.block_size as usize,
            max_rows: self.group.max_num_batched_tokens().max(self.group.max_num_seqs()) as usize,
            max_logit_rows: self.group.max_num_seqs() as usize,
            threads: self.threads(),
            lora: self.lora_options(),
        }
    }
}

/// The type that a flag names; absent: auto.
fn dtype(precision: Precision) -> Option<DType> {
    match precision {
        Precision::Auto => None,
        Precision::Float32 => Some(DType::F32),
        Precision::Bfloat16 => Some(DType::Bf16),
        Precision::Float16 => Some(DType::F16),
    }
}

/// The GPU that tests are to run on: with `QUIRE_TEST_DEVICE=cuda`.
#[cfg(test)]
pub(crate) fn test_gpu() -> Option<CudaOptions> {
    env::var("QUIRE_TEST_DEVICE").ok().filter(|device| device == "cuda")?;
    let (virtual_env, path) = (env::var_os("VIRTUAL_ENV"), env::var_os("PATH"));
    let surroundings = Surroundings { named: None, virtual_env: virtual_env.as_deref(), path: path.as_deref() };
    let kernel_cache = Some(env::temp_dir().join("quire-test-kernels"));
    Some(CudaOptions { folders: Folders::of(surroundings), kernel_cache, ..CudaOptions::default() })
}

#[cfg(test)]
mod tests {
    use service_kit::parse_flags;

    use super::*;

    #[test]
    fn the_last_device_named_counts() {
        let required = ["worker", "--model", "m", "--scheduler", "ring:/x"];
        let flags = ["--device=auto", "--device=cuda"];
        let args: Args = parse_flags(required.iter().chain(&flags)).expect("flags that may be repeated");
        assert_eq!(args.device, Device::Cuda);
    }

    #[test]
    fn shared_blocks_are_read_once_unless_that_is_switched_off() {
        let cascade = |flags: &[&str]| {
            let required = ["worker", "--model", "m", "--scheduler", "ring:/x"];
            let args: Args = parse_flags(required.iter().chain(flags)).expect("flags");
            args.cuda_options().cascade
        };
        assert_eq!(cascade(&[]), CascadeAttention::Paying);
        assert_eq!(cascade(&["--disable-cascade-attn"]), CascadeAttention::Never);
    }

    #[test]
    fn kernels_use_no_stronger_instructions_than_asked_for() {
        let isa = |flags: &[&str]| {
            let required = ["worker", "--model", "m", "--scheduler", "ring:/x"];
            parse_flags(required.iter().chain(flags)).map(|args: Args| args.cpu_options().isa)
        };
        assert_eq!(isa(&[]).unwrap(), None);
        assert_eq!(isa(&["--max-cpu-isa=portable"]).unwrap(), Some(Isa::Portable));
        assert_eq!(isa(&["--max-cpu-isa=AMX"]).unwrap(), Some(Isa::detect()));
        let avx2 = if Isa::Avx2.is_available() { Isa::Avx2 } else { Isa::Portable };
        assert_eq!(isa(&["--max-cpu-isa=avx2"]).unwrap(), Some(avx2));
        assert!(isa(&["--max-cpu-isa=avx3"]).is_err());
    }

    #[test]
    fn captured_sizes_are_those_asked_for_that_can_occur() {
        let capture_sizes = |flags: &[&str]| {
            let required = ["worker", "--model", "m", "--scheduler", "ring:/x", "--max-num-seqs", "20"];
            parse_flags(required.iter().chain(flags)).map(|args: Args| args.capture_sizes())
        };
        assert_eq!(capture_sizes(&[]).unwrap(), [1, 2, 4, 8, 16, 20]);
        assert_eq!(capture_sizes(&["--max-cudagraph-capture-size", "8"]).unwrap(), [1, 2, 4, 8]);
        let sizes = ["--cudagraph-capture-sizes=12", "--cudagraph-capture-sizes=3", "--cudagraph-capture-sizes=64"];
        assert_eq!(capture_sizes(&sizes).unwrap(), [3, 12]);
        assert_eq!(capture_sizes(&["--cudagraph-capture-sizes=12,3", "--max-cudagraph-capture-size=4"]).unwrap(), [3]);
        assert!(capture_sizes(&["--cudagraph-capture-sizes=0"]).is_err());
    }
}
