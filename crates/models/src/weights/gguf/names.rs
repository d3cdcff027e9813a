//! What GGUF files call the weights that Llama's files, and those that follow them, call otherwise.

use model_spec::GgufFamily;

/// Where a weight is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StoredName {
    pub name: String,
    /// Where else: experts have a tensor each in old files, one for all in newer ones.
    pub expert: Option<Expert>,
}

/// One of the experts in a tensor of all.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Expert {
    pub tensor: String,
    pub number: usize,
}

/// The tensor in the file for a name such as `model.layers.3.self_attn.q_proj.weight`.
pub(super) fn stored(name: &str, family: &GgufFamily) -> Option<StoredName> {
    let (stem, ending) = if name.ends_with(".sinks") { (name, "weight") } else { name.rsplit_once('.')? };
    let whole = |stored: String| StoredName { name: format!("{stored}.{ending}"), expert: None };
    let (layer, part) = match stem {
        "model.embed_tokens" | "transformer.word_embeddings" | "transformer.wte" => {
            return Some(whole("token_embd".to_owned()));
        }
        "transformer.wpe" => return Some(whole("position_embd".to_owned())),
        "model.norm" | "transformer.ln_f" => return Some(whole("output_norm".to_owned())),
        "lm_head" => return Some(whole("output".to_owned())),
        _ => stem.strip_prefix("model.layers.").or_else(|| stem.strip_prefix("transformer.h."))?.split_once('.')?,
    };
    if let Some((number, stored)) = expert(part) {
        let expert = Expert { tensor: format!("blk.{layer}.{stored}_exps.{ending}"), number };
        return Some(StoredName { expert: Some(expert), ..whole(format!("blk.{layer}.{stored}.{number}")) });
    }
    if family.post_attention_norm && part == "post_attention_layernorm" {
        return Some(whole(format!("blk.{layer}.post_attention_norm")));
    }
    let (_, stored) = PARTS.iter().find(|(name, _)| *name == part)?;
    Some(whole(format!("blk.{layer}.{stored}")))
}

/// The number of the expert that a part of a layer is of, and what files call its projection.
fn expert(part: &str) -> Option<(usize, &'static str)> {
    let part = part.strip_prefix("mlp.experts.").or_else(|| part.strip_prefix("block_sparse_moe.experts."))?;
    let (number, projection) = part.split_once('.')?;
    let stored = match projection {
        "gate_proj" | "w1" => "ffn_gate",
        "up_proj" | "w3" => "ffn_up",
        "down_proj" | "w2" => "ffn_down",
        _ => return None,
    };
    Some((number.parse().ok()?, stored))
}

/// Parts of a layer, sorted.
const PARTS: &[(&str, &str)] = &[
    ("attn.c_attn", "attn_qkv"),
    ("attn.c_proj", "attn_output"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
    ("input_layernorm", "attn_norm"),
    ("ln_1", "attn_norm"),
    ("ln_2", "ffn_norm"),
    ("ln_attn", "attn_norm_2"),
    ("ln_mlp", "attn_norm"),
    ("mlp.c_fc", "ffn_up"),
    ("mlp.c_proj", "ffn_down"),
    ("mlp.dense_4h_to_h", "ffn_down"),
    ("mlp.dense_h_to_4h", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.router", "ffn_gate_inp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    ("mlp.up_proj", "ffn_up"),
    ("post_attention_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("post_mlp_layernorm", "post_ffw_norm"),
    ("post_self_attn_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("self_attention.dense", "attn_output"),
    ("self_attention.query_key_value", "attn_qkv"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("self_attn.sinks", "attn_sinks"),
    ("self_attn.v_proj", "attn_v"),
];

/// A projection whose heads are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Projection {
    Query,
    Key,
}

/// Which projection a tensor belongs to, if it is one whose heads are rotated.
pub(super) fn projection(name: &str) -> Option<Projection> {
    let stem = name.rsplit_once('.')?.0;
    let is = |part| stem.ends_with(part);
    if is(".q_proj") {
        return Some(Projection::Query);
    }
    is(".k_proj").then_some(Projection::Key)
}

/// Whether a tensor scales what a norm has normalised.
pub(super) fn is_norm(name: &str) -> bool {
    name.ends_with("norm.weight")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_sorted() {
        assert!(PARTS.is_sorted());
    }

    #[test]
    fn a_norm_after_attention_is_not_the_one_before_the_mlp() {
        let of = |family: &str, name: &str| {
            let family = GgufFamily::all().iter().find(|one| one.name == family).expect("a family");
            stored(&format!("model.layers.3.{name}.weight"), family).expect("a name").name
        };
        assert_eq!(of("llama", "post_attention_layernorm"), "blk.3.ffn_norm.weight");
        for family in ["gemma2", "gemma3"] {
            assert_eq!(of(family, "post_attention_layernorm"), "blk.3.post_attention_norm.weight");
            assert_eq!(of(family, "pre_feedforward_layernorm"), "blk.3.ffn_norm.weight");
            assert_eq!(of(family, "post_feedforward_layernorm"), "blk.3.post_ffw_norm.weight");
        }
    }

    #[test]
    fn experts_lie_in_a_tensor_each_or_in_one_of_all() {
        let found = |name: &str| stored(name, &GgufFamily::all()[0]).expect("a name");
        let expected = StoredName {
            name: "blk.1.ffn_down.7.weight".to_owned(),
            expert: Some(Expert { tensor: "blk.1.ffn_down_exps.weight".to_owned(), number: 7 }),
        };
        assert_eq!(found("model.layers.1.mlp.experts.7.down_proj.weight"), expected);
        assert_eq!(found("model.layers.1.block_sparse_moe.experts.7.w2.weight"), expected);
        assert_eq!(found("model.layers.1.mlp.gate.weight").name, "blk.1.ffn_gate_inp.weight");
    }
}
