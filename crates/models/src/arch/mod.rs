//! Architectures: each is a function from `config.json` to a [`Blueprint`], and one line in [`ARCHITECTURES`].

mod baichuan;
mod bert;
mod bge_m3;
mod bloom;
mod cohere;
mod dbrx;
mod deepseek;
mod distilbert;
mod dots;
mod echo;
mod ernie_moe;
mod exaone;
mod expert_naming;
mod falcon;
mod gemma;
mod glm;
mod gpt2;
mod gpt_neox;
mod gpt_oss;
mod gptj;
mod granite_moe;
mod gte;
mod internlm2;
mod jina_bert;
mod llama;
mod mamba;
mod mixtral;
mod modernbert;
mod moe;
mod mpnet;
mod mpt;
mod naming;
mod nemotron;
mod nomic_bert;
mod olmo;
mod olmoe;
mod opt;
mod parts;
mod phi;
mod phi3;
mod pooling;
mod qwen;
mod qwen3_next;
mod qwen_moe;
mod splade;
mod stablelm;
mod starcoder2;
mod t5;

use std::path::Path;

use model_spec::{ConfigError, ConfigFile, DType, Mask, ModelSpec, eos_token_ids, nearest};

use crate::quant::{self, Quantized};
use crate::weights::Names;

/// Class names of `config.json`, sorted, and what reads them.
const ARCHITECTURES: &[(&str, Architecture)] = &[
    ("AquilaForCausalLM", llama::llama),
    ("AquilaModel", llama::llama),
    ("ArceeForCausalLM", llama::arcee),
    ("BaiChuanForCausalLM", baichuan::baichuan),
    ("BaichuanForCausalLM", baichuan::baichuan),
    ("BloomForCausalLM", bloom::bloom),
    ("ChatGLMForConditionalGeneration", glm::chatglm),
    ("ChatGLMModel", glm::chatglm),
    ("Cohere2ForCausalLM", cohere::cohere2),
    ("CohereForCausalLM", cohere::cohere),
    ("CwmForCausalLM", llama::cwm),
    ("DbrxForCausalLM", dbrx::dbrx),
    ("DeepseekV2ForCausalLM", deepseek::deepseek_v2),
    ("DeepseekV3ForCausalLM", deepseek::deepseek_v3),
    ("Dots1ForCausalLM", dots::dots),
    ("EchoForCausalLM", echo::echo),
    ("Ernie4_5ForCausalLM", llama::ernie),
    ("Ernie4_5_MoeForCausalLM", ernie_moe::ernie_moe),
    ("Exaone4ForCausalLM", exaone::exaone4),
    ("ExaoneForCausalLM", exaone::exaone),
    ("FalconForCausalLM", falcon::falcon),
    ("GPT2LMHeadModel", gpt2::gpt2),
    ("GPTBigCodeForCausalLM", gpt2::bigcode),
    ("GPTJForCausalLM", gptj::gptj),
    ("GPTNeoXForCausalLM", gpt_neox::gpt_neox),
    ("Gemma2ForCausalLM", gemma::gemma2),
    ("Gemma3ForCausalLM", gemma::gemma3),
    ("GemmaForCausalLM", gemma::gemma),
    ("Glm4ForCausalLM", glm::glm4),
    ("Glm4MoeForCausalLM", glm::glm4_moe),
    ("GlmForCausalLM", glm::glm),
    ("GptOssForCausalLM", gpt_oss::gpt_oss),
    ("GraniteForCausalLM", llama::granite),
    ("GraniteMoeForCausalLM", granite_moe::granite_moe),
    ("GraniteMoeSharedForCausalLM", granite_moe::granite_moe),
    ("InternLM2ForCausalLM", internlm2::internlm2),
    ("InternLM3ForCausalLM", llama::internlm3),
    ("InternLMForCausalLM", llama::internlm),
    ("LLaMAForCausalLM", llama::llama),
    ("LlamaForCausalLM", llama::llama),
    ("MPTForCausalLM", mpt::mpt),
    ("Mamba2ForCausalLM", mamba::mamba2),
    ("MambaForCausalLM", mamba::mamba),
    ("MiMoForCausalLM", llama::qwen2),
    ("MiniCPMForCausalLM", llama::minicpm),
    ("MistralForCausalLM", llama::mistral),
    ("MixtralForCausalLM", mixtral::mixtral),
    ("MptForCausalLM", mpt::mpt),
    ("NemotronForCausalLM", nemotron::nemotron),
    ("OPTForCausalLM", opt::opt),
    ("Olmo2ForCausalLM", olmo::olmo2),
    ("Olmo3ForCausalLM", olmo::olmo3),
    ("OlmoForCausalLM", olmo::olmo),
    ("OlmoeForCausalLM", olmoe::olmoe),
    ("Phi3ForCausalLM", phi3::phi3),
    ("PhiForCausalLM", phi::phi),
    ("QWenLMHeadModel", qwen::qwen),
    ("Qwen2ForCausalLM", llama::qwen2),
    ("Qwen2MoeForCausalLM", qwen_moe::qwen2_moe),
    ("Qwen3ForCausalLM", llama::qwen3),
    ("Qwen3MoeForCausalLM", qwen_moe::qwen3_moe),
    ("Qwen3NextForCausalLM", qwen3_next::qwen3_next),
    ("RWForCausalLM", falcon::falcon),
    ("SeedOssForCausalLM", llama::seed_oss),
    ("SmolLM3ForCausalLM", llama::smollm3),
    ("StableLMEpochForCausalLM", stablelm::stablelm),
    ("StableLmForCausalLM", stablelm::stablelm),
    ("Starcoder2ForCausalLM", starcoder2::starcoder2),
    ("XverseForCausalLM", llama::llama),
];

