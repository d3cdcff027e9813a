//! JinaBERT (jina-embeddings-v2): BERT with ALiBi in the place of positions, and gated MLPs.

use model_spec::{Activation, Biases, ConfigError, MlpBias, MlpKind, NormSpec, Position, alibi_slopes};

use super::bert::{self, Encoder};
use super::naming::Naming;
use super::parts::Sizes;
use super::{Blueprint, Folder};
use crate::weights::LayerParam;

pub(super) fn jina_bert(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    if config.text_or("position_embedding_type", "absolute")? != "alibi" {
        return Err(config.unsupported("position_embedding_type", "expected alibi"));
    }
    let code = config.object("auto_map")?.map_or(Ok(String::new()), |map| map.text_or("AutoModel", ""))?;
    if code.contains("qk-post-norm") {
        return Err(config.unsupported("auto_map", "norms of queries and keys of this class are not read"));
    }
    let activation = match config.text_or("feed_forward_type", "original")?.as_str() {
        "geglu" => Activation::Gelu,
        "reglu" => Activation::Relu,
        _ => return Err(config.unsupported("feed_forward_type", "expected geglu or reglu")),
    };
    let sizes = Sizes::read(config)?;
    let slopes = Position::Alibi(alibi_slopes(sizes.heads, 8.0));
    let encoder = Encoder {
        attention: sizes.attention(slopes, Biases { qkv: true, output: true }),
        mlp: sizes.mlp(MlpKind::Gated, activation, MlpBias { up: false, down: true }),
        norm: NormSpec::layer(config.number_or("layer_norm_eps", 1e-12)? as f32),
        token_types: config.size_opt("type_vocab_size")?,
        positions: None,
        naming: Naming { gate_up: Some(sizes.gate_up()), part, ..bert::BERT },
    };
    encoder.blueprint(folder, &sizes)
}

fn part(part: LayerParam) -> &'static str {
    match part {
        LayerParam::AfterMlp => "mlp.layernorm",
        LayerParam::Gate | LayerParam::Up => "mlp.gated_layers",
        LayerParam::Down => "mlp.wo",
        other => bert::part(other),
    }
}
