//! `tools`, `tool_choice` and what belongs to them: which calls an answer may hold, and how they are read from its
//! text.

use std::sync::Arc;

use chat_format::parsers::{CallForm, ToolFormat, Tools};
use proto::{Constraint, constraint::Kind};
use serde_json::{Map, Value, json};

use super::{
    calls::{self, Calls, Function},
    fields::{Fields, wrong},
    formats::{Formats, Parsing},
    params::Limits,
    structured,
};
use crate::error::ApiError;

/// The tools of a request, read.
#[derive(Clone, Debug, Default)]
pub struct ToolUse {
    /// The `tools` array for the chat template; empty when it shows none.
    pub tools_json: String,
    /// The tools that the answer may call; absent: none.
    pub callable: Option<Arc<Tools>>,
    /// How calls are written where they are held to a form.
    held: Option<Held>,
}

/// Calls that are held to a form.
#[derive(Clone, Debug)]
struct Held {
    by: Holding,
    /// As the format of a structural tag.
    form: Value,
    /// Who reads them; absent: the model's own parser.
    reader: Option<ToolFormat>,
}

/// Why calls are held to a form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holding {
    /// `tool_choice` demands a call.
    Demanded,
    /// Some function is strict: there may be text, and calls in it.
    Strict,
}

impl ToolUse {
    /// Reads `tools` and `tool_choice`.
    pub fn read(fields: &mut Fields<'_>, limits: &Limits) -> Result<Self, ApiError> {
        let choice: Option<Value> = fields.value("tool_choice", "a string or an object")?;
        let tools: Vec<Value> = fields.value("tools", "a list of tool objects")?.unwrap_or_default();
        for (index, tool) in tools.iter().enumerate() {
            check_tool(tool).map_err(|problem| ApiError::field("tools", format!("tools[{index}]: {problem}")))?;
        }
        let calls = if fields.flag("parallel_tool_calls", true)? { Calls::Many } else { Calls::One };
        let raw = fields.raw("tools").unwrap_or_default();
        let functions: Vec<Function<'_>> = tools.iter().filter_map(Function::of_tool).collect();
        let use_of = |held| Self { tools_json: raw.to_owned(), callable: Some(Arc::new(Tools::new(&tools))), held };
        match choice.as_ref().map(|choice| (choice, choice.as_str())) {
            None | Some((_, Some("auto"))) if tools.is_empty() => Ok(Self::default()),
            Some((_, Some("none"))) if tools.is_empty() || limits.exclude_unused_tools => Ok(Self::default()),
            Some((_, Some("none"))) => Ok(Self { tools_json: raw.to_owned(), ..Self::default() }),
            None | Some((_, Some("auto"))) => {
                let format = limits.formats.tools.ok_or_else(|| ApiError::field("tools", NO_FORMAT))?;
                Ok(use_of(strict(format, &functions, calls)?))
            }
            Some((_, Some("required"))) => Ok(use_of(Some(demanded(limits, &functions, calls)?))),
            Some((Value::Object(named), _)) => {
                let named = chosen(named, &functions)?;
                Ok(use_of(Some(demanded(limits, &[named], Calls::One)?)))
            }
            Some((other, _)) => {
                Err(wrong("tool_choice", &other.to_string(), "\"none\", \"auto\", \"required\" or a function"))
            }
        }
    }

    /// How the answer is taken apart; absent: it is all content.
    pub fn parsing(&self, fields: &mut Fields<'_>, limits: &Limits) -> Result<Option<Parsing>, ApiError> {
        let include_reasoning = fields.flag("include_reasoning", true)?;
        let parallel = fields.flag("parallel_tool_calls", true)?;
        let reader = self.held.as_ref().and_then(|held| held.reader);
        let tools = reader.or(limits.formats.tools).filter(|_| self.callable.is_some());
        let reasoning = limits.formats.reasoning;
        let offered = self.callable.clone().unwrap_or_default();
        let parses = tools.is_some() || reasoning.is_some();
        let Formats { reasoning_ends, counts, .. } = &limits.formats;
        let (reasoning_ends, counts) = (reasoning_ends.clone(), counts.clone());
        Ok(parses.then_some(Parsing { tools, reasoning, offered, include_reasoning, parallel, reasoning_ends, counts }))
    }

