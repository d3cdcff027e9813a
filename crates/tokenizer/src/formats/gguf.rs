//! The tokenizer inside a GGUF file (`tokenizer.ggml.*`).

use model_files::Gguf;
use tokenizers::AddedToken;

use super::{
    Beside, Built,
    byte_level::ByteLevel,
    pieces::{Algorithm, Piece, PieceKind, Pieces, Prefix},
    splits,
};

/// Reads the metadata.
pub(super) fn build(gguf: &Gguf, beside: &Beside) -> tokenizers::Result<Built> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let texts = gguf.texts(&key("tokens"))?.ok_or_else(|| gguf.missing(&key("tokens"), "a list of texts"))?;
    let mut kinds = gguf.numbers(&key("token_type"))?.unwrap_or_default().into_iter();
    let mut scores = gguf.numbers(&key("scores"))?.unwrap_or_default().into_iter();
    let pieces: Vec<Piece> = (texts.into_iter())
        .map(|text| Piece {
            text: text.to_owned(),
            score: scores.next().unwrap_or_default() as f32,
            kind: kinds.next().map_or(PieceKind::Normal, |kind| PieceKind::from_number(kind as i64)),
        })
        .collect();
    let flag = |name: &str| gguf.flag(&key(name));
    let model = gguf.text(&key("model"))?.unwrap_or_default();
    let (reference, add_bos) = match model {
        "llama" | "t5" => {
            let unigram = model == "t5";
            let charsmap = gguf.numbers(&key("precompiled_charsmap"))?.unwrap_or_default();
            let pieces = Pieces {
                pieces,
                algorithm: if unigram { Algorithm::Unigram } else { Algorithm::Bpe },
                charsmap: charsmap.into_iter().map(|byte| byte as u8).collect(),
                prefix: match flag("add_space_prefix")? {
                    Some(false) => Prefix::Never,
                    _ => Prefix::Each,
                },
                remove_extra_whitespaces: flag("remove_extra_whitespaces")?.unwrap_or(unigram),
            };
            (pieces.build(beside)?, !unigram)
        }
        "gpt2" => {
            let splits = splits::named(gguf.text(&key("pre"))?.unwrap_or("none (tokenizer.ggml.pre is absent)"))?;
            (byte_level(gguf, &key("merges"), &pieces, splits)?.build(beside)?, splits.add_bos)
        }
        other => return Err(format!("its tokenizer.ggml.model is {other:?}; expected gpt2, llama or t5").into()),
    };
    Ok(Built {
        reference,
        add_bos: flag("add_bos_token")?.unwrap_or(add_bos),
        add_eos: flag("add_eos_token")?.unwrap_or(model == "t5"),
        roles: gguf.token_roles()?.into_iter().map(|(role, text)| (role.to_owned(), text.to_owned())).collect(),
    })
}

fn byte_level(
    gguf: &Gguf,
    merges: &str,
    pieces: &[Piece],
    splits: &'static splits::Splits,
) -> tokenizers::Result<ByteLevel> {
    let pair = |merge: &str| merge.split_once(' ').map(|(left, right)| (left.to_owned(), right.to_owned()));
    let merges = gguf.texts(merges)?.ok_or_else(|| gguf.missing(merges, "a list of texts"))?;
    let merges = merges.into_iter().map(pair).collect::<Option<_>>().ok_or("a merge is no pair of tokens")?;
    let added = |(id, piece): (usize, &Piece)| {
        let special = match piece.kind {
            PieceKind::Control | PieceKind::Unknown => true,
            PieceKind::UserDefined => false,
            _ => return None,
        };
        Some((id as u32, AddedToken::from(piece.text.as_str(), special).normalized(false)))
    };
    Ok(ByteLevel {
        tokens: pieces.iter().enumerate().map(|(id, piece)| (id as u32, piece.text.clone())).collect(),
        merges,
        splits,
        added: pieces.iter().enumerate().filter_map(added).collect(),
    })
}
