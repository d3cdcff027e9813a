//! The scheduler between fake peers over real links: a tokenizer, a detokenizer, and workers that count.

mod adapters;
mod drain;
mod group;
mod relay;
mod requests;
mod stage;
