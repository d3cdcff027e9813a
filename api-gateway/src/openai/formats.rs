//! How a model writes calls of tools and reasoning, and how an answer is taken apart by that.

use std::sync::Arc;

use chat_format::parsers::{ReasoningFormat, Setup, ToolFormat, Tools, UnknownFormat};
use proto::{ModelInfo, Output};

use crate::{error::ConfigError, metrics::parser_calls::ParserCounts};

/// The formats in which the model writes calls and reasoning, where they are known.
#[derive(Clone, Debug, Default)]
pub struct Formats {
    /// Calls of tools.
    pub tools: Option<ToolFormat>,
    /// Reasoning.
    pub reasoning: Option<ReasoningFormat>,
    /// The formats are those that the chat template shows, as soon as it is known.
    pub detect: Detect,
    /// Tokens that end the reasoning, where single tokens do.
    pub reasoning_ends: Vec<u32>,
    /// What the parsers of calls found.
    pub counts: ParserCounts,
}

/// Which formats are told from the chat template.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Detect {
    /// That of calls.
    pub tools: bool,
    /// That of reasoning.
    pub reasoning: bool,
}

impl Formats {
    /// Reads the names that the flags give: `auto`, nothing, or a format.
    ///
    /// # Errors
    /// When a flag names no format.
    pub fn named(tools: &str, reasoning: &str) -> Result<Self, ConfigError> {
        let flag = |name, error: UnknownFormat| ConfigError::Flag { name, problem: error.to_string() };
        let detect = Detect { tools: tools == "auto", reasoning: reasoning == "auto" };
        let tools = match tools {
            "" | "auto" => None,
            name => Some(ToolFormat::named(name).map_err(|error| flag("--tool-call-parser", error))?),
        };
        let reasoning = match reasoning {
            "" | "auto" => None,
            name => Some(ReasoningFormat::named(name).map_err(|error| flag("--reasoning-parser", error))?),
        };
        Ok(Self { tools, reasoning, detect, ..Self::default() })
    }

    /// The tokenizer has told what the chat template shows.
    pub fn learn(&mut self, info: &ModelInfo) {
        let shown = ToolFormat::named(&info.tool_format).ok();
        // Answers of this format are of no use unless they are taken apart.
        let whole = shown.is_some_and(|format| format.name == "openai");
        if self.detect.tools {
            self.tools = shown;
        }
        if self.detect.reasoning || (whole && self.reasoning.is_none()) {
            self.reasoning = ReasoningFormat::named(&info.reasoning_format).ok();
        }
        let ends = self.reasoning.map_or(&[][..], |format| format.ends());
        self.reasoning_ends = ends.iter().filter_map(|marker| info.markers.get(*marker).copied()).collect();
    }
}

/// How a chat's answer is taken apart.
#[derive(Clone, Debug)]
pub struct Parsing {
    /// How calls are written, where the answer may hold any.
    pub tools: Option<ToolFormat>,
    /// How reasoning is written.
    pub reasoning: Option<ReasoningFormat>,
    /// The tools that may be called.
    pub offered: Arc<Tools>,
    /// Whether reasoning is shown.
    pub include_reasoning: bool,
    /// Whether more than one call is shown.
    pub parallel: bool,
    /// Tokens that end the reasoning.
    pub reasoning_ends: Vec<u32>,
    /// What the parsers of calls found.
    pub counts: ParserCounts,
}

impl Parsing {
    /// What the engine must send: markers too, where the prompt ended, and the tokens that end the reasoning.
    pub fn prepare(&self, output: &mut Output) {
        output.skip_special_tokens = false;
        output.prompt_tail = self.reasoning.map(|_| String::new());
        output.return_token_ids |= !self.reasoning_ends.is_empty();
    }

    /// What a parser of one choice needs.
    pub fn setup(&self, prompt_tail: &str) -> Setup {
        let mut setup = Setup::new(self.tools, self.reasoning, self.offered.clone());
        setup.prompt_tail = Some(prompt_tail).filter(|tail| !tail.is_empty()).map(str::to_owned);
        setup
    }
}
