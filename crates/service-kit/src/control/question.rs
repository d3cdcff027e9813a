//! Questions of the control plane that only a process's serving loop can answer: they travel through the loop's own
//! queue.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

/// A question with the sender of its answer, whose receiver may be gone by then.
pub enum Question {
    /// Abort a request by the id that its client saw.
    Abort {
        /// That id.
        request_id: String,
        /// Answers whether there was one.
        found: oneshot::Sender<bool>,
    },
    /// Wait until nothing is left to do.
    Drained {
        /// Answers when that is so.
        done: oneshot::Sender<()>,
    },
    /// Count what is left to do.
    Unfinished {
        /// Answers with the number of requests.
        count: oneshot::Sender<u32>,
    },
}

/// Asks a loop through its queue; absent when the loop has ended.
pub async fn ask<E, T>(queue: &mpsc::Sender<E>, question: impl FnOnce(oneshot::Sender<T>) -> E) -> Option<T> {
    let (answer, wait) = oneshot::channel();
    queue.send(question(answer)).await.ok()?;
    wait.await.ok()
}

/// Waits until the loop has nothing left or the deadline passes; the number of requests left then.
pub async fn drained<E: From<Question>>(queue: &mpsc::Sender<E>, deadline: Duration) -> u32 {
    let empty = ask(queue, |done| Question::Drained { done }.into());
    match tokio::time::timeout(deadline, empty).await {
        Ok(_) => 0,
        Err(_) => ask(queue, |count| Question::Unfinished { count }.into()).await.unwrap_or(0),
    }
}

/// Aborts a request; whether there was one.
pub async fn abort<E: From<Question>>(queue: &mpsc::Sender<E>, request_id: &str) -> bool {
    let request_id = request_id.to_owned();
    ask(queue, |found| Question::Abort { request_id, found }.into()).await.unwrap_or(false)
}
