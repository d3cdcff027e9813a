//! What users of vLLM meet: each route, field, flag, variable, parser and metric of its version 0.33.0, and flags that
//! scripts for earlier ones hold, name by name (`tests/fixtures/vllm_surface.json`), acts, is refused by name, or is
//! listed with a reason. None is unknown, none is taken in silence. And gpt-oss behind its channels.

mod command;
mod harmony;
mod http;

use anyhow::ensure;
use serde_json::Value;

/// The names, by kind.
fn surface() -> anyhow::Result<Value> {
    let path = e2e_tests::root().join("tests/fixtures/vllm_surface.json");
    Ok(serde_json::from_str(&std::fs::read_to_string(path)?)?)
}

/// A list of the surface.
fn list(of: &Value) -> impl Iterator<Item = &Value> {
    of.as_array().into_iter().flatten()
}

/// A list of names.
fn names(of: &Value) -> impl Iterator<Item = &str> {
    list(of).filter_map(Value::as_str)
}

/// What was found missing; fails with all of it.
#[derive(Default)]
struct Misses(Vec<String>);

impl Misses {
    fn unless(&mut self, holds: bool, miss: impl FnOnce() -> String) {
        if !holds {
            self.0.push(miss());
        }
    }

    fn none(self) -> anyhow::Result<()> {
        ensure!(self.0.is_empty(), "{} misses:\n{}", self.0.len(), self.0.join("\n"));
        Ok(())
    }
}
