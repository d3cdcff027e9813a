//! How byte-level vocabularies cut a text before pairs are merged: regular expressions, one after the other, each on
//! what the ones before left in one piece. They are the `pre_tokenizer` of the models' own `tokenizer.json`.

/// A way of cutting.
pub(super) struct Splits {
    /// Names: of GGUF's `tokenizer.ggml.pre`, and of tokenizer classes.
    names: &'static [&'static str],
    /// The expressions, in order.
    pub(super) patterns: &'static [&'static str],
    /// A cut piece that is a token is taken whole, whatever the merges say.
    pub(super) whole_first: bool,
    /// Texts begin with the begin-of-text token where nothing else says.
    pub(super) add_bos: bool,
    /// Texts are brought into the composed normal form (NFC) first.
    pub(super) nfc: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|",
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
);
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const GPT4O: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|",
    r"'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|",
    r"'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const KIMI: &str = concat!(
    r"[\p{Han}]+|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|",
    r"'t|'re|'ve|'m|'ll|'d)?|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|",
    r"'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const DEEPSEEK3: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"##,
    r##" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
);
const BLOOM: &str = r" ?[^(\s|[.,!?…。，、।۔،])]+";

const PLAIN: Splits = Splits { names: &[], patterns: &[GPT2], whole_first: false, add_bos: false, nfc: false };

/// Every way that is known. Each name stands in one row.
const ALL: &[Splits] = &[
    Splits {
        names: &[
            "gpt-2",
            "gpt2",
            "jais",
            "mpt",
            "olmo",
            "phi-2",
            "trillion",
            "CodeGenTokenizer",
            "GPT2Tokenizer",
            "GPTNeoXTokenizer",
        ],
        ..PLAIN
    },
    Splits {
        names: &["codeshell", "command-r", "exaone", "minerva-7b", "refact", "smollm", "starcoder"],
        patterns: &[r"\p{N}", GPT2],
        ..PLAIN
    },
    Splits { names: &["deepseek-r1-qwen", "hunyuan", "megrez", "qwen2", "stablelm2"], patterns: &[QWEN2], ..PLAIN },
    Splits { names: &["QWenTokenizer", "Qwen2Tokenizer"], patterns: &[QWEN2], nfc: true, ..PLAIN },
    Splits {
        names: &["falcon3", "llama-bpe", "llama-v3", "llama3", "pixtral", "LlamaTokenizer", "PreTrainedTokenizer"],
        patterns: &[LLAMA3],
        whole_first: true,
        add_bos: true,
        ..PLAIN
    },
    Splits { names: &["chatglm-bpe", "dbrx", "smaug-bpe", "ChatGLM4Tokenizer"], patterns: &[LLAMA3], ..PLAIN },
    Splits { names: &["tekken"], patterns: &[TEKKEN], whole_first: true, add_bos: true, ..PLAIN },
    Splits { names: &["gpt-4o", "llama4"], patterns: &[GPT4O], ..PLAIN },
    Splits { names: &["kimi-k2", "TikTokenTokenizer"], patterns: &[KIMI], ..PLAIN },
    Splits { names: &["deepseek-v3"], patterns: &[r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3], ..PLAIN },
    Splits {
        names: &["deepseek-coder"],
        patterns: &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
        ..PLAIN
    },
    Splits { names: &["falcon"], patterns: &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"], ..PLAIN },
    Splits { names: &["bloom", "gpt3-finnish", "poro-chat"], patterns: &[BLOOM], ..PLAIN },
    Splits { names: &["viking"], patterns: &[BLOOM, r"\p{N}"], ..PLAIN },
];

/// The way that goes by a name.
///
/// # Errors
/// When there is none of that name; the message lists those there are.
pub(super) fn named(name: &str) -> tokenizers::Result<&'static Splits> {
    ALL.iter().find(|splits| splits.names.contains(&name)).ok_or_else(|| {
        let mut names: Vec<&str> = ALL.iter().flat_map(|splits| splits.names).copied().collect();
        names.sort_unstable();
        format!(
            "how {name:?} cuts texts is not known; give --tokenizer a folder with the model's tokenizer.json (known \
             are {})",
            names.join(", ")
        )
        .into()
    })
}

#[cfg(test)]
mod tests {
    use tokenizers::utils::SysRegex;

    use super::*;

    #[test]
    fn names_are_unique_and_patterns_compile() {
        let mut names: Vec<&str> = ALL.iter().flat_map(|splits| splits.names).copied().collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        for pattern in ALL.iter().flat_map(|splits| splits.patterns) {
            assert!(SysRegex::new(pattern).is_ok(), "{pattern}");
        }
        let message = named("nothing").err().expect("a refusal").to_string();
        assert!(message.contains("\"nothing\"") && message.contains("llama-bpe"), "{message}");
    }
}
