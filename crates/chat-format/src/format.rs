//! A model's chat format: its templates, compiled, and how to apply them.

use std::{error::Error as _, io, path::Path};

use jiff::Zoned;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value, syntax::SyntaxConfig, value::Serde};
use serde_json::Map;

use crate::{
    ChatError, ContentFormat, Conversation,
    config::ModelTemplates,
    detect, finality,
    parsers::{self, ReasoningFormat, ToolFormat},
    python,
};

/// Instructions that one rendering may execute: ten times what a thousand long messages take.
const FUEL: u64 = 5_000_000;
/// Bytes that one rendering may write.
const MAX_OUTPUT: usize = 256 << 20;

/// What the command line says about chat templates.
#[derive(Clone, Debug, Default)]
pub struct ChatSettings {
    /// Replaces the model's templates.
    pub template: Option<String>,
    /// Replaces the format found by looking at the template.
    pub content_format: Option<ContentFormat>,
}

/// A model's chat format. Shared freely between threads.
pub struct ChatFormat {
    environment: Environment<'static>,
    names: Vec<(String, ContentFormat)>,
    tokens: Map<String, serde_json::Value>,
    content_format: Option<ContentFormat>,
    tools: Option<ToolFormat>,
    reasoning: Option<ReasoningFormat>,
}

/// What `raise_exception` was called with.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl ChatFormat {
    /// Reads and compiles the templates of the tokenizer folder `dir`. A model without any is fine.
    ///
    /// # Errors
    /// When a file cannot be read, or a template does not parse.
    pub fn load(dir: &Path, settings: ChatSettings) -> Result<Self, ChatError> {
        let model = ModelTemplates::read(dir)?;
        let templates = match settings.template {
            Some(template) => vec![("default".to_owned(), template)],
            None => model.templates,
        };
        let mut environment = environment();
        let mut names = Vec::new();
        let texts: Vec<&str> = templates.iter().map(|(_, template)| template.as_str()).collect();
        let shown = texts.join("\n");
        let (tools, reasoning) = (parsers::detect::tools(&shown), parsers::detect::reasoning(&shown));
        for (name, template) in templates {
            names.push((name.clone(), detect::content_format(&template)));
            environment
                .add_template_owned(name.clone(), without_generation_blocks(&template))
                .map_err(|error| ChatError::Syntax { name, message: describe(&error) })?;
        }
        Ok(Self { environment, names, tokens: model.tokens, content_format: settings.content_format, tools, reasoning })
    }

    /// Whether conversations can be rendered without a template in the request.
    pub fn has_template(&self) -> bool {
        !self.names.is_empty()
    }

    /// How the model writes calls of tools, as far as its templates show.
    pub fn tool_format(&self) -> Option<ToolFormat> {
        self.tools
    }

    /// How the model writes its reasoning, as far as its templates show.
    pub fn reasoning_format(&self) -> Option<ReasoningFormat> {
        self.reasoning
    }

    /// The text of a conversation at the moment `now`, special tokens included.
    ///
    /// # Errors
    /// When the template refuses the conversation, fails on it, or runs too long.
    pub fn render(&self, conversation: &Conversation, now: &Zoned) -> Result<String, ChatError> {
        if conversation.add_generation_prompt && conversation.continue_final_message {
            return Err(ChatError::InvalidRequest {
                param: "continue_final_message",
                message: "continue_final_message and add_generation_prompt exclude each other".to_owned(),
            });
        }
        let own = conversation.chat_template.as_deref().map(without_generation_blocks);
        // A request's template lives shorter than the environment, which is fine for one rendering.
        let environment: &Environment<'_> = &self.environment;
        let (template, detected) = match &own {
            Some(text) => {
                let template = environment.template_from_named_str("request", text).map_err(|error| blame(&error))?;
                (template, detect::content_format(text))
            }
            None => {
                let (name, format) = self.choose(conversation.tools.is_some())?;
                (environment.get_template(name).map_err(|error| blame(&error))?, format)
            }
        };
        let messages = conversation.prepared(self.content_format.unwrap_or(detected))?;
        let context = self.context(conversation, &messages, now);
        let mut out = Bounded(Vec::new());
        template.render_captured_to(context, &mut out).map_err(|error| blame(&error))?;
        let mut rendered =
            String::from_utf8(out.0).map_err(|error| ChatError::Render { message: error.to_string() })?;
        if conversation.continue_final_message {
            finality::cut(&mut rendered, &messages)?;
        }
        Ok(rendered)
    }

    /// The model's template for requests with or without tools, by name.
    fn choose(&self, with_tools: bool) -> Result<(&str, ContentFormat), ChatError> {
        let by_name = |wanted: &str| self.names.iter().find(|(name, _)| name == wanted);
        let special = if with_tools { by_name("tool_use") } else { None };
        let chosen = special.or_else(|| by_name("default")).or(self.names.first());
        chosen.map(|(name, format)| (name.as_str(), *format)).ok_or(ChatError::NoTemplate)
    }

    /// All template variables. Later ones replace earlier ones.
    fn context(&self, conversation: &Conversation, messages: &[serde_json::Value], now: &Zoned) -> Value {
        let mut variables: Vec<(String, Value)> = Vec::new();
        let json = |value: &serde_json::Value| Value::from(Serde(value));
        variables.push(("tools".to_owned(), Value::from(())));
        variables.push(("documents".to_owned(), Value::from(())));
        variables.extend(self.tokens.iter().map(|(name, token)| (name.clone(), json(token))));
        variables.extend(conversation.kwargs.iter().map(|(name, value)| (name.clone(), json(value))));
        if let Some(tools) = &conversation.tools {
            variables.push(("tools".to_owned(), Value::from(Serde(tools))));
        }
        if let Some(documents) = &conversation.documents {
            variables.push(("documents".to_owned(), Value::from(Serde(documents))));
        }
        variables.push(("messages".to_owned(), Value::from(Serde(messages))));
        variables.push(("add_generation_prompt".to_owned(), Value::from(conversation.add_generation_prompt)));
        variables.push(("strftime_now".to_owned(), python::strftime_now(now)));
        Value::from_pairs(variables)
    }
}

