//! Random texts under every schema of some folders, checked by an independent validator.
//!
//! ```text
//! cargo run --release -p grammar --example suite -- SEEDS TOKENIZER FOLDER...
//! ```
//!
//! TOKENIZER is a model's folder or GGUF file, or `bytes`: single bytes and some pieces. Files are those of the JSON
//! Schema Test Suite (lists of groups with a `schema`), or schemas. Each schema is refused by the compiler, or each of
//! its texts validates; what does not is printed, and the process fails.

#[path = "../tests/walk/mod.rs"]
mod walk;

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::ExitCode,
    sync::{Arc, Mutex},
};

use grammar::Compiler;
use proto::constraint::Kind;
use serde_json::Value;
use tokenizer::{TokenKind, Tokenizer};
use walk::{Walk, Words};

/// Tokens after which a text is to end.
const MOST: usize = 40;

#[derive(Default)]
struct Counts {
    schemas: usize,
    /// Schemas that the validator refuses; their texts are JSON, no more.
    unknown: usize,
    texts: usize,
    unfinished: usize,
    /// Texts that ended at a bound of the grammar.
    complex: usize,
    /// Texts with a number that is out of the validator's range.
    unread: usize,
    wrong: usize,
    refused: BTreeMap<String, usize>,
}

/// A schema and where it was found.
struct Case {
    path: String,
    schema: Value,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [seeds, tokenizer, folders @ ..] = arguments.as_slice() else {
        eprintln!("usage: suite SEEDS TOKENIZER FOLDER...");
        return ExitCode::FAILURE;
    };
    let (Ok(seeds), Some(words)) = (seeds.parse(), words(tokenizer)) else {
        eprintln!("SEEDS is a number, TOKENIZER a model with an end token, or `bytes`");
        return ExitCode::FAILURE;
    };
    let mut cases = Vec::new();
    folders.iter().for_each(|folder| collect(Path::new(folder), &mut cases));
    let counts = run(&cases, &words, seeds);
    let refused: usize = counts.refused.values().sum();
    println!(
        "{} schemas: {refused} refused, {} unknown to the validator; {} texts: {} did not end, {} met a bound, {} \
         with numbers out of range, {} do not validate",
        counts.schemas, counts.unknown, counts.texts, counts.unfinished, counts.complex, counts.unread, counts.wrong
    );
    let mut reasons: Vec<_> = counts.refused.iter().collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    for (reason, count) in reasons {
        println!("{count:5}  {reason}");
    }
    if counts.wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The tokens of a model, as workers take them; absent if it has no tokenizer or no end token.
fn words(tokenizer: &str) -> Option<Words> {
    if tokenizer == "bytes" {
        return Some(Words::of_tests());
    }
    let tokenizer = Tokenizer::load(Path::new(tokenizer)).ok()?;
    let end = tokenizer.special_tokens().get("eos_token").and_then(|text| tokenizer.token_to_id(text))?;
    let words = (0..tokenizer.vocab_size()).map(|id| match tokenizer.token_kind(id) {
        TokenKind::Text(bytes) => bytes.to_vec(),
        TokenKind::Added(_) | TokenKind::Special(_) | TokenKind::Absent => Vec::new(),
    });
    let words = words.collect();
    let spell = Arc::new(move |text: &str| tokenizer.encode(text, false).unwrap_or_default());
    Some(Words { words, ends: vec![end], spell: Some(spell) })
}

/// `-0` is a whole number, which this reader takes for a float.
fn without_minus_zero(value: Value) -> Value {
    match value {
        Value::Number(number) if number.as_f64() == Some(0.0) => Value::from(0),
        Value::Array(items) => items.into_iter().map(without_minus_zero).collect(),
        Value::Object(members) => members.into_iter().map(|(key, value)| (key, without_minus_zero(value))).collect(),
        other => other,
    }
}

fn collect(path: &Path, cases: &mut Vec<Case>) {
    if let Ok(entries) = fs::read_dir(path) {
        let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        return paths.iter().for_each(|path| collect(path, cases));
    }
    let mut add = |schema: &Value| cases.push(Case { path: path.display().to_string(), schema: schema.clone() });
    match serde_json::from_str::<Value>(&fs::read_to_string(path).unwrap_or_default()) {
        Ok(Value::Array(groups)) => groups.iter().filter_map(|group| group.get("schema")).for_each(add),
        Ok(schema) => add(&schema),
        Err(_) => {}
    }
}

fn run(cases: &[Case], words: &Words, seeds: u64) -> Counts {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (rest, counts) = (Mutex::new(cases.iter()), Mutex::new(Counts::default()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let compiler = words.compiler();
                while let Some(case) = next(&rest) {
                    check(case, &compiler, words, seeds, &counts);
                }
            });
        }
    });
    counts.into_inner().expect("no thread panicked")
}

fn next<'c>(rest: &Mutex<std::slice::Iter<'c, Case>>) -> Option<&'c Case> {
    rest.lock().expect("no thread panicked").next()
}

fn check(case: &Case, compiler: &Compiler, words: &Words, seeds: u64, counts: &Mutex<Counts>) {
    let constraint = walk::of(Kind::JsonSchema(case.schema.to_string()));
    let validator = jsonschema::options().should_validate_formats(true).build(&case.schema).ok();
    let mut own = Counts { schemas: 1, unknown: usize::from(validator.is_none()), ..Counts::default() };
    for seed in 0..seeds {
        let mut matcher = match compiler.matcher(&constraint, None) {
            Ok(matcher) => matcher,
            Err(error) => {
                let reason: String = error.to_string().replace('\n', " ").chars().take(110).collect();
                own.refused.insert(reason, 1);
                break;
            }
        };
        own.texts += 1;
        match walk::walk(words, &mut matcher, seed, MOST) {
            Walk::Cut => own.unfinished += 1,
            Walk::TooComplex(_) => own.complex += 1,
            Walk::Whole(text) => {
                let valid = match serde_json::from_slice::<Value>(&text).map(without_minus_zero) {
                    Ok(value) => validator.as_ref().is_none_or(|validator| validator.is_valid(&value)),
                    // JSON knows no bound of numbers; this reader does.
                    Err(error) if error.to_string().contains("number out of range") => {
                        own.unread += 1;
                        true
                    }
                    Err(_) => false,
                };
                if valid {
                    continue;
                }
                own.wrong += 1;
                if own.wrong == 1 {
                    let schema: String = case.schema.to_string().chars().take(600).collect();
                    println!("{}: {}\n    under {schema}", case.path, String::from_utf8_lossy(&text));
                }
            }
        }
    }
    counts.lock().expect("no thread panicked").add(own);
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.schemas += other.schemas;
        self.unknown += other.unknown;
        self.texts += other.texts;
        self.unfinished += other.unfinished;
        self.complex += other.complex;
        self.unread += other.unread;
        self.wrong += other.wrong;
        for (reason, count) in other.refused {
            *self.refused.entry(reason).or_default() += count;
        }
    }
}
