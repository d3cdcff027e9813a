//! The scheduler's control plane: questions that only the serving loop can answer go through its event queue.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use proto::{Failure, ListAdaptersReply, ModelInfo, ServeAdapterRequest};
use service_kit::control::{self, Handler};
use tokio::sync::{mpsc, oneshot};

use crate::{adapters::AdapterCall, wire::Event};

/// What the serving loop publishes for others to read.
#[derive(Clone, Default)]
pub(crate) struct Published {
    model: Arc<Mutex<Option<ModelInfo>>>,
}

impl Published {
    pub(crate) fn set_model(&self, model: Option<ModelInfo>) {
        *self.model.lock().unwrap_or_else(PoisonError::into_inner) = model;
    }

    fn model(&self) -> Option<ModelInfo> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Handles control calls of the scheduler.
pub(crate) struct ControlHandler {
    pub events: mpsc::Sender<Event>,
    pub published: Published,
}

impl ControlHandler {
    async fn about_adapters<T>(
        &self,
        call: impl FnOnce(oneshot::Sender<T>) -> AdapterCall,
    ) -> Result<T, tonic::Status> {
        let answer = control::ask(&self.events, |reply| Event::Adapters(call(reply))).await;
        answer.ok_or_else(|| tonic::Status::unavailable("the scheduler is ending, or lost its workers"))
    }
}

#[tonic::async_trait]
impl Handler for ControlHandler {
    fn model(&self) -> Option<ModelInfo> {
        self.published.model()
    }

    async fn drained(&self, deadline: Duration) -> u32 {
        control::drained(&self.events, deadline).await
    }

    async fn abort(&self, request_id: &str) -> bool {
        control::abort(&self.events, request_id).await
    }

    async fn serve_adapter(&self, request: ServeAdapterRequest) -> Result<Option<Failure>, tonic::Status> {
        self.about_adapters(|reply| AdapterCall::Serve(request, reply)).await
    }

    async fn remove_adapter(&self, name: String) -> Result<Option<Failure>, tonic::Status> {
        self.about_adapters(|reply| AdapterCall::Remove(name, reply)).await
    }

    async fn adapters(&self, resolve: String) -> Result<ListAdaptersReply, tonic::Status> {
        self.about_adapters(|reply| AdapterCall::List(resolve, reply)).await
    }

    async fn reset_prefix_cache(&self) -> Result<(), tonic::Status> {
        let done = control::ask(&self.events, Event::ResetPrefixCache).await;
        done.ok_or_else(|| tonic::Status::unavailable("the scheduler is ending"))
    }
}
