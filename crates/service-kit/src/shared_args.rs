//! Flags that several services share, each described once. A service flattens the group into its own flags.

use std::{path::PathBuf, time::Duration};

use anyhow::Context;
use clap::Args;
use link::{LinkOptions, Tls, TlsError, TlsFile, TlsFiles, Token};

use crate::values::{MaxModelLen, count, size};

/// Sizes of a step where no flag gives them. They are a device's to choose: those of [`Default`] suit CPUs and small
/// GPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepDefaults {
    /// Of `--max-num-seqs`.
    pub num_seqs: u32,
    /// Of `--max-num-batched-tokens`, unless `--max-num-seqs` is more.
    pub batched_tokens: u32,
}

impl Default for StepDefaults {
    fn default() -> Self {
        Self { num_seqs: 256, batched_tokens: 2048 }
    }
}

impl StepDefaults {
    /// Memory of a large GPU at least, bytes.
    pub const LARGE_GPU: u64 = 70 << 30;

    /// Those of a GPU with this much memory, bytes: vLLM's of its API server. A large GPU holds the KV cache of many
    /// sequences, and computes a long prompt's chunk in the time that a small one takes for a fraction of it.
    pub fn of_gpu(memory: u64) -> Self {
        if memory < Self::LARGE_GPU { Self::default() } else { Self { num_seqs: 1024, batched_tokens: 8192 } }
    }
}

/// The place of an engine among several that serve one model.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct ReplicaArgs {
    /// This engine's number among those of a load balancer, which is the `engine` label of its metrics
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = count(0..=4095_u32))]
    pub data_parallel_rank: u32,
}

/// Flags of a scheduler and its workers.
#[derive(Args, Clone, Debug)]
pub struct GroupArgs {
    /// Tensor-parallel workers, each with one shard of the model
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count(1..=64_u32))]
    pub tensor_parallel_size: u32,

    /// Pipeline stages: each of them holds some of the layers, on --tensor-parallel-size workers
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count(1..=64_u32))]
    pub pipeline_parallel_size: u32,

    /// How long workers of a group wait for each other, forming it and in a step
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = count(1..=86_400_u32))]
    pub distributed_timeout_seconds: u32,

    /// Maximum number of running sequences [default: 256, on GPUs of 70 GiB or more 1024; fewer if recurrent states
    /// need more memory]
    #[arg(long, value_name = "N", value_parser = count(1..=65_535_u32))]
    pub max_num_seqs: Option<u32>,

    /// Maximum number of tokens in one step [default: 2048, on GPUs of 70 GiB or more 8192; --max-num-seqs if that is
    /// more]
    #[arg(long, value_name = "SIZE", value_parser = size(1..=1_u32 << 20))]
    pub max_num_batched_tokens: Option<u32>,

    /// Seed of dummy weights, and of requests without a seed
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = count(0..=i64::MAX as u64))]
    pub seed: u64,

    /// What the device suggests where flags say nothing; a worker knows it once its device is open.
    #[arg(skip)]
    pub defaults: StepDefaults,
}

impl GroupArgs {
    /// Workers of all stages.
    pub fn world_size(&self) -> u32 {
        self.tensor_parallel_size * self.pipeline_parallel_size
    }

    /// How long workers of a group wait for each other.
    pub fn distributed_timeout(&self) -> Duration {
        Duration::from_secs(self.distributed_timeout_seconds.into())
    }

    /// How long forming a group may take in all: longer than its workers wait for each other, so that those who waited
    /// say for whom before they count as hung.
    pub fn forming_timeout(&self) -> Duration {
        self.distributed_timeout() + Duration::from_secs(30)
    }

    /// Sequences that may run at the same time.
    pub fn max_num_seqs(&self) -> u32 {
        self.max_num_seqs.unwrap_or(self.defaults.num_seqs)
    }

    /// Tokens in one step.
    pub fn max_num_batched_tokens(&self) -> u32 {
        self.max_num_batched_tokens.unwrap_or(self.defaults.batched_tokens.max(self.max_num_seqs()))
    }
}

