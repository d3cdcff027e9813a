//! What a GGUF file says instead of `config.json`: its metadata under the names that architectures read.

use std::path::Path;

use model_files::{FilesError, Gguf, TensorType, Value as Metadata};
use serde_json::{Map, Value, json};

use crate::config::ConfigFile;
use crate::error::ConfigError;

/// A `general.architecture` of GGUF files that can be served, and how such files differ from `class`'s own.
#[derive(Debug, PartialEq, Eq)]
pub struct GgufFamily {
    /// `general.architecture`; metadata keys begin with it.
    pub name: &'static str,
    /// The class that `config.json` would name.
    pub class: &'static str,
    /// Rows of the query and key projections stand so that rotary pairs are adjacent.
    pub rotates_pairs: bool,
    /// Norm weights have the 1 added that the class adds itself.
    pub norms_plus_one: bool,
    /// `post_attention_layernorm` is called `post_attention_norm`, and not as the norm before an MLP is.
    pub post_attention_norm: bool,
    /// A part of each head may rotate, the rest stay.
    pub rotates_partly: bool,
    /// The class of files with experts, where there are such.
    pub with_experts: Option<&'static str>,
}

/// Sorted by name.
const FAMILIES: &[GgufFamily] = &[
    GgufFamily::plain("cohere2", "Cohere2ForCausalLM"),
    GgufFamily::plain("command-r", "CohereForCausalLM"),
    GgufFamily::plain("falcon", "FalconForCausalLM"),
    GgufFamily { norms_plus_one: true, ..GgufFamily::plain("gemma", "GemmaForCausalLM") },
    GgufFamily { norms_plus_one: true, post_attention_norm: true, ..GgufFamily::plain("gemma2", "Gemma2ForCausalLM") },
    GgufFamily { norms_plus_one: true, post_attention_norm: true, ..GgufFamily::plain("gemma3", "Gemma3ForCausalLM") },
    GgufFamily { rotates_partly: true, ..GgufFamily::plain("glm4", "Glm4ForCausalLM") },
    GgufFamily {
        post_attention_norm: true,
        with_experts: Some("GptOssForCausalLM"),
        ..GgufFamily::plain("gpt-oss", "GptOssForCausalLM")
    },
    GgufFamily::plain("gpt2", "GPT2LMHeadModel"),
    GgufFamily {
        rotates_pairs: true,
        with_experts: Some("MixtralForCausalLM"),
        ..GgufFamily::plain("llama", "LlamaForCausalLM")
    },
    GgufFamily { post_attention_norm: true, ..GgufFamily::plain("olmo2", "Olmo2ForCausalLM") },
    GgufFamily { rotates_partly: true, ..GgufFamily::plain("phi3", "Phi3ForCausalLM") },
    GgufFamily::plain("qwen2", "Qwen2ForCausalLM"),
    GgufFamily { with_experts: Some("Qwen2MoeForCausalLM"), ..GgufFamily::plain("qwen2moe", "Qwen2MoeForCausalLM") },
    GgufFamily::plain("qwen3", "Qwen3ForCausalLM"),
    GgufFamily { with_experts: Some("Qwen3MoeForCausalLM"), ..GgufFamily::plain("qwen3moe", "Qwen3MoeForCausalLM") },
    GgufFamily { rotates_partly: true, ..GgufFamily::plain("stablelm", "StableLmForCausalLM") },
    GgufFamily::plain("starcoder2", "Starcoder2ForCausalLM"),
];

/// Control tokens that end a turn; files often name only the one that ends a text.
const TURN_ENDS: &[&str] =
    &["<|call|>", "<|eom_id|>", "<|eot_id|>", "<|end|>", "<|im_end|>", "<|return|>", "<end_of_turn>"];

/// The one of them that ends a part of a turn where another ends all of it.
const PART_END: (&str, &str) = ("<|end|>", "<|return|>");

/// Families whose largest model, told by its layers, scales scores by its width over its heads.
const LARGEST_BY_WIDTH: [(&str, u64); 2] = [("gemma2", 46), ("gemma3", 62)];

/// Families whose activations leave the range of f16.
const WIDE: &[&str] = &["gemma", "gemma2", "gemma3", "gpt-oss"];

/// Families of whose projections only the file says whether they have biases.
const BIASED: &[&str] = &["command-r", "glm4", "llama", "olmo2"];

/// The number of control tokens in `tokenizer.ggml.token_type`.
const CONTROL: f64 = 3.0;

