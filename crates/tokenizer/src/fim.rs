//! Fill in the middle: prompts that end where a text between a prefix and a suffix begins.
//!
//! Models that are trained for it mark the parts with tokens of their own. A family is known by its three (or two)
//! tokens, all of which the tokenizer must have.

use crate::{Tokenizer, TokenizerError};

/// How a family of models writes such prompts.
struct Family {
    prefix: &'static str,
    suffix: &'static str,
    /// Behind both parts; empty: the prefix comes last, and the text follows it.
    middle: &'static str,
    /// Parts are encoded as what follows other text, without the space that the tokenizer puts before texts.
    joined: bool,
}

const fn family(prefix: &'static str, suffix: &'static str, middle: &'static str) -> Family {
    Family { prefix, suffix, middle, joined: false }
}

/// In the order in which they are looked for.
const FAMILIES: [Family; 6] = [
    // Qwen-Coder, CodeGemma.
    family("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    // StarCoder, StarCoder 2, Granite code models.
    family("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    // SantaCoder.
    family("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    // DeepSeek-Coder.
    family("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    // Code Llama.
    Family { joined: true, ..family("▁<PRE>", "▁<SUF>", "▁<MID>") },
    // Codestral: the suffix comes first.
    family("[PREFIX]", "[SUFFIX]", ""),
];

/// Behind it, text is encoded as what follows other text.
const JOINT: &str = "☺";

impl Tokenizer {
    /// The ids of a prompt for what comes between `prefix` and `suffix`; absent where the model has no tokens for it.
    /// `add_special_tokens`: what begins the model's texts begins the prompt, too.
    pub fn fill_in_the_middle(
        &self,
        prefix: &str,
        suffix: &str,
        add_special_tokens: bool,
    ) -> Result<Option<Vec<u32>>, TokenizerError> {
        let found = FAMILIES.iter().find_map(|family| {
            let id = |token: &str| self.token_to_id(token);
            let middle = if family.middle.is_empty() { Vec::new() } else { vec![id(family.middle)?] };
            Some((family, id(family.prefix)?, id(family.suffix)?, middle))
        });
        let Some((family, before_prefix, before_suffix, middle)) = found else { return Ok(None) };
        let mut ids = if add_special_tokens { self.beginning()? } else { Vec::new() };
        let (prefix, suffix) = (self.part(prefix, family)?, self.part(suffix, family)?);
        let (prefix, suffix) = ([&[before_prefix], &prefix[..]].concat(), [&[before_suffix], &suffix[..]].concat());
        let parts = if middle.is_empty() { [suffix, prefix] } else { [prefix, suffix] };
        parts.iter().for_each(|part| ids.extend(part));
        ids.extend(middle);
        Ok(Some(ids))
    }

    /// Special tokens that begin a text.
    fn beginning(&self) -> Result<Vec<u32>, TokenizerError> {
        let (plain, mut whole) = (self.encode(JOINT, false)?, self.encode(JOINT, true)?);
        let at = whole.windows(plain.len().max(1)).position(|window| window == plain).unwrap_or(0);
        whole.truncate(at);
        Ok(whole)
    }

    fn part(&self, text: &str, family: &Family) -> Result<Vec<u32>, TokenizerError> {
        if family.joined {
            let (joint, both) = (self.encode(JOINT, false)?, self.encode(&format!("{JOINT}{text}"), false)?);
            if let Some(rest) = both.strip_prefix(joint.as_slice()) {
                return Ok(rest.to_vec());
            }
        }
        self.encode(text, false)
    }
}
