//! Import directions, read from `cargo metadata`: each package names its layer, and may use only what lies below.

use std::path::Path;

use cargo_metadata::{DependencyKind, MetadataCommand};

/// A floor of the house, top first (see ARCHITECTURE.md, "Who may import whom").
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Layer {
    Command,
    Process,
    Core,
    Plumbing,
    Contract,
    Ground,
    /// Tests and chores may use everything; nothing may use them.
    Outside,
}

use Layer::{Command, Contract, Core, Ground, Outside, Plumbing, Process};

/// Every package of the workspace and its layer, sorted by name.
const LAYERS: &[(&str, Layer)] = &[
    ("api-gateway", Process),
    ("block-hash", Contract),
    ("chat-format", Core),
    ("collectives", Plumbing),
    ("default-model", Ground),
    ("detokenizer-svc", Process),
    ("e2e-tests", Outside),
    ("grammar", Core),
    ("ids", Ground),
    ("kernels", Contract),
    ("kernels-cuda", Plumbing),
    ("link", Plumbing),
    ("model-files", Ground),
    ("model-source", Plumbing),
    ("model-spec", Contract),
    ("models", Core),
    ("proto", Contract),
    ("quire", Command),
    ("router", Core),
    ("sampling", Core),
    ("sched-core", Core),
    ("scheduler-svc", Process),
    ("service-kit", Plumbing),
    ("shm-ring", Ground),
    ("tokenizer", Core),
    ("tokenizer-svc", Process),
    ("worker-svc", Process),
    ("xtask", Outside),
];

/// Arrows that the layers forbid and that are wanted all the same, each with its reason.
const EXCEPTIONS: &[(&str, &str)] = &[
    // The media of a request are a message, and part of what a block is named after.
    ("block-hash", "proto"),
    // An activation, a norm or an element type is one enum, for a model's facts and for what a device computes.
    ("kernels", "model-spec"),
    // A tensor-parallel layer is one idea: its matmul and its all-reduce.
    ("models", "collectives"),
    // Both are plumbing: the kit serves control planes at link addresses.
    ("service-kit", "link"),
];

/// What the cores must not use: they stay free of async runtimes, sockets and logging set-up.
const IMPURE: &[&str] = &["tokio", "tonic", "axum", "hyper", "reqwest", "tracing-subscriber"];

pub(super) fn check(root: &Path) -> anyhow::Result<Vec<String>> {
    let metadata = MetadataCommand::new().manifest_path(root.join("Cargo.toml")).no_deps().exec()?;
    let mut found = Vec::new();
    for package in metadata.workspace_packages() {
        let name = package.name.as_str();
        let Some(from) = layer(name) else {
            found.push(format!("{name} has no layer in xtask/src/tidy/imports.rs"));
            continue;
        };
        for dependency in package.dependencies.iter().filter(|d| d.kind == DependencyKind::Normal) {
            let target = dependency.name.as_str();
            if from == Core && IMPURE.contains(&target) {
                found.push(format!("{name} is a core and uses {target}"));
            }
            if let Some(to) = layer(target)
                && !allowed(name, from, target, to)
            {
                found.push(format!("{name} ({from:?}) uses {target} ({to:?})"));
            }
        }
    }
    Ok(found)
}

fn layer(name: &str) -> Option<Layer> {
    LAYERS.iter().find(|(package, _)| *package == name).map(|(_, layer)| *layer)
}

fn allowed(name: &str, from: Layer, target: &str, to: Layer) -> bool {
    if EXCEPTIONS.contains(&(name, target)) || from == Outside {
        return true;
    }
    match (from, to) {
        // Cores import neither plumbing nor each other.
        (Core, to) => to > Plumbing && to != Outside,
        (from, to) => to > from && to != Outside,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrows_go_down() {
        let check = |name: &str, target: &str| allowed(name, layer(name).unwrap(), target, layer(target).unwrap());
        assert!(check("quire", "api-gateway"));
        assert!(check("api-gateway", "link"));
        assert!(check("models", "kernels"));
        assert!(check("models", "collectives"));
        assert!(!check("api-gateway", "tokenizer-svc"));
        assert!(!check("link", "api-gateway"));
        assert!(!check("sched-core", "link"));
        assert!(!check("sched-core", "sampling"));
        assert!(!check("kernels", "models"));
        assert!(!check("quire", "e2e-tests"));
    }

    #[test]
    fn the_table_is_sorted() {
        assert!(LAYERS.is_sorted_by_key(|(name, _)| *name));
    }
}
