//! BERT and RoBERTa: encoders whose tokens see both ways, normed after each add, with learned positions and types of
//! tokens.

use model_spec::{
    AttentionSpec, Biases, ClassesSpec, ConfigError, DenseSpec, EmbeddingSpec, HeadActivation, HeadSpec, LayerNorms,
    Mask, MlpKind, MlpSpec, NormSpec, Position, PositionTable, Residual, ScoredTokens,
};

use super::naming::{LLAMA, Naming};
use super::parts::{Sizes, Tied, activation, layer};
use super::{Blueprint, Folder};
use crate::weights::{LayerParam, Names, ParamId};

/// BERT: positions begin with the table's first row.
pub(super) fn bert(folder: &Folder) -> Result<Blueprint, ConfigError> {
    encoder(folder, 0, BERT)
}

/// RoBERTa and XLM-RoBERTa: positions begin behind the padding token's.
pub(super) fn roberta(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let padding = folder.config.token_ids("pad_token_id")?.first().copied().unwrap_or(1);
    encoder(folder, padding as usize + 1, ROBERTA)
}

fn encoder(folder: &Folder, offset: usize, naming: Naming) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    if config.text_or("position_embedding_type", "absolute")? != "absolute" {
        return Err(config.unsupported("position_embedding_type", "expected absolute"));
    }
    let sizes = Sizes::read(config)?;
    let mlp = sizes.mlp(MlpKind::Plain, activation(config, "hidden_act", "gelu")?, true);
    let encoder = Encoder {
        attention: sizes.attention(Position::None, Biases { qkv: true, output: true }),
        mlp,
        norm: NormSpec::layer(config.number_or("layer_norm_eps", 1e-12)? as f32),
        token_types: config.size_opt("type_vocab_size")?,
        positions: Some(offset),
        naming,
    };
    encoder.blueprint(folder, &sizes)
}

/// An encoder of equal layers, normed after each add and after the embedding.
pub(super) struct Encoder {
    pub attention: AttentionSpec,
    pub mlp: MlpSpec,
    /// All its norms.
    pub norm: NormSpec,
    pub token_types: Option<usize>,
    /// Row of position 0 in a table of learned positions, if there is one: it has a row for each position of the
    /// file's context.
    pub positions: Option<usize>,
    pub naming: Naming,
}

impl Encoder {
    pub(super) fn blueprint(self, folder: &Folder, sizes: &Sizes) -> Result<Blueprint, ConfigError> {
        let Self { mut attention, mlp, norm, token_types, positions, naming } = self;
        attention.mask = Mask::Bidirectional;
        let mut layers = vec![layer(attention, mlp, LayerNorms::before(norm), Residual::Normed); sizes.layers];
        // The embedding is normed already; what leaves the last layer is normed by the final norm.
        layers[0].norms.before_attention = None;
        let mut spec = sizes.model(folder, layers, norm, Tied::IfSaid)?;
        let (rows, offset) = (spec.context_len, positions.unwrap_or(0));
        if rows <= offset {
            let reason = "expected positions behind the padding token's";
            return Err(folder.config.unsupported("max_position_embeddings", reason));
        }
        spec.context_len = rows - offset;
        spec.head = HeadSpec::Hidden;
        let positions = positions.map(|offset| PositionTable { rows, offset });
        spec.embedding = EmbeddingSpec { token_types, positions, norm: Some(norm), ..spec.embedding };
        Ok(Blueprint { spec, names: norms_of_the_part_before(naming, sizes.layers) })
    }
}

/// A norm after an add belongs to the part that follows it: the MLP, the next layer's attention, or the head.
pub(super) fn norms_of_the_part_before(naming: Naming, layers: usize) -> Names {
    let names = naming.names();
    Box::new(move |id, kind| {
        let id = match id {
            ParamId::Layer(layer, LayerParam::BeforeAttention) => {
                ParamId::Layer(layer.saturating_sub(1), LayerParam::AfterMlp)
            }
            ParamId::Layer(layer, LayerParam::BeforeMlp) => ParamId::Layer(layer, LayerParam::AfterAttention),
            ParamId::FinalNorm => ParamId::Layer(layers - 1, LayerParam::AfterMlp),
            other => other,
        };
        names(id, kind)
    })
}

/// Class scores of the first token: its pooler (dense and tanh), then the classifier.
pub(super) fn classes(count: usize) -> ClassesSpec {
    let dense = DenseSpec { activation: HeadActivation::Tanh, bias: true, norm: None };
    ClassesSpec { count, bias: true, dense: Some(dense), of: ScoredTokens::First, tokens: None }
}

pub(super) const BERT: Naming = Naming {
    embedding: "bert.embeddings.word_embeddings",
    embedding_norm: "bert.embeddings.LayerNorm",
    positions: "bert.embeddings.position_embeddings",
    token_types: "bert.embeddings.token_type_embeddings",
    head_dense: "bert.pooler.dense",
    head: "classifier",
    layers: "bert.encoder.layer",
    part,
    ..LLAMA
};

const ROBERTA: Naming = Naming {
    embedding: "roberta.embeddings.word_embeddings",
    embedding_norm: "roberta.embeddings.LayerNorm",
    positions: "roberta.embeddings.position_embeddings",
    token_types: "roberta.embeddings.token_type_embeddings",
    head_dense: "classifier.dense",
    head: "classifier.out_proj",
    layers: "roberta.encoder.layer",
    part,
    ..LLAMA
};

pub(super) fn part(part: LayerParam) -> &'static str {
    match part {
        LayerParam::AfterAttention => "attention.output.LayerNorm",
        LayerParam::AfterMlp => "output.LayerNorm",
        LayerParam::Query => "attention.self.query",
        LayerParam::Key => "attention.self.key",
        LayerParam::Value => "attention.self.value",
        LayerParam::Output => "attention.output.dense",
        LayerParam::Up => "intermediate.dense",
        LayerParam::Down => "output.dense",
        other => (LLAMA.part)(other),
    }
}