/// Adapters: flags of a scheduler and its workers.
#[derive(Args, Clone, Debug)]
pub struct LoraArgs {
    /// Serve LoRA adapters beside the model
    #[arg(long)]
    pub enable_lora: bool,

    /// Maximum number of different adapters in one step: those that the device holds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count(1..=1024_u32))]
    pub max_loras: u32,

    /// Maximum number of tokens that an adapter has behind the model's own: rows that its embedding and head have more.
    /// Needs --enable-lora-modules-to-save
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = count(0..=65_536_u32))]
    pub lora_extra_vocab_size: u32,
}

impl LoraArgs {
    /// Tokens that adapters may have behind the model's own; 0 where no adapters are served.
    pub fn extra_vocab_size(&self) -> u32 {
        if self.enable_lora { self.lora_extra_vocab_size } else { 0 }
    }

    /// Adapters that the device holds; 0 where none are served.
    pub fn slots(&self) -> u32 {
        if self.enable_lora { self.max_loras } else { 0 }
    }
}

/// Links and control planes over TCP: flags of every process.
#[derive(Args, Clone, Debug, Default)]
pub struct LinkArgs {
    /// File with a token that processes on other hosts must show; the same on all of them
    #[arg(long, value_name = "FILE")]
    pub link_token_file: Option<PathBuf>,

    /// Certificate chain of this process for TLS between hosts, PEM; it is for the address that others dial
    #[arg(long, value_name = "FILE", requires_all = ["link_ssl_keyfile", "link_ssl_ca_certs"])]
    pub link_ssl_certfile: Option<PathBuf>,

    /// Private key of --link-ssl-certfile, PEM
    #[arg(long, value_name = "FILE", requires = "link_ssl_certfile")]
    pub link_ssl_keyfile: Option<PathBuf>,

    /// Certificate authorities of this engine's processes, PEM: others get nothing over TCP
    #[arg(long, value_name = "FILE", requires = "link_ssl_certfile")]
    pub link_ssl_ca_certs: Option<PathBuf>,
}

impl LinkArgs {
    /// Reads the token and the certificates, if there are to be some.
    ///
    /// # Errors
    /// When a file is not there, or holds something else; when the certificate is not one that peers take.
    pub fn options(&self) -> anyhow::Result<LinkOptions> {
        let read = |path: &PathBuf| Token::read(path).with_context(|| format!("--link-token-file {}", path.display()));
        let token = self.link_token_file.as_ref().map(read).transpose()?;
        Ok(LinkOptions { token, tls: self.tls()?, ..LinkOptions::default() })
    }

    fn tls(&self) -> anyhow::Result<Option<Tls>> {
        let (Some(certificate), Some(key), Some(authorities)) =
            (&self.link_ssl_certfile, &self.link_ssl_keyfile, &self.link_ssl_ca_certs)
        else {
            return Ok(None);
        };
        let files = TlsFiles { certificate, key, authorities };
        let tls = Tls::read(&files).and_then(|tls| tls.check().map(|()| tls));
        tls.map(Some).map_err(|error| unusable(&files, &error))
    }
}

/// Names the flag and the file at fault.
fn unusable(files: &TlsFiles<'_>, error: &TlsError) -> anyhow::Error {
    let (flag, path) = match error.file {
        TlsFile::Certificate => ("--link-ssl-certfile", files.certificate),
        TlsFile::Key => ("--link-ssl-keyfile", files.key),
        TlsFile::Authorities => ("--link-ssl-ca-certs", files.authorities),
    };
    anyhow::anyhow!("{flag} {}: {error}", path.display())
}

/// The longest sequence: a flag of workers, scheduler and tokenizer.
#[derive(Args, Clone, Copy, Debug)]
pub struct LengthArgs {
    /// Maximum length of a sequence in tokens, prompt and answer (16k, 1M); auto or -1: what the KV memory holds
    /// [default: the model's]
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true)]
    pub max_model_len: Option<MaxModelLen>,
}

impl LengthArgs {
    /// The number of tokens, if one was given.
    pub fn tokens(self) -> Option<u32> {
        self.max_model_len.and_then(MaxModelLen::tokens)
    }
}

