//! The scheduler between fake peers over real links: a tokenizer, a detokenizer, and workers that count.

mod group;
mod relay;
mod requests;
mod stage;
