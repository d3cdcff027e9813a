//! The tokenizer's control plane: facts of the model, aborts, drain, `/tokenize` and `/detokenize`.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, OnceLock},
    time::Duration,
};

use jiff::Zoned;
use proto::{
    AdapterTokenizer, DetokenizeReply, DetokenizeRequest, Failure, ModelInfo, TokenizeReply, TokenizeRequest,
    tokenizer_service_server::TokenizerService,
};
use service_kit::control::{self, Handler, Question};
use tokio::sync::{mpsc, oneshot};
use tonic::{Request, Response, Status};

use crate::{encode, error, model::Model, models::Models, pool::Pool};

/// Handles control calls of the tokenizer; cloning shares.
#[derive(Clone)]
pub(crate) struct ControlHandler {
    pub(crate) models: Arc<OnceLock<Models>>,
    pub(crate) pool: Pool,
    pub(crate) questions: mpsc::Sender<Question>,
}

impl ControlHandler {
    /// Runs `work` on the pool, with the model or what an adapter brings of its own.
    async fn on_pool<T: Send + 'static>(
        &self,
        own: Option<AdapterTokenizer>,
        bytes: usize,
        work: impl FnOnce(&Model) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let models = self.models.get().cloned().ok_or_else(|| error::unavailable("The tokenizer is loading."))?;
        let (answer, wait) = oneshot::channel();
        let work = move || {
            let result = catch_unwind(AssertUnwindSafe(|| work(&*models.of(own.as_ref())?)));
            let _ = answer.send(result.unwrap_or_else(|_| Err(error::internal("The tokenizer failed."))));
        };
        self.pool.submit(bytes, work).map_err(|_| error::overloaded())?;
        wait.await.unwrap_or_else(|_| Err(error::draining()))
    }
}

#[tonic::async_trait]
impl Handler for ControlHandler {
    fn model(&self) -> Option<ModelInfo> {
        self.models.get().map(|models| models.base.info.clone())
    }

    async fn drained(&self, deadline: Duration) -> u32 {
        control::drained(&self.questions, deadline).await
    }

    async fn abort(&self, request_id: &str) -> bool {
        control::abort(&self.questions, request_id).await
    }
}

#[tonic::async_trait]
impl TokenizerService for ControlHandler {
    async fn tokenize(&self, request: Request<TokenizeRequest>) -> Result<Response<TokenizeReply>, Status> {
        let TokenizeRequest { prompt, return_token_strs, adapter_tokenizer } = request.into_inner();
        let prompt = prompt.ok_or_else(|| Status::invalid_argument("no prompt"))?;
        let bytes = encode::prompt_bytes(&prompt);
        let work = move |model: &Model| {
            let tokens = encode::prompt_ids(model, prompt, &Zoned::now())?;
            let written = |id: &u32| model.tokenizer.id_to_token(*id).unwrap_or_default();
            let token_strs = if return_token_strs { tokens.iter().map(written).collect() } else { Vec::new() };
            Ok(TokenizeReply { tokens, token_strs, failure: None })
        };
        let reply = self.on_pool(adapter_tokenizer, bytes, work).await;
        Ok(Response::new(
            reply.unwrap_or_else(|failure| TokenizeReply { failure: Some(failure), ..Default::default() }),
        ))
    }

    async fn detokenize(&self, request: Request<DetokenizeRequest>) -> Result<Response<DetokenizeReply>, Status> {
        let DetokenizeRequest { tokens, adapter_tokenizer } = request.into_inner();
        let bytes = 4 * tokens.len();
        let work = move |model: &Model| {
            if let Some(id) = tokens.iter().find(|id| **id >= model.tokenizer.vocab_size()) {
                return Err(error::invalid("tokens", format!("Token id {id} is out of vocabulary")));
            }
            let text = model.tokenizer.decode(&tokens, false);
            let text = text.map_err(|error| error::invalid("tokens", error.to_string()))?;
            Ok(DetokenizeReply { text, failure: None })
        };
        let reply = self.on_pool(adapter_tokenizer, bytes, work).await;
        Ok(Response::new(
            reply.unwrap_or_else(|failure| DetokenizeReply { failure: Some(failure), ..Default::default() }),
        ))
    }
}
