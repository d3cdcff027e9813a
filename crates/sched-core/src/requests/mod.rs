//! What is known about a request, about each of its choices, and the queue that they wait in.

pub(crate) mod queue;
pub(crate) mod repetition;
pub(crate) mod request;
pub(crate) mod sequence;
