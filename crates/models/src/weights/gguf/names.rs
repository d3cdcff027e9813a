//! What GGUF files call the weights that Llama's files, and those that follow them, call otherwise.

/// The tensor in the file for a name such as `model.layers.3.self_attn.q_proj.weight`.
pub(super) fn stored(name: &str) -> Option<String> {
    let (stem, ending) = name.rsplit_once('.')?;
    let stored = match stem {
        "model.embed_tokens" => "token_embd".to_owned(),
        "model.norm" => "output_norm".to_owned(),
        "lm_head" => "output".to_owned(),
        _ => {
            let (layer, part) = stem.strip_prefix("model.layers.")?.split_once('.')?;
            let (_, stored) = PARTS.iter().find(|(name, _)| *name == part)?;
            format!("blk.{layer}.{stored}")
        }
    };
    Some(format!("{stored}.{ending}"))
}

/// Parts of a layer, sorted.
const PARTS: &[(&str, &str)] = &[
    ("input_layernorm", "attn_norm"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("post_attention_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.q_proj", "attn_q"),
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
