//! Recognises decoders that work token by token, so that they can be replaced by a table.

use serde_json::Value;
use tokenizers::DecoderWrapper;

/// How a tokenizer's decoder joins tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecoderShape {
    /// Each token is a piece of bytes; the bytes together are UTF-8 (GPT-2, Llama 3, Qwen).
    ByteLevel,
    /// Text pieces, single-byte tokens such as `<0x0A>`, and spaces cut from the start (Llama 2, Mistral, Gemma).
    ByteFallback(ByteFallback),
    /// Each token gives a text that depends only on whether it is the first (WordPiece, Metaspace, no decoder).
    Pieces,
    /// Anything else: decoded in a sliding window by the reference implementation.
    Other,
}

/// Details of [`DecoderShape::ByteFallback`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ByteFallback {
    /// Text replacements inside each token, in order.
    pub(crate) replace: Vec<(String, String)>,
    /// A character and how many of it are cut from the start of the whole text.
    pub(crate) strip: Option<(char, usize)>,
}

impl DecoderShape {
    pub(crate) fn of(decoder: Option<&DecoderWrapper>) -> Self {
        let Some(decoder) = decoder else { return Self::Pieces };
        let Ok(json) = serde_json::to_value(decoder) else { return Self::Other };
        let steps: Vec<&Value> = match json.get("decoders").and_then(Value::as_array) {
            Some(list) if kind(&json) == "Sequence" => list.iter().collect(),
            _ => vec![&json],
        };
        match steps.as_slice() {
            [only] if kind(only) == "ByteLevel" => Self::ByteLevel,
            [only] if matches!(kind(only), "WordPiece" | "Metaspace") => Self::Pieces,
            steps => byte_fallback(steps).map_or(Self::Other, Self::ByteFallback),
        }
    }
}

/// `Replace* ByteFallback [Fuse [Strip]]`, the order in which every SentencePiece conversion writes it.
fn byte_fallback(steps: &[&Value]) -> Option<ByteFallback> {
    let mut shape = ByteFallback::default();
    let at = steps.iter().position(|step| kind(step) == "ByteFallback")?;
    for step in &steps[..at] {
        if kind(step) != "Replace" {
            return None;
        }
        let pattern = step.get("pattern")?.get("String")?.as_str()?;
        shape.replace.push((pattern.to_owned(), step.get("content")?.as_str()?.to_owned()));
    }
    match &steps[at + 1..] {
        [] => {}
        [fuse] if kind(fuse) == "Fuse" => {}
        [fuse, strip] if kind(fuse) == "Fuse" && kind(strip) == "Strip" => {
            if strip.get("stop")?.as_u64()? != 0 {
                return None;
            }
            let character = strip.get("content")?.as_str()?.chars().next()?;
            shape.strip = Some((character, usize::try_from(strip.get("start")?.as_u64()?).ok()?));
        }
        _ => return None,
    }
    Some(shape)
}

fn kind(step: &Value) -> &str {
    step.get("type").and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(json: &str) -> DecoderShape {
        let decoder: DecoderWrapper = serde_json::from_str(json).expect("a decoder");
        DecoderShape::of(Some(&decoder))
    }

    #[test]
    fn known_decoders_are_recognised() {
        const BYTE_LEVEL: &str = r#"{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}"#;
        assert_eq!(shape(BYTE_LEVEL), DecoderShape::ByteLevel);
        assert_eq!(shape(&format!(r#"{{"type":"Sequence","decoders":[{BYTE_LEVEL}]}}"#)), DecoderShape::ByteLevel);
        assert_eq!(shape(r###"{"type":"WordPiece","prefix":"##","cleanup":true}"###), DecoderShape::Pieces);
        assert_eq!(DecoderShape::of(None), DecoderShape::Pieces);
        let gemma = r#"{"type":"Sequence","decoders":[
            {"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"}]}"#;
        let expected = ByteFallback { replace: vec![("▁".into(), " ".into())], strip: None };
        assert_eq!(shape(gemma), DecoderShape::ByteFallback(expected));
    }

    #[test]
    fn unusual_decoders_are_left_to_the_reference() {
        assert_eq!(shape(r#"{"type":"BPEDecoder","suffix":"</w>"}"#), DecoderShape::Other);
        let both_ends = r#"{"type":"Sequence","decoders":[
            {"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":1}]}"#;
        assert_eq!(shape(both_ends), DecoderShape::Other);
    }
}
