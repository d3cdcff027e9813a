//! Models of the comparison: their shapes alone, since weights are random.

use std::fmt;

use clap::ValueEnum;

/// A model's shape.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shape {
    /// Llama 3.1 8B.
    #[value(name = "llama-8b")]
    Llama8b,
    /// Qwen3 0.6B.
    #[value(name = "qwen3-0.6b")]
    Qwen06b,
    /// Mixtral 8x7B: 8 experts, 2 a token.
    #[value(name = "mixtral-8x7b")]
    Mixtral,
    /// Qwen3 30B-A3B: 128 experts, 8 a token.
    #[value(name = "qwen3-30b-a3b")]
    Qwen30b,
    /// That of `--config`.
    #[value(name = "own", hide = true)]
    Own,
}

impl Shape {
    /// Its `config.json`; none of `--config`'s.
    pub fn config(self) -> Option<&'static str> {
        Some(match self {
            Self::Own => return None,
            Self::Llama8b => include_str!("../../../tests/fixtures/shapes/llama-8b/config.json"),
            Self::Qwen06b => include_str!("../../../tests/fixtures/shapes/qwen3-0.6b/config.json"),
            Self::Mixtral => include_str!("../../../tests/fixtures/shapes/mixtral-8x7b/config.json"),
            Self::Qwen30b => include_str!("../../../tests/fixtures/shapes/qwen3-30b-a3b/config.json"),
        })
    }

    /// Whether only some rows are wanted of it: a mixture of experts, whose products are what is compared.
    pub fn is_mixture(self) -> bool {
        matches!(self, Self::Mixtral | Self::Qwen30b)
    }

    /// Whether it is compared behind HTTP too.
    pub fn is_served(self) -> bool {
        !self.is_mixture()
    }

    /// Longest sequence, tokens. One number for all that is done with a shape, since vLLM compiles anew for another
    /// one.
    pub fn max_model_len(self) -> u32 {
        match self {
            // Room for the long prompt beside running decodes.
            Self::Llama8b => 66_560,
            _ => 16_384,
        }
    }

    /// Its name in tables.
    pub fn title(self) -> &'static str {
        match self {
            Self::Llama8b => "Llama-8B",
            Self::Qwen06b => "Qwen3-0.6B",
            Self::Mixtral => "Mixtral-8x7B",
            Self::Qwen30b => "Qwen3-30B-A3B",
            Self::Own => "`--config`",
        }
    }

    /// The shape with a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::from_str(name, false).ok()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().as_ref().map_or("", clap::builder::PossibleValue::get_name))
    }
}
