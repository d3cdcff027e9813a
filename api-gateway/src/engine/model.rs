//! What the gateway knows of the model: its names, and the facts that the tokenizer and the scheduler tell.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::RwLock;
use proto::{ModelInfo, PoolingInfo, ServedAdapter};

use crate::{config::Config, defaults::Defaults, engine::peers::Peers, error::ApiError, openai::params::Limits};

/// Between two questions to a process that does not know its model yet.
const RETRY: Duration = Duration::from_millis(5);

/// The model's facts, learned once it is loaded and kept.
pub struct Model {
    config: Arc<Config>,
    limits: RwLock<Arc<Limits>>,
    max_model_len: RwLock<Option<u32>>,
    /// Why prompts are not looked up in a prefix cache; empty where they are.
    prefix_cache_off: RwLock<String>,
    /// Whether adapters may have tokens of their own.
    own_tokens: AtomicBool,
    /// What the model gives, if it pools.
    pooling: RwLock<Option<Arc<PoolingInfo>>>,
    /// Set once the tokenizer and the scheduler have told what they know. Before, sampling defaults would be wrong, and
    /// what the model is run for.
    learned: AtomicBool,
}

impl Model {
    /// Knows only what the flags say.
    pub fn new(config: Arc<Config>) -> Self {
        let limits = Limits {
            defaults: config.overrides,
            vocab_size: 0,
            max_logprobs: config.access.max_logprobs,
            max_prompts: config.access.max_inflight,
            served_names: config.served_names.clone(),
            adapters: Arc::default(),
            own_tokenizer: None,
            trust_chat_template: config.access.trust_request_chat_template,
            formats: config.formats.clone(),
            exclude_unused_tools: config.answers.exclude_tools_when_tool_choice_none,
            template_kwargs: config.template_kwargs.clone(),
            response_role: config.answers.response_role.clone(),
            stream_interval: config.answers.stream_interval,
            force_usage: config.answers.enable_force_include_usage,
            tokens_as_ids: config.answers.return_tokens_as_token_ids,
        };
        Self {
            config,
            limits: RwLock::new(Arc::new(limits)),
            max_model_len: RwLock::new(None),
            prefix_cache_off: RwLock::default(),
            own_tokens: AtomicBool::new(false),
            pooling: RwLock::default(),
            learned: AtomicBool::new(false),
        }
    }

    /// What documents say of bodies. Bodies are read by [`super::adapters::read_with`].
    pub fn described(&self) -> Arc<Limits> {
        self.limits()
    }

    /// What bodies are checked against.
    pub(super) fn limits(&self) -> Arc<Limits> {
        self.limits.read().clone()
    }

    /// Whether adapters may have tokens of their own.
    pub(super) fn has_own_tokens(&self) -> bool {
        self.own_tokens.load(Ordering::Relaxed)
    }

    /// Whether requests can be read: the model's sampling defaults are known, and what it is run for.
    pub fn is_known(&self) -> bool {
        self.learned.load(Ordering::Acquire)
    }

    /// What the model gives, if it pools; absent of one that generates text. Fails while that is not known.
    pub fn pooling(&self) -> Result<Option<Arc<PoolingInfo>>, ApiError> {
        match self.is_known() {
            true => Ok(self.pooling.read().clone()),
            false => Err(ApiError::unavailable("The server is starting, try again.")),
        }
    }

    /// Longest sequence, once known.
    pub fn max_model_len(&self) -> Option<u32> {
        *self.max_model_len.read()
    }

    /// Why there is no prefix cache, if there is none.
    pub fn prefix_cache_off(&self) -> Option<String> {
        Some(self.prefix_cache_off.read().clone()).filter(|reason| !reason.is_empty())
    }

    /// The tokenizer knows the vocabulary and the sampling defaults.
    pub fn learn_from_tokenizer(&self, info: &ModelInfo) {
        let mut limits = Limits::clone(&self.limits.read());
        limits.vocab_size = info.vocab_size;
        limits.formats.learn(info);
        if self.config.use_model_defaults {
            limits.defaults = self.config.overrides.or(Defaults::of_model(&info.generation_config_json));
        }
        *self.limits.write() = Arc::new(limits);
        self.max_model_len.write().get_or_insert(info.max_model_len);
        self.forget_zero();
    }

    /// The adapters that are served now.
    pub fn learn_adapters(&self, adapters: &[ServedAdapter]) {
        let names = adapters.iter().map(|adapter| adapter.name.clone()).collect();
        let mut limits = self.limits.write();
        *limits = Arc::new(Limits { adapters: Arc::new(names), ..Limits::clone(&limits) });
    }

    /// The scheduler knows the length that the KV memory allows.
    pub fn learn_from_scheduler(&self, info: &ModelInfo) {
        *self.max_model_len.write() = Some(info.max_model_len);
        self.prefix_cache_off.write().clone_from(&info.prefix_cache_off);
        self.own_tokens.store(info.extra_vocab_size > 0, Ordering::Relaxed);
        *self.pooling.write() = info.pooling.clone().map(Arc::new);
        self.forget_zero();
    }

    fn forget_zero(&self) {
        let mut length = self.max_model_len.write();
        *length = length.filter(|length| *length > 0);
    }

    /// Asks the tokenizer and the scheduler until both know the model.
    pub async fn learn(&self, peers: &Peers) {
        if let Some(info) = ask(peers.tokenizer().map_or(&[], std::slice::from_ref)).await {
            self.learn_from_tokenizer(&info);
        }
        if let Some(info) = ask(peers.schedulers()).await {
            self.learn_from_scheduler(&info);
        }
        // Without processes to ask, the flags are all there is to know.
        self.learned.store(true, Ordering::Release);
    }
}

/// The model that processes serve; waits until one of them knows. `None` when there is no such process to ask.
async fn ask(processes: &[service_kit::control::ControlClient]) -> Option<ModelInfo> {
    if processes.is_empty() {
        return None;
    }
    loop {
        for process in processes {
            if let Ok(proto::InfoReply { model: Some(model), .. }) = process.info().await {
                return Some(model);
            }
        }
        // There is no event for "the other process has loaded": its control plane is asked again.
        tokio::time::sleep(RETRY).await;
    }
}