impl GgufFamily {
    /// Files that differ in nothing.
    const fn plain(name: &'static str, class: &'static str) -> Self {
        Self {
            name,
            class,
            rotates_pairs: false,
            norms_plus_one: false,
            post_attention_norm: false,
            rotates_partly: false,
            with_experts: None,
        }
    }

    /// All, sorted by name.
    pub fn all() -> &'static [Self] {
        FAMILIES
    }

    /// The family of a file.
    ///
    /// # Errors
    /// When it names none, or one that is not in the table.
    pub fn of(gguf: &Gguf) -> Result<&'static Self, ConfigError> {
        const KEY: &str = "general.architecture";
        let name = gguf.text(KEY)?.ok_or_else(|| gguf.missing(KEY, "the name of an architecture"))?;
        FAMILIES.iter().find(|family| family.name == name).ok_or_else(|| ConfigError::UnknownArchitecture {
            file: gguf.file().to_owned(),
            nearest: crate::nearest(name, FAMILIES.iter().map(|family| family.name)).map(str::to_owned),
            name: name.to_owned(),
            supported: FAMILIES.iter().map(|family| family.name.to_owned()).collect(),
        })
    }
}

impl ConfigFile {
    /// The description of a model: `config.json` of a folder, or what the metadata say of a GGUF file (or of a folder
    /// that holds one and no other weights).
    pub fn of_model(model: &Path) -> Result<Self, ConfigError> {
        match Gguf::of_model(model)? {
            Some(gguf) => Self::of_gguf(&gguf),
            None => Self::read(&model.join("config.json")),
        }
    }

    /// The same of a model that need not have a description.
    pub fn of_model_optional(model: &Path) -> Result<Option<Self>, ConfigError> {
        match Gguf::of_model(model)? {
            Some(gguf) => Self::of_gguf(&gguf).map(Some),
            None => Self::read_optional(&model.join("config.json")),
        }
    }

    /// What `config.json` would say beside a GGUF file.
    pub fn of_gguf(gguf: &Gguf) -> Result<Self, ConfigError> {
        let family = GgufFamily::of(gguf)?;
        let reader = Reader { gguf, family };
        let mut object = Map::new();
        reader.sizes(&mut object)?;
        reader.layers(&mut object)?;
        reader.experts(&mut object)?;
        reader.tokens(&mut object)?;
        if let Some(scaling) = reader.rope_scaling()? {
            object.insert("rope_scaling".to_owned(), scaling);
        }
        // What is absent takes the class's own default.
        object.retain(|_, value| !value.is_null());
        Ok(Self::from_object(gguf.file(), object))
    }
}

struct Reader<'a> {
    gguf: &'a Gguf,
    family: &'static GgufFamily,
}

