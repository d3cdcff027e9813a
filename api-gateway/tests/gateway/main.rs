//! The whole gateway in this process, between a real HTTP client and fake peers on real links.

mod access;
mod client;
mod control;
mod development;
mod documentation;
mod engine;
mod failures;
mod garbage;
mod limits;
mod pooling;
mod responses;
mod shapes;
mod stage;
mod streaming;
mod tls;
mod tools;