/// The model that processes have in common: a flag of all of them.
#[derive(Args, Clone, Debug)]
pub struct FingerprintArgs {
    /// Fingerprint of the model folder; processes with another one are refused [default: computed by workers]
    #[arg(long, default_value = "", hide_default_value = true)]
    pub model_fingerprint: String,
}

/// The server that a tokenizer and a detokenizer are part of: flags of both.
#[derive(Args, Clone, Copy, Debug)]
pub struct ServerArgs {
    /// Number that tells this server from others, whose tokenizer a gateway might have reached instead; 0: none
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub server_id: u64,
}

/// Where the tokenizer's files are: flags of tokenizer and detokenizer.
#[derive(Args, Clone, Debug)]
pub struct TokenizerFileArgs {
    /// The model: a folder, or a GGUF file
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,

    /// The tokenizer, where it is not the model's: a folder, or a GGUF file
    #[arg(long, value_name = "DIR")]
    pub tokenizer: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_flags;

    #[test]
    fn a_step_has_a_token_for_each_sequence_by_default() {
        let tokens = |flags: &[&str]| {
            let args: GroupArgs = parse_flags(["test"].iter().chain(flags)).expect("flags");
            (args.max_num_seqs(), args.max_num_batched_tokens())
        };
        assert_eq!(tokens(&[]), (256, 2048));
        assert_eq!(tokens(&["--max-num-seqs=4096"]), (4096, 4096));
        assert_eq!(tokens(&["--max-num-batched-tokens=4K"]), (256, 4096));
    }

    #[test]
    fn a_certificate_that_peers_refuse_is_named_at_once() {
        let file = |name: &str| format!("{}/../link/tests/tls/{name}", env!("CARGO_MANIFEST_DIR"));
        let options = |certificate: &str, key: &str, authority: &str| {
            let flags = [("certfile", certificate), ("keyfile", key), ("ca-certs", authority)];
            let flags = flags.map(|(name, value)| format!("--link-ssl-{name}={}", file(value)));
            let args: LinkArgs = parse_flags(["test".to_owned()].into_iter().chain(flags)).expect("flags");
            args.options().map(|options| options.tls.is_some()).map_err(|error| error.to_string())
        };
        assert_eq!(options("node.pem", "node.key", "authority.pem"), Ok(true));
        for (certificate, key, authority, flag, problem) in [
            ("none.pem", "node.key", "authority.pem", "certfile", "none.pem"),
            ("node.key", "node.key", "authority.pem", "certfile", "no certificate"),
            ("node.pem", "none.key", "authority.pem", "keyfile", "none.key"),
            ("node.pem", "stranger.key", "authority.pem", "keyfile", "not the key"),
            ("node.pem", "node.key", "node.key", "ca-certs", "no certificate"),
            ("node.pem", "node.key", "another-authority.pem", "certfile", "UnknownIssuer"),
            ("expired.pem", "expired.key", "authority.pem", "certfile", "expired"),
        ] {
            let error = options(certificate, key, authority).unwrap_err();
            assert!(error.starts_with(&format!("--link-ssl-{flag} ")) && error.contains(problem), "{error}");
        }
        assert!(parse_flags::<LinkArgs>(["test", "--link-ssl-certfile=x"]).is_err());
    }

    #[test]
    fn a_large_gpu_takes_larger_steps_by_default() {
        let on = |gib: u64, flags: &[&str]| {
            let args: GroupArgs = parse_flags(["test"].iter().chain(flags)).expect("flags");
            let args = GroupArgs { defaults: StepDefaults::of_gpu(gib << 30), ..args };
            (args.max_num_seqs(), args.max_num_batched_tokens())
        };
        assert_eq!(on(24, &[]), (256, 2048));
        assert_eq!(on(79, &[]), (1024, 8192));
        assert_eq!(on(79, &["--max-num-seqs=64"]), (64, 8192));
        assert_eq!(on(79, &["--max-num-batched-tokens=512", "--max-num-seqs=99"]), (99, 512));
    }
}
