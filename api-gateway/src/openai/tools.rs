//! `tools`, `tool_choice` and what belongs to them: which calls an answer may hold, and how they are read from its
//! text.

use std::sync::Arc;

use chat_format::parsers::{ReasoningFormat, Setup, ToolFormat, Tools, UnknownFormat};
use proto::{ModelInfo, Output};
use serde_json::{Map, Value};

use super::{
    fields::{Fields, wrong},
    params::Limits,
};
use crate::error::{ApiError, ConfigError};

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
        Ok(Self { tools, reasoning, detect, reasoning_ends: Vec::new() })
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

/// The tools of a request, read.
#[derive(Clone, Debug, Default)]
pub struct ToolUse {
    /// The `tools` array for the chat template; empty when it shows none.
    pub tools_json: String,
    /// The tools that the answer may call; absent: none.
    pub callable: Option<Arc<Tools>>,
}

impl ToolUse {
    /// Reads `tools` and `tool_choice`.
    pub fn read(fields: &mut Fields<'_>, limits: &Limits) -> Result<Self, ApiError> {
        let choice: Option<Value> = fields.value("tool_choice", "a string or an object")?;
        let tools: Vec<Value> = fields.value("tools", "a list of tool objects")?.unwrap_or_default();
        for (index, tool) in tools.iter().enumerate() {
            check_tool(tool).map_err(|problem| ApiError::field("tools", format!("tools[{index}]: {problem}")))?;
        }
        let raw = fields.raw("tools").unwrap_or_default();
        match choice.as_ref().map(|choice| (choice, choice.as_str())) {
            None | Some((_, Some("auto"))) if tools.is_empty() => Ok(Self::default()),
            Some((_, Some("none"))) if tools.is_empty() || limits.exclude_unused_tools => Ok(Self::default()),
            Some((_, Some("none"))) => Ok(Self { tools_json: raw.to_owned(), callable: None }),
            None | Some((_, Some("auto"))) => {
                if limits.formats.tools.is_none() {
                    return Err(ApiError::field("tools", NO_FORMAT));
                }
                Ok(Self { tools_json: raw.to_owned(), callable: Some(Arc::new(Tools::new(&tools))) })
            }
            Some((_, Some("required")) | (Value::Object(_), _)) => Err(ApiError::field("tool_choice", NOT_FORCED)),
            Some((other, _)) => {
                Err(wrong("tool_choice", &other.to_string(), "\"none\", \"auto\", \"required\" or a function"))
            }
        }
    }

    /// How the answer is taken apart; absent: it is all content.
    pub fn parsing(&self, fields: &mut Fields<'_>, limits: &Limits) -> Result<Option<Parsing>, ApiError> {
        let include_reasoning = fields.flag("include_reasoning", true)?;
        let parallel = fields.flag("parallel_tool_calls", true)?;
        let tools = limits.formats.tools.filter(|_| self.callable.is_some());
        let reasoning = limits.formats.reasoning;
        let offered = self.callable.clone().unwrap_or_default();
        let parses = tools.is_some() || reasoning.is_some();
        let reasoning_ends = limits.formats.reasoning_ends.clone();
        Ok(parses.then_some(Parsing { tools, reasoning, offered, include_reasoning, parallel, reasoning_ends }))
    }
}

const NO_FORMAT: &str = "\"auto\" tool choice needs to know how the model writes calls, which its chat template does not \
                         show: start the server with --tool-call-parser.";
const NOT_FORCED: &str = "A `tool_choice` that demands a call needs decoding under a grammar, which this server does not \
                          do yet: use \"auto\" or \"none\".";
const NOT_STRICT: &str = "`strict` functions need decoding under a grammar, which this server does not do yet: leave \
                          `strict` out.";

fn check_tool(tool: &Value) -> Result<(), String> {
    let tool = tool.as_object().ok_or("not an object")?;
    if tool.get("type").is_some_and(|kind| kind != "function") {
        return Err("only tools of type `function` are supported.".to_owned());
    }
    let function: &Map<String, Value> =
        tool.get("function").and_then(Value::as_object).ok_or("`function` must be an object.")?;
    if function.get("name").and_then(Value::as_str).is_none_or(str::is_empty) {
        return Err("`function.name` must be a non-empty string.".to_owned());
    }
    if !function.get("parameters").is_none_or(|schema| schema.is_object() || schema.is_null()) {
        return Err("`function.parameters` must be an object.".to_owned());
    }
    if function.get("strict") == Some(&Value::Bool(true)) {
        return Err(NOT_STRICT.to_owned());
    }
    Ok(())
}