    /// Whether a call is demanded.
    pub fn demands_call(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.by == Holding::Demanded)
    }

    /// What the text must be: calls as they are held to, or text that the request demands.
    pub fn constraint(&self, of_text: Option<Constraint>) -> Result<Option<Constraint>, ApiError> {
        let Some(Held { by, form, .. }) = &self.held else { return Ok(of_text) };
        let (param, format) = match (by, &of_text) {
            // A call is no text, so the format of texts does not matter.
            (Holding::Demanded, Some(text)) if text.param == "response_format" => ("tool_choice", form.clone()),
            (Holding::Demanded, Some(text)) => {
                let message = format!("`tool_choice` demands a call, and `{}` another text.", text.param);
                return Err(ApiError::field("tool_choice", message));
            }
            (Holding::Demanded, None) => ("tool_choice", form.clone()),
            (Holding::Strict, None) => ("tools", form.clone()),
            (Holding::Strict, Some(text)) => {
                let mut calls = form.clone();
                calls["at_least_one"] = true.into();
                (&*text.param, json!({"type": "or", "elements": [structured::as_format(text), calls]}))
            }
        };
        let kind = Some(Kind::StructuralTag(format.to_string()));
        Ok(Some(Constraint { kind, param: param.to_owned(), ..of_text.unwrap_or_default() }))
    }
}

/// Nothing but calls, in the model's form, or as plain JSON where that form cannot be demanded.
fn demanded(limits: &Limits, functions: &[Function<'_>], calls: Calls) -> Result<Held, ApiError> {
    if functions.is_empty() {
        return Err(ApiError::field("tool_choice", "`tool_choice` demands a call, and there are no `tools`."));
    }
    if let Some(format) = limits.formats.reasoning.filter(|format| format.is_whole()) {
        let form = format.call_form().ok_or_else(|| ApiError::field("tool_choice", NOT_IN_CHANNELS))?;
        let form = calls::only(form, functions, Calls::One);
        return Ok(Held { by: Holding::Demanded, form, reader: None });
    }
    let own = limits.formats.tools.and_then(|format| format.form());
    let reader = if own.is_some() { None } else { ToolFormat::named("llama3_json").ok() };
    let form = calls::only(own.unwrap_or(CallForm::PLAIN), functions, calls);
    Ok(Held { by: Holding::Demanded, form, reader })
}

/// Text in which calls of strict functions follow their schemas; absent: no function is strict.
fn strict(format: ToolFormat, functions: &[Function<'_>], calls: Calls) -> Result<Option<Held>, ApiError> {
    if !functions.iter().any(|function| function.is_strict()) {
        return Ok(None);
    }
    let form = format.form().and_then(|form| calls::among_text(form, functions, calls));
    let form = form.ok_or_else(|| {
        let message = format!(
            "`strict` functions cannot be held to their schemas in the format `{}`: leave `strict` out, or demand a \
             call with `tool_choice`.",
            format.name
        );
        ApiError::field("tools", message)
    })?;
    Ok(Some(Held { by: Holding::Strict, form, reader: None }))
}

/// The function that a `tool_choice` names.
fn chosen<'f>(choice: &Map<String, Value>, functions: &[Function<'f>]) -> Result<Function<'f>, ApiError> {
    let name = choice.get("function").and_then(|function| function.get("name")).and_then(Value::as_str);
    let (Some(name), true) = (name, choice.get("type").is_none_or(|kind| kind.is_null() || kind == "function")) else {
        let shown = Value::Object(choice.clone()).to_string();
        return Err(wrong("tool_choice", &shown, "{\"type\": \"function\", \"function\": {\"name\": …}}"));
    };
    let found = functions.iter().find(|function| function.name() == name).copied();
    found.ok_or_else(|| ApiError::field("tool_choice", format!("`tools` has no function `{name}`.")))
}

const NO_FORMAT: &str = "\"auto\" tool choice needs to know how the model writes calls, which its chat template does \
                         not show: start the server with --tool-call-parser.";
const NOT_IN_CHANNELS: &str = "A call cannot be demanded of a model that writes calls in channels: use \"auto\".";

fn check_tool(tool: &Value) -> Result<(), String> {
    let tool = tool.as_object().ok_or("not an object")?;
    if tool.get("type").is_some_and(|kind| !kind.is_null() && kind != "function") {
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
    Ok(())
}
