//! What a family's files call the weights, and where those lie in fused tensors.

use super::expert_naming::ExpertNaming;
use crate::weights::{FusedShard, LayerParam, MlpParam, Names, ParamId, TensorLocation};

/// Names of a family's tensors, without the ending `.weight` or `.bias`.
#[derive(Clone, Copy)]
pub(super) struct Naming {
    pub embedding: &'static str,
    pub embedding_norm: &'static str,
    pub positions: &'static str,
    pub token_types: &'static str,
    pub project_in: &'static str,
    pub project_out: &'static str,
    pub final_norm: &'static str,
    pub head_dense: &'static str,
    pub head_norm: &'static str,
    pub relative_bias: &'static str,
    pub head: &'static str,
    /// What a layer's number follows.
    pub layers: &'static str,
    /// What follows a layer's number. Fused weights share a name.
    pub part: fn(LayerParam) -> &'static str,
    /// Queries, keys and values share a tensor, each with these rows.
    pub qkv: Option<[FusedShard; 3]>,
    /// Gate and up share a tensor, each with these rows.
    pub gate_up: Option<[FusedShard; 2]>,
    /// The same of the expert that all tokens share.
    pub shared_gate_up: Option<[FusedShard; 2]>,
    /// The layers' matrices are `Conv1D`s: stored `[in, out]`.
    pub conv1d: bool,
    /// Where the experts of MoE layers lie.
    pub experts: ExpertNaming,
}

/// As in Llama's files, which many follow.
pub(super) const LLAMA: Naming = Naming {
    embedding: "model.embed_tokens",
    embedding_norm: "",
    positions: "",
    token_types: "",
    project_in: "",
    project_out: "",
    final_norm: "model.norm",
    head_dense: "",
    head_norm: "",
    relative_bias: "",
    head: "lm_head",
    layers: "model.layers",
    part: llama_part,
    qkv: None,
    gate_up: None,
    shared_gate_up: None,
    conv1d: false,
    experts: ExpertNaming::None,
};

impl Naming {
    /// The names as a function.
    pub(super) fn names(self) -> Names {
        Box::new(move |slot, kind| {
            let ending = kind.ending();
            let whole = match slot {
                ParamId::Embedding => self.embedding,
                ParamId::EmbeddingNorm => self.embedding_norm,
                ParamId::Positions => self.positions,
                ParamId::TokenTypes => self.token_types,
                ParamId::HeadDense => self.head_dense,
                ParamId::HeadNorm => self.head_norm,
                ParamId::RelativeBias => self.relative_bias,
                ParamId::Projection(_) => "linear",
                ParamId::ProjectIn => self.project_in,
                ParamId::ProjectOut => self.project_out,
                ParamId::FinalNorm => self.final_norm,
                ParamId::Head => self.head,
                ParamId::Layer(layer, LayerParam::Expert(expert, piece)) => {
                    return self.experts.location(&format!("{}.{layer}", self.layers), expert, piece, kind);
                }
                ParamId::Layer(layer, part) => {
                    let name = format!("{}.{layer}.{}", self.layers, (self.part)(part));
                    let tensor = if is_bare(part) { name } else { format!("{name}.{ending}") };
                    let (rows, conv1d) = (self.rows(part), self.conv1d);
                    return TensorLocation { tensor, stack: None, rows, transposed: conv1d, conv1d };
                }
            };
            format!("{whole}.{ending}").into()
        })
    }

    fn rows(&self, part: LayerParam) -> FusedShard {
        let rows = match part {
            LayerParam::Query => self.qkv.map(|[rows, _, _]| rows),
            LayerParam::Key => self.qkv.map(|[_, rows, _]| rows),
            LayerParam::Value => self.qkv.map(|[_, _, rows]| rows),
            LayerParam::Gate => self.gate_up.map(|[rows, _]| rows),
            LayerParam::Up => self.gate_up.map(|[_, rows]| rows),
            LayerParam::Shared(MlpParam::Gate) => self.shared_gate_up.map(|[rows, _]| rows),
            LayerParam::Shared(MlpParam::Up) => self.shared_gate_up.map(|[_, rows]| rows),
            _ => None,
        };
        rows.unwrap_or(FusedShard::ALL)
    }
}

/// Whether a name is the whole of it.
fn is_bare(part: LayerParam) -> bool {
    matches!(part, LayerParam::Sinks | LayerParam::RouterCorrection)
}

/// Names of the parts of a layer as in Llama's files.
fn llama_part(part: LayerParam) -> &'static str {
    match part {
        LayerParam::BeforeAttention => "input_layernorm",
        LayerParam::BeforeMlp => "post_attention_layernorm",
        LayerParam::AfterAttention => "post_self_attn_layernorm",
        LayerParam::AfterMlp => "post_mlp_layernorm",
        LayerParam::Query => "self_attn.q_proj",
        LayerParam::Key => "self_attn.k_proj",
        LayerParam::Value => "self_attn.v_proj",
        LayerParam::Output => "self_attn.o_proj",
        LayerParam::QueryNorm | LayerParam::QueryHeadNorm(_) => "self_attn.q_norm",
        LayerParam::KeyNorm | LayerParam::KeyHeadNorm(_) => "self_attn.k_norm",
        LayerParam::Sinks => "self_attn.sinks",
        LayerParam::MixerGate | LayerParam::MixerNorm => "self_attn.gate",
        LayerParam::Taps
        | LayerParam::ScanInput
        | LayerParam::StateInput
        | LayerParam::StateOutput
        | LayerParam::Step
        | LayerParam::StepDown
        | LayerParam::StepBias
        | LayerParam::Beta
        | LayerParam::Decay
        | LayerParam::Skip => "linear_attn",
        LayerParam::Gate => "mlp.gate_proj",
        LayerParam::Up => "mlp.up_proj",
        LayerParam::Down => "mlp.down_proj",
        LayerParam::Router => "mlp.gate",
        LayerParam::RouterCorrection => "mlp.gate.e_score_correction_bias",
        LayerParam::Shared(MlpParam::Gate) => "mlp.shared_experts.gate_proj",
        LayerParam::Shared(MlpParam::Up) => "mlp.shared_experts.up_proj",
        LayerParam::Shared(MlpParam::Down) => "mlp.shared_experts.down_proj",
        LayerParam::SharedGate => "mlp.shared_expert_gate",
        LayerParam::Expert(..) => "mlp.experts",
        LayerParam::QueryDown => "self_attn.q_a_proj",
        LayerParam::QueryDownNorm => "self_attn.q_a_layernorm",
        LayerParam::QueryUp => "self_attn.q_b_proj",
        LayerParam::KvDown => "self_attn.kv_a_proj_with_mqa",
        LayerParam::KvDownNorm => "self_attn.kv_a_layernorm",
        LayerParam::KvUp => "self_attn.kv_b_proj",
    }
}