impl Reader<'_> {
    /// A key of the architecture.
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.family.name)
    }

    fn number(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        Ok(self.gguf.number(&self.key(key))?)
    }

    /// A size; some files list it once a layer, which must all agree.
    fn size(&self, key: &str) -> Result<Option<u64>, ConfigError> {
        let key = self.key(key);
        match self.gguf.get(&key).and_then(Metadata::as_list) {
            None => Ok(self.gguf.whole(&key)?),
            Some([first, rest @ ..]) if rest.iter().all(|other| other == first) => Ok(first.as_whole()),
            Some(_) => Err(self.unsupported(format!("{key} differs between layers"))),
        }
    }

    fn needed(&self, key: &str) -> Result<u64, ConfigError> {
        Ok(self.size(key)?.ok_or_else(|| self.gguf.missing(&self.key(key), "a whole number"))?)
    }

    fn unsupported(&self, what: String) -> ConfigError {
        FilesError::Unsupported { file: self.gguf.file().to_owned(), what }.into()
    }

    fn sizes(&self, object: &mut Map<String, Value>) -> Result<(), ConfigError> {
        let embedding = self.gguf.tensor("token_embd.weight").and_then(|tensor| tensor.shape.first());
        let heads = self.needed("attention.head_count")?;
        let (keys, values) = (self.size("attention.key_length")?, self.size("attention.value_length")?);
        if keys.is_some() && values.is_some() && keys != values {
            return Err(self.unsupported("keys and values have different lengths".to_owned()));
        }
        let hidden = self.needed("embedding_length")?;
        let fields = json!({
            "architectures": [self.family.class],
            "torch_dtype": self.dtype(),
            "vocab_size": embedding,
            "hidden_size": hidden,
            "num_hidden_layers": self.needed("block_count")?,
            "intermediate_size": self.needed("feed_forward_length")?,
            "num_attention_heads": heads,
            "num_key_value_heads": self.size("attention.head_count_kv")?,
            "head_dim": keys,
            "max_position_embeddings": self.needed("context_length")?,
            "rms_norm_eps": self.number("attention.layer_norm_rms_epsilon")?,
            "rope_theta": self.number("rope.freq_base")?,
            "partial_rotary_factor": self.rotary_factor(keys.unwrap_or(hidden / heads.max(1)))?,
            "sliding_window": self.size("attention.sliding_window")?.filter(|window| *window > 0),
            "tie_word_embeddings": self.gguf.tensor("output.weight").is_none(),
            "attn_logit_softcapping": self.number("attn_logit_softcapping")?,
            "final_logit_softcapping": self.number("final_logit_softcapping")?,
            "logit_scale": self.number("logit_scale")?,
        });
        if let Value::Object(fields) = fields {
            object.extend(fields);
        }
        // The scale of scores is not in the file: of two generations the largest model divides by its width, the others
        // by a head's.
        if let Some((_, largest)) = LARGEST_BY_WIDTH.iter().find(|(name, _)| *name == self.family.name) {
            let by_width = self.needed("block_count")? == *largest;
            let scalar = if by_width { hidden / heads.max(1) } else { keys.unwrap_or(256) };
            object.insert("query_pre_attn_scalar".to_owned(), scalar.into());
        }
        Ok(())
    }

    /// The share of a head that rotates, where that is not all of it.
    fn rotary_factor(&self, head_dim: u64) -> Result<Option<f64>, ConfigError> {
        if self.gguf.get(&self.key("rope.dimension_sections")).is_some() {
            return Err(self.unsupported("rotary embeddings in sections".to_owned()));
        }
        match self.size("rope.dimension_count")?.filter(|rotated| *rotated != head_dim) {
            None => Ok(None),
            // What it is multiplied by again is rounded down.
            Some(rotated) if self.family.rotates_partly => Ok(Some((rotated as f64 + 0.5) / head_dim as f64)),
            Some(rotated) => Err(self.unsupported(format!("rotary embeddings of {rotated} of {head_dim} dimensions"))),
        }
    }

    /// What the layers are like, told by their tensors.
    fn layers(&self, object: &mut Map<String, Value>) -> Result<(), ConfigError> {
        let has = |name: &str| self.gguf.tensor(&format!("blk.0.{name}")).is_some();
        if let Some(epsilon) = self.number("attention.layer_norm_epsilon")? {
            for key in ["layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"] {
                object.insert(key.to_owned(), epsilon.into());
            }
        }
        if BIASED.contains(&self.family.name) {
            object.insert("attention_bias".to_owned(), has("attn_q.bias").into());
            object.insert("mlp_bias".to_owned(), has("ffn_up.bias").into());
        }
        match self.family.name {
            "command-r" => {
                object.insert("use_qk_norm".to_owned(), has("attn_q_norm.weight").into());
            }
            "falcon" => {
                // The generations differ in their key/value heads and their norms; each is a case of the newest.
                object.insert("new_decoder_architecture".to_owned(), true.into());
                object.insert("num_ln_in_parallel_attn".to_owned(), (1 + u8::from(has("attn_norm_2.weight"))).into());
                object.insert("num_kv_heads".to_owned(), self.needed("attention.head_count_kv")?.into());
                object.insert("bias".to_owned(), has("attn_qkv.bias").into());
            }
            "olmo2" if object.get("sliding_window").is_some_and(|window| !window.is_null()) => {
                let what = "a sliding window, as OLMo 3 has it; use the safetensors files";
                return Err(self.unsupported(what.to_owned()));
            }
            "stablelm" if has("attn_q_norm.weight") => {
                let what = "norms of queries and keys, as StableLM 2 12B has them; use the safetensors files";
                return Err(self.unsupported(what.to_owned()));
            }
            "stablelm" => {
                object.insert("use_qkv_bias".to_owned(), has("attn_q.bias").into());
                object.insert("use_parallel_residual".to_owned(), (!has("ffn_norm.weight")).into());
            }
            _ => {}
        }
        Ok(())
    }

    /// Experts, where there are any.
    fn experts(&self, object: &mut Map<String, Value>) -> Result<(), ConfigError> {
        let Some(experts) = self.size("expert_count")?.filter(|experts| *experts > 0) else { return Ok(()) };
        let Some(class) = self.family.with_experts else {
            let what = format!("experts of the architecture {:?}; use the safetensors files", self.family.name);
            return Err(self.unsupported(what));
        };
        let shared = self.gguf.tensor("blk.0.ffn_up_shexp.weight");
        let fields = json!({
            "architectures": [class],
            "num_local_experts": experts,
            "num_experts_per_tok": self.needed("expert_used_count")?,
            "moe_intermediate_size": self.size("expert_feed_forward_length")?,
            "shared_expert_intermediate_size": shared.and_then(|tensor| tensor.shape.first()),
            "norm_topk_prob": self.family.name != "qwen2moe",
        });
        if let Value::Object(fields) = fields {
            object.extend(fields);
        }
        Ok(())
    }

    /// What to compute in: as most of the matrices are stored. Quantised ones fit in f16 with less loss than in bf16,
    /// but the activations of some families leave the range of f16.
    fn dtype(&self) -> &'static str {
        let matrix = self.gguf.tensors().iter().find(|tensor| tensor.name.ends_with(".attn_output.weight"));
        match matrix.map(|tensor| tensor.kind) {
            Some(TensorType::F32) => "float32",
            Some(TensorType::Bf16) => "bfloat16",
            _ if WIDE.contains(&self.family.name) => "bfloat16",
            _ => "float16",
        }
    }

    fn tokens(&self, object: &mut Map<String, Value>) -> Result<(), ConfigError> {
        let id = |name: &str| self.gguf.whole(&format!("tokenizer.ggml.{name}_token_id"));
        let mut ends: Vec<u64> = Vec::new();
        for name in ["eos", "eot", "eom"] {
            ends.extend(id(name)?);
        }
        let kinds = self.gguf.numbers("tokenizer.ggml.token_type")?.unwrap_or_default();
        let texts = self.gguf.texts("tokenizer.ggml.tokens")?.unwrap_or_default();
        let (part, whole) = PART_END;
        let is_end = |text: &str| TURN_ENDS.contains(&text) && (text != part || !texts.contains(&whole));
        let control = texts.iter().zip(kinds).enumerate().filter(|(_, (_, kind))| *kind == CONTROL);
        ends.extend(control.filter(|(_, (text, _))| is_end(text)).map(|(id, _)| id as u64));
        ends.sort_unstable();
        ends.dedup();
        object.insert("bos_token_id".to_owned(), id("bos")?.into());
        object.insert("eos_token_id".to_owned(), ends.into());
        Ok(())
    }

    /// Scaling as `rope_scaling`. Llama 3's is stored as one factor a frequency, which is what `longrope` is made of.
    fn rope_scaling(&self) -> Result<Option<Value>, ConfigError> {
        if let Some(tensor) = self.gguf.tensor("rope_freqs.weight") {
            let factors = self.gguf.floats(tensor)?;
            return Ok(Some(json!({
                "rope_type": "longrope", "short_factor": factors, "long_factor": factors, "attention_factor": 1.0,
            })));
        }
        let lists = ["short", "long"].map(|list| self.gguf.tensor(&format!("rope_factors_{list}.weight")));
        if let [Some(short), Some(long)] = lists {
            let mut scaling = json!({
                "rope_type": "longrope",
                "short_factor": self.gguf.floats(short)?,
                "long_factor": self.gguf.floats(long)?,
            });
            let more = [
                ("attention_factor", "rope.scaling.attn_factor"),
                ("original_max_position_embeddings", "rope.scaling.original_context_length"),
            ];
            for (name, key) in more {
                if let Some(number) = self.number(key)? {
                    scaling[name] = number.into();
                }
            }
            return Ok(Some(scaling));
        }
        let key = self.key("rope.scaling.type");
        let factor = self.number("rope.scaling.factor")?;
        match (self.gguf.text(&key)?, factor) {
            (None | Some("none"), _) => Ok(None),
            (Some("linear"), Some(factor)) => Ok(Some(json!({ "rope_type": "linear", "factor": factor }))),
            (Some("yarn"), Some(factor)) => {
                let original = self.number("rope.scaling.original_context_length")?;
                // Not in the file: gpt-oss alone does not round where frequencies begin and end to be scaled.
                let truncate = self.family.name != "gpt-oss";
                Ok(Some(json!({
                    "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original,
                    "truncate": truncate,
                })))
            }
            (Some(other), _) => {
                Err(self.unsupported(format!("{key} is {other:?}; expected none, linear or yarn with a factor")))
            }
        }
    }
}
