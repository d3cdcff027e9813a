//! Any bytes are a text in one of the formats of calls and reasoning: `cargo +nightly fuzz run parsers` in
//! `crates/chat-format`. The same runs on fixed random bytes in `tests/parsers`, so it cannot rot.
#![no_main]

use std::sync::{Arc, LazyLock};

use chat_format::parsers::Tools;

#[path = "../../tests/parsers/play.rs"]
mod play;

static OFFERED: LazyLock<Arc<Tools>> =
    LazyLock::new(|| Arc::new(Tools::new(&[serde_json::json!({"function": {"name": "f"}})])));

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    play::play(bytes, &OFFERED);
});
