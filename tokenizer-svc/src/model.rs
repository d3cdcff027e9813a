//! What the process knows of the model: tokenizer, chat format, and the facts that it tells others.

use std::{collections::HashMap, fs, path::Path, sync::Arc};

use anyhow::Context;
use chat_format::{ChatFormat, ChatSettings, parsers::ReasoningFormat, template_source};
use model_spec::ConfigFile;
use proto::ModelInfo;
use tokenizer::Tokenizer;
use tracing::warn;

use crate::{config::Args, constraint::Grammars};

/// Loaded once, shared by all threads.
pub(crate) struct Model {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) chat: Arc<ChatFormat>,
    /// Longest sequence in tokens, where it is known.
    pub(crate) max_model_len: Option<u32>,
    /// The tokenizer's own end of text.
    pub(crate) eos_token_id: Option<u32>,
    /// Pairs of texts are rendered by the chat template, which the user gave: that of the model's own files may be of
    /// the model that it was made from.
    pub(crate) renders_pairs: bool,
    /// Compiles what requests demand of their texts.
    pub(crate) grammars: Grammars,
    pub(crate) info: ModelInfo,
}

impl Model {
    /// Reads the folders; takes up to a second for large vocabularies.
    pub(crate) fn load(args: &Args) -> anyhow::Result<Self> {
        let dir = args.files.tokenizer.as_ref().unwrap_or(&args.files.model);
        let tokenizer = Tokenizer::load(dir).context("loading the tokenizer")?;
        let chat = chat_format(args, dir)?;
        let config = ConfigFile::of_model_optional(&args.files.model)?;
        let own_len = config.as_ref().and_then(|config| model_spec::context_len(config).ok());
        let max_model_len = args.length.tokens().or(own_len.and_then(|len| u32::try_from(len).ok()));
        let eos_token_id = end_of_text(&tokenizer);
        let mut eos_token_ids = model_spec::eos_token_ids(&args.files.model, config.as_ref())?;
        if eos_token_ids.is_empty() {
            eos_token_ids.extend(eos_token_id);
        }
        let renders_pairs = args.chat_template.is_some();
        if !renders_pairs
            && let Some(config) = &config
            && config.flag_or("is_original_qwen3_reranker", false)?
        {
            warn!(
                "Qwen3's rerankers were trained on pairs in a template: give it with --chat-template (docs/pooling.md)"
            );
        }
        let info = ModelInfo {
            max_model_len: max_model_len.unwrap_or(0),
            vocab_size: tokenizer.vocab_size(),
            has_chat_template: chat.has_template(),
            tool_format: chat.tool_format().map_or_else(String::new, |format| format.name.to_owned()),
            reasoning_format: chat.reasoning_format().map_or_else(String::new, |format| format.name.to_owned()),
            markers: markers(&tokenizer),
            generation_config_json: json_file(&args.files.model, "generation_config.json")?,
            tokenizer_config_json: json_file(dir, "tokenizer_config.json")?,
            eos_token_ids,
            ..ModelInfo::default()
        };
        let (chat, grammars) = (Arc::new(chat), Grammars::default());
        Ok(Self { tokenizer, chat, max_model_len, eos_token_id, renders_pairs, grammars, info })
    }

    /// The same model with the tokenizer that an adapter brings, whose files must have this fingerprint, and its chat
    /// template, if it has one.
    pub(crate) fn of_adapter(base: &Self, args: &Args, dir: &Path, fingerprint: &str) -> anyhow::Result<Self> {
        let chat = chat_format(args, dir)?;
        let tokenizer = Tokenizer::load_unchanged(dir, fingerprint)?;
        Ok(Self {
            chat: if chat.has_template() { Arc::new(chat) } else { base.chat.clone() },
            max_model_len: base.max_model_len,
            eos_token_id: end_of_text(&tokenizer),
            renders_pairs: base.renders_pairs,
            grammars: Grammars::default(),
            info: base.info.clone(),
            tokenizer,
        })
    }
}

/// The template that the user gave, or those of a folder.
fn chat_format(args: &Args, dir: &Path) -> anyhow::Result<ChatFormat> {
    let template = match &args.chat_template {
        Some(argument) => Some(template_source(argument)?.text()?),
        None => None,
    };
    let settings = ChatSettings { template, content_format: args.content_format() };
    ChatFormat::load(dir, settings).context("loading the chat template")
}

/// The tokenizer's own end of text.
fn end_of_text(tokenizer: &Tokenizer) -> Option<u32> {
    let text = tokenizer.special_tokens().get("eos_token")?;
    tokenizer.token_to_id(text)
}

/// Markers of all formats of reasoning that are single tokens here.
fn markers(tokenizer: &Tokenizer) -> HashMap<String, u32> {
    let formats = ReasoningFormat::names().filter_map(|name| ReasoningFormat::named(name).ok());
    let ends = formats.flat_map(|format| format.ends());
    ends.filter_map(|marker| Some(((*marker).to_owned(), tokenizer.token_to_id(marker)?))).collect()
}

/// The text of a file that holds a JSON object; empty when there is none.
fn json_file(dir: &Path, name: &str) -> anyhow::Result<String> {
    let path = dir.join(name);
    let Ok(text) = fs::read_to_string(&path) else { return Ok(String::new()) };
    serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&text)
        .with_context(|| format!("reading {}", path.display()))?;
    Ok(text)
}
