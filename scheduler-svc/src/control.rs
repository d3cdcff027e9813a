//! The scheduler's answers on the control plane: questions become [`Command`]s in the event queue.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use proto::ModelInfo;
use service_kit::control::Handler;
use tokio::sync::{mpsc, oneshot};

use crate::wire::{Command, Event};

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

/// Answers for the scheduler.
pub(crate) struct Answers {
    pub events: mpsc::Sender<Event>,
    pub published: Published,
    pub fingerprint: String,
    pub config_json: String,
}

impl Answers {
    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Option<T> {
        let (answer, wait) = oneshot::channel();
        self.events.send(Event::Command(command(answer))).await.ok()?;
        wait.await.ok()
    }
}

#[tonic::async_trait]
impl Handler for Answers {
    fn model(&self) -> Option<ModelInfo> {
        self.published.model()
    }

    fn model_fingerprint(&self) -> String {
        self.fingerprint.clone()
    }

    fn config_json(&self) -> String {
        self.config_json.clone()
    }

    async fn drained(&self, deadline: Duration) -> u32 {
        let empty = self.ask(|done| Command::Drained { done });
        match tokio::time::timeout(deadline, empty).await {
            Ok(_) => 0,
            Err(_) => self.ask(|count| Command::Unfinished { count }).await.unwrap_or(0),
        }
    }

    async fn abort(&self, request_id: &str) -> bool {
        let request_id = request_id.to_owned();
        self.ask(|found| Command::Abort { request_id, found }).await.unwrap_or(false)
    }

    async fn reset_prefix_cache(&self) -> Result<(), tonic::Status> {
        self.ask(|done| Command::ResetPrefixCache { done })
            .await
            .ok_or_else(|| tonic::Status::unavailable("the scheduler is ending"))
    }
}
