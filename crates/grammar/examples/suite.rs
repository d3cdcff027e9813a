//! Random texts under every schema of a folder, checked by an independent validator.
//!
//! ```text
//! cargo run --release -p grammar --example suite -- JSON-Schema-Test-Suite/tests/draft2020-12 20
//! ```
//!
//! Files are those of the JSON Schema Test Suite (lists of groups with a `schema`), or schemas. A schema is refused by
//! the compiler, or each of its texts validates; what does not is printed, and the process fails.

#[path = "../tests/walk/mod.rs"]
mod walk;

use std::{collections::BTreeMap, fs, path::Path, process::ExitCode};

use proto::constraint::Kind;
use serde_json::Value;

#[derive(Default)]
struct Counts {
    schemas: usize,
    texts: usize,
    unfinished: usize,
    wrong: usize,
    refused: BTreeMap<String, usize>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (Some(folder), seeds) = (arguments.first(), arguments.get(1).and_then(|seeds| seeds.parse().ok())) else {
        eprintln!("usage: suite FOLDER [SEEDS]");
        return ExitCode::FAILURE;
    };
    let mut counts = Counts::default();
    visit(Path::new(folder), seeds.unwrap_or(20), &mut counts);
    let refused: usize = counts.refused.values().sum();
    println!(
        "{} schemas: {refused} refused; {} texts, {} of which did not end, {} do not validate",
        counts.schemas, counts.texts, counts.unfinished, counts.wrong
    );
    for (reason, count) in &counts.refused {
        println!("{count:5}  {reason}");
    }
    if counts.wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn visit(path: &Path, seeds: u64, counts: &mut Counts) {
    if let Ok(entries) = fs::read_dir(path) {
        let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        return paths.iter().for_each(|path| visit(path, seeds, counts));
    }
    let text = fs::read_to_string(path).unwrap_or_default();
    match serde_json::from_str::<Value>(&text) {
        Ok(Value::Array(groups)) => {
            let schemas = groups.iter().filter_map(|group| group.get("schema"));
            schemas.for_each(|schema| check(path, schema, seeds, counts));
        }
        Ok(schema) => check(path, &schema, seeds, counts),
        Err(_) => {}
    }
}

fn check(path: &Path, schema: &Value, seeds: u64, counts: &mut Counts) {
    let compiler = walk::compiler();
    let constraint = walk::of(Kind::JsonSchema(schema.to_string()));
    counts.schemas += 1;
    let validator = jsonschema::validator_for(schema);
    for seed in 0..seeds {
        let mut matcher = match compiler.matcher(&constraint, None) {
            Ok(matcher) => matcher,
            Err(error) => {
                let reason: String = error.to_string().chars().take(90).collect();
                *counts.refused.entry(reason).or_default() += 1;
                return;
            }
        };
        counts.texts += 1;
        let Some(text) = walk::text(&mut matcher, seed, 40) else {
            counts.unfinished += 1;
            continue;
        };
        let Ok(value) = serde_json::from_slice::<Value>(&text) else { continue };
        if validator.as_ref().is_ok_and(|validator| !validator.is_valid(&value)) {
            counts.wrong += 1;
            println!("{}: {value} under {schema}", path.display());
        }
    }
}