type Architecture = fn(&Folder) -> Result<Blueprint, ConfigError>;

/// What an architecture is told.
pub(crate) struct Folder {
    /// `config.json`.
    pub config: ConfigFile,
    /// The class name.
    pub architecture: String,
    /// `torch_dtype`.
    pub dtype: Option<DType>,
    /// Tokens that end a sequence, from all files.
    pub eos_token_ids: Vec<u32>,
}

/// What an architecture answers.
pub(crate) struct Blueprint {
    /// The model as data.
    pub spec: ModelSpec,
    /// What its files call the weights.
    pub names: Names,
}

/// What a model's description says.
pub(crate) struct Description {
    /// The model as data.
    pub spec: ModelSpec,
    /// What its files call the weights.
    pub names: Names,
    /// How they are stored.
    pub quantized: Quantized,
}

pub use pooling::pooled;

/// Class names that text can be generated with, sorted.
pub fn supported() -> impl Iterator<Item = &'static str> {
    ARCHITECTURES.iter().map(|(name, _)| *name)
}

/// Reads a model folder's description.
pub(crate) fn read(dir: &Path) -> Result<Description, ConfigError> {
    let config = ConfigFile::of_model(dir)?;
    let architecture = config.architecture()?;
    let pooling = pooling::find(&architecture);
    let generating = || ARCHITECTURES.iter().find(|(name, _)| *name == architecture).map(|(_, read)| *read);
    let found = pooling.map(|(layers, _)| layers).or_else(generating);
    let Some(read) = found else { return Err(unknown(&config, architecture)) };
    let quantized = quant::read(&config)?;
    let eos_token_ids = eos_token_ids(dir, Some(&config))?;
    let dtype = config.float_type()?;
    let folder = Folder { config, architecture, dtype, eos_token_ids };
    let mut blueprint = read(&folder)?;
    if let Some((_, replace_head)) = pooling {
        blueprint = replace_head(&folder, blueprint)?;
    }
    see_both_ways(&folder.config, &mut blueprint.spec)?;
    let Blueprint { spec, names } = blueprint;
    Ok(Description { spec, names, quantized })
}

/// Models that embed may have been trained so that a decoder's tokens see those after them (GTE-Qwen2, EmbeddingGemma).
fn see_both_ways(config: &ConfigFile, spec: &mut ModelSpec) -> Result<(), ConfigError> {
    let halves_windows = config.flag_or("use_bidirectional_attention", false)?;
    if config.flag_or("is_causal", true)? && !halves_windows {
        return Ok(());
    }
    for attention in spec.layers.iter_mut().filter_map(|layer| layer.mixer.attention_mut()) {
        if halves_windows && attention.mask == Mask::Causal {
            attention.window = attention.window.map(|window| window / 2 + 1);
        }
        attention.mask = Mask::Bidirectional;
    }
    Ok(())
}

fn unknown(config: &ConfigFile, name: String) -> ConfigError {
    ConfigError::UnknownArchitecture {
        file: config.file().to_owned(),
        nearest: nearest(&name, supported().chain(pooled())).map(str::to_owned),
        name,
        supported: supported().chain(pooled()).map(str::to_owned).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted() {
        assert!(supported().is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn refusals_help() {
        let dir = tempfile::tempdir().unwrap();
        let refusal = |text: &str| {
            std::fs::write(dir.path().join("config.json"), text).unwrap();
            read(dir.path()).err().expect("must be refused").to_string()
        };
        let message = refusal(r#"{"architectures": ["Llama4ForCausalLM"]}"#);
        let all = supported().collect::<Vec<_>>().join(", ");
        assert!(message.contains("nearest: LlamaForCausalLM") && message.contains(&all), "{message}");
        let message = refusal(r#"{"architectures": ["DistilBertForTokenClassification"]}"#);
        assert!(message.contains("nearest: DistilBertForSequenceClassification"), "{message}");
        let message =
            refusal(r#"{"architectures": ["LlamaForCausalLM"], "quantization_config": {"quant_method": "quip"}}"#);
        assert!(message.contains("quantization_config.quant_method") && message.contains("quip"), "{message}");
        let message = refusal(r#"{"architectures": ["LlamaForCausalLM"]}"#);
        assert!(message.contains("hidden_size"), "{message}");
    }
}
