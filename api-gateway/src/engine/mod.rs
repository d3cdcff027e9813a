//! What the gateway knows of the engine behind it: its processes, its model, and the requests in flight.

pub mod adapters;
pub mod mailbox;
pub mod model;
pub mod outbox;
pub mod peers;
pub mod pipeline;
pub mod registry;
pub mod timings;
