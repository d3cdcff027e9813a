//! SentencePiece's `tokenizer.model`: a protobuf message (`sentencepiece_model.proto`), of which these are the fields
//! that matter.

use prost::Message;

use super::{
    Beside, Built,
    pieces::{Algorithm, Piece, PieceKind, Pieces, Prefix},
};

#[derive(Clone, PartialEq, Message)]
struct ModelProto {
    #[prost(message, repeated, tag = "1")]
    pieces: Vec<PieceProto>,
    #[prost(message, optional, tag = "2")]
    trainer: Option<TrainerProto>,
    #[prost(message, optional, tag = "3")]
    normalizer: Option<NormalizerProto>,
}

#[derive(Clone, PartialEq, Message)]
struct PieceProto {
    #[prost(string, optional, tag = "1")]
    piece: Option<String>,
    #[prost(float, optional, tag = "2")]
    score: Option<f32>,
    #[prost(int32, optional, tag = "3", default = "1")]
    kind: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct TrainerProto {
    #[prost(int32, optional, tag = "3", default = "1")]
    model_type: Option<i32>,
    #[prost(bool, optional, tag = "24")]
    treat_whitespace_as_suffix: Option<bool>,
    #[prost(int32, optional, tag = "41", default = "1")]
    bos_id: Option<i32>,
    #[prost(int32, optional, tag = "42", default = "2")]
    eos_id: Option<i32>,
    #[prost(int32, optional, tag = "43", default = "-1")]
    pad_id: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct NormalizerProto {
    #[prost(bytes = "vec", optional, tag = "2")]
    charsmap: Option<Vec<u8>>,
    #[prost(bool, optional, tag = "3", default = "true")]
    add_dummy_prefix: Option<bool>,
    #[prost(bool, optional, tag = "4", default = "true")]
    remove_extra_whitespaces: Option<bool>,
    #[prost(bool, optional, tag = "5", default = "true")]
    escape_whitespaces: Option<bool>,
}

/// Classes that put no begin-of-text token before texts unless their configuration says so.
const WITHOUT_BOS: &[&str] = &["AlbertTokenizer", "ChatGLMTokenizer", "T5Tokenizer", "XGLMTokenizer", "XLNetTokenizer"];
/// Classes that put an end-of-text token behind texts.
const WITH_EOS: &[&str] = &["T5Tokenizer", "XLMRobertaTokenizer"];

/// Reads the model.
pub(super) fn build(bytes: &[u8], beside: &Beside) -> tokenizers::Result<Built> {
    let model = ModelProto::decode(bytes).map_err(|error| format!("it is no SentencePiece model: {error}"))?;
    if model.pieces.is_empty() {
        return Err("it is no SentencePiece model: it has no pieces".into());
    }
    let (trainer, normalizer) = (model.trainer.unwrap_or_default(), model.normalizer.unwrap_or_default());
    let algorithm = match trainer.model_type() {
        1 => Algorithm::Unigram,
        2 => Algorithm::Bpe,
        other => return Err(format!("its model type {other} is not supported; expected 1 (unigram) or 2 (BPE)").into()),
    };
    if trainer.treat_whitespace_as_suffix() || !normalizer.escape_whitespaces() {
        return Err("spaces as suffixes, and spaces that are not escaped, are not supported".into());
    }
    let text =
        |id: i32| usize::try_from(id).ok().and_then(|id| model.pieces.get(id)).map(|piece| piece.piece().to_owned());
    let unknown = model.pieces.iter().find(|piece| piece.kind() == 2).map(|piece| piece.piece().to_owned());
    let roles = [
        ("bos_token", text(trainer.bos_id())),
        ("eos_token", text(trainer.eos_id())),
        ("unk_token", unknown),
        ("pad_token", text(trainer.pad_id())),
    ];
    let piece = |piece: &PieceProto| Piece {
        text: piece.piece().to_owned(),
        score: piece.score(),
        kind: PieceKind::from_number(piece.kind().into()),
    };
    let pieces = Pieces {
        pieces: model.pieces.iter().map(piece).collect(),
        algorithm,
        charsmap: normalizer.charsmap().to_vec(),
        prefix: if normalizer.add_dummy_prefix() { prefix(beside) } else { Prefix::Never },
        remove_extra_whitespaces: normalizer.remove_extra_whitespaces(),
    };
    Ok(Built {
        reference: pieces.build(beside)?,
        add_bos: !WITHOUT_BOS.contains(&beside.class.as_str()),
        add_eos: WITH_EOS.contains(&beside.class.as_str()),
        roles: roles.into_iter().filter_map(|(role, text)| Some((role.to_owned(), text?))).collect(),
    })
}

/// What the tokenizer's class makes of a model that puts a space before texts. Llama's class is `legacy` only if its
/// file says so, the others unless it says otherwise, and Code Llama's never is.
fn prefix(beside: &Beside) -> Prefix {
    let (is_llama, is_legacy) = match beside.class.as_str() {
        "CodeLlamaTokenizer" => (true, false),
        "LlamaTokenizer" => (true, beside.legacy == Some(true)),
        _ => (false, beside.legacy != Some(false)),
    };
    match is_legacy {
        _ if is_llama && beside.add_prefix_space == Some(false) => Prefix::Never,
        true => Prefix::Each,
        false => Prefix::First,
    }
}
