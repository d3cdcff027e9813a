//! What a family's files call the weights, and where those lie in fused tensors.

use super::expert_naming::ExpertNaming;
use crate::weights::{Kind, Names, Part, Piece, Place, Slot, Stripes};

/// Names of a family's tensors, without the ending `.weight` or `.bias`.
#[derive(Clone, Copy)]
pub(super) struct Naming {
    pub embedding: &'static str,
    pub embedding_norm: &'static str,
    pub positions: &'static str,
    pub project_in: &'static str,
    pub project_out: &'static str,
    pub final_norm: &'static str,
    pub head: &'static str,
    /// What a layer's number follows.
    pub layers: &'static str,
    /// What follows a layer's number. Fused weights share a name.
    pub part: fn(Part) -> &'static str,
    /// Queries, keys and values share a tensor, each with these rows.
    pub qkv: Option<[Stripes; 3]>,
    /// Gate and up share a tensor, each with these rows.
    pub gate_up: Option<[Stripes; 2]>,
    /// The layers' matrices are stored `[in, out]`.
    pub transposed: bool,
    /// Where the experts of MoE layers lie.
    pub experts: ExpertNaming,
}

/// As in Llama's files, which many follow.
pub(super) const LLAMA: Naming = Naming {
    embedding: "model.embed_tokens",
    embedding_norm: "",
    positions: "",
    project_in: "",
    project_out: "",
    final_norm: "model.norm",
    head: "lm_head",
    layers: "model.layers",
    part: llama_part,
    qkv: None,
    gate_up: None,
    transposed: false,
    experts: ExpertNaming::None,
};

impl Naming {
    /// The names as a function.
    pub(super) fn names(self) -> Names {
        Box::new(move |slot, kind| {
            let ending = match kind {
                Kind::Weight => "weight",
                Kind::Bias => "bias",
            };
            let whole = match slot {
                Slot::Embedding => self.embedding,
                Slot::EmbeddingNorm => self.embedding_norm,
                Slot::Positions => self.positions,
                Slot::ProjectIn => self.project_in,
                Slot::ProjectOut => self.project_out,
                Slot::FinalNorm => self.final_norm,
                Slot::Head => self.head,
                Slot::Layer(layer, Part::Expert(expert, piece)) => {
                    return self.experts.place(&format!("{}.{layer}", self.layers), expert, piece, kind);
                }
                Slot::Layer(layer, part) => {
                    let name = format!("{}.{layer}.{}", self.layers, (self.part)(part));
                    let tensor = if is_bare(part) { name } else { format!("{name}.{ending}") };
                    return Place { tensor, stack: None, rows: self.rows(part), transposed: self.transposed };
                }
            };
            format!("{whole}.{ending}").into()
        })
    }

    fn rows(&self, part: Part) -> Stripes {
        match (part, self.qkv, self.gate_up) {
            (Part::Query, Some([rows, _, _]), _)
            | (Part::Key, Some([_, rows, _]), _)
            | (Part::Value, Some([_, _, rows]), _)
            | (Part::Gate, _, Some([rows, _]))
            | (Part::Up, _, Some([_, rows])) => rows,
            _ => Stripes::ALL,
        }
    }
}

/// Whether a name is the whole of it.
fn is_bare(part: Part) -> bool {
    matches!(part, Part::Sinks | Part::RouterCorrection)
}

/// Names of the parts of a layer as in Llama's files.
fn llama_part(part: Part) -> &'static str {
    match part {
        Part::BeforeAttention => "input_layernorm",
        Part::BeforeMlp => "post_attention_layernorm",
        Part::AfterAttention => "post_self_attn_layernorm",
        Part::AfterMlp => "post_mlp_layernorm",
        Part::Query => "self_attn.q_proj",
        Part::Key => "self_attn.k_proj",
        Part::Value => "self_attn.v_proj",
        Part::Output => "self_attn.o_proj",
        Part::QueryNorm | Part::QueryHeadNorm(_) => "self_attn.q_norm",
        Part::KeyNorm | Part::KeyHeadNorm(_) => "self_attn.k_norm",
        Part::Sinks => "self_attn.sinks",
        Part::MixerGate | Part::MixerNorm => "self_attn.gate",
        Part::Taps
        | Part::ScanInput
        | Part::StateInput
        | Part::StateOutput
        | Part::Step
        | Part::StepDown
        | Part::StepBias
        | Part::Beta
        | Part::Decay
        | Part::Skip => "linear_attn",
        Part::Gate => "mlp.gate_proj",
        Part::Up => "mlp.up_proj",
        Part::Down => "mlp.down_proj",
        Part::Router => "mlp.gate",
        Part::RouterCorrection => "mlp.gate.e_score_correction_bias",
        Part::Shared(Piece::Gate) => "mlp.shared_experts.gate_proj",
        Part::Shared(Piece::Up) => "mlp.shared_experts.up_proj",
        Part::Shared(Piece::Down) => "mlp.shared_experts.down_proj",
        Part::SharedGate => "mlp.shared_expert_gate",
        Part::Expert(..) => "mlp.experts",
        Part::QueryDown => "self_attn.q_a_proj",
        Part::QueryDownNorm => "self_attn.q_a_layernorm",
        Part::QueryUp => "self_attn.q_b_proj",
        Part::KvDown => "self_attn.kv_a_proj_with_mqa",
        Part::KvDownNorm => "self_attn.kv_a_layernorm",
        Part::KvUp => "self_attn.kv_b_proj",
    }
}