/// Jinja as Hugging Face sets it up.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.unwrap_or_default());
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(python::unknown_method);
    environment.set_formatter(python::format_output);
    environment.set_fuel(Some(FUEL));
    environment.add_filter("tojson", python::tojson);
    environment.add_filter("string", |value: &Value| python::to_string(value));
    environment.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        let raised = Raised(python::to_string(message));
        Err(Error::new(ErrorKind::InvalidOperation, raised.0.clone()).with_source(raised))
    });
    environment
}

/// Whose fault an error while rendering is.
fn blame(error: &Error) -> ChatError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = error.source();
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref() {
            return ChatError::InvalidTemplateUse { message: message.clone() };
        }
        if cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::FileTooLarge) {
            return ChatError::Limit { limit: "output size" };
        }
        source = cause.source();
    }
    match error.kind() {
        ErrorKind::OutOfFuel => ChatError::Limit { limit: "number of steps" },
        _ => ChatError::Render { message: describe(error) },
    }
}

/// The error with the errors that caused it, on one line.
fn describe(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// Hugging Face marks the assistant's words for training with `{% generation %}`; for rendering it is a block that is
/// always taken.
fn without_generation_blocks(template: &str) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(at) = rest.find("{%") {
        let (before, block) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = block.find("%}") else {
            rest = block;
            break;
        };
        let (block, behind) = block.split_at(end);
        match block.trim_start_matches(['{', '%', '-', '+']).trim_end_matches(['-', '+']).trim() {
            word @ ("generation" | "endgeneration") => {
                out.push_str(&block.replace(word, if word == "generation" { "if true" } else { "endif" }));
            }
            _ => out.push_str(block),
        }
        rest = behind;
    }
    out.push_str(rest);
    out
}

/// Output up to [`MAX_OUTPUT`].
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_OUTPUT {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_blocks_keep_their_whitespace_control() {
        let template = "{%- generation -%}a{% endgeneration %}{% if generation %}{%+ set x = 1 %}";
        let expected = "{%- if true -%}a{% endif %}{% if generation %}{%+ set x = 1 %}";
        assert_eq!(without_generation_blocks(template), expected);
        assert_eq!(without_generation_blocks("{% open"), "{% open");
    }
}
