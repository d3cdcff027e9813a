//! Makes the prompts that a benchmark sends.

use std::{fs, path::Path};

use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

use super::args::{Backend, Dataset, DatasetArgs, LoadArgs, ServerArgs};

/// One request to send.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// A string, or a list of token ids.
    pub content: Value,
    /// Tokens to generate.
    pub output_tokens: usize,
}

/// Short words that most tokenizers know as one token each.
const WORDS: &[&str] = &[
    "the", "of", "and", "to", "in", "is", "it", "you", "that", "he", "was", "for", "on", "are", "with", "as", "his",
    "they", "be", "at", "one", "have", "this", "from", "or", "had", "by", "hot", "but", "some", "what", "there", "we",
    "can", "out", "other", "were", "all", "your", "when", "up", "use", "word", "how", "said", "an", "each", "she",
    "which", "do", "their", "time", "if", "will", "way", "about", "many", "then", "them", "would", "write", "like",
    "so", "these",
];

/// All prompts of a run, the same for the same flags.
pub fn prompts(args: &DatasetArgs, load: &LoadArgs, backend: Backend) -> Result<Vec<Prompt>, String> {
    if args.dataset_name == Dataset::Random {
        let mut random = Random::new(args, load.seed, backend);
        return Ok((0..load.num_prompts).map(|_| random.prompt()).collect());
    }
    let path = args.dataset_path.as_deref().ok_or("--dataset-path is missing")?;
    let all = read(path, args).map_err(|problem| format!("--dataset-path {}: {problem}", path.display()))?;
    // A file with fewer prompts than asked for starts over.
    Ok(all.iter().cycle().take(load.num_prompts).cloned().collect())
}

/// The body of one request.
pub fn body(prompt: &Prompt, server: &ServerArgs, model: &str, extra: &serde_json::Map<String, Value>) -> Vec<u8> {
    let mut body = match server.backend {
        Backend::OpenaiEmbeddings => json!({"model": model, "input": prompt.content}),
        Backend::Openai | Backend::OpenaiChat | Backend::Vllm => generation(prompt, server, model),
    };
    for (name, value) in extra {
        body[name] = value.clone();
    }
    body.to_string().into_bytes()
}

/// The body of a request that generates text, as a stream.
fn generation(prompt: &Prompt, server: &ServerArgs, model: &str) -> Value {
    let mut body = json!({
        "model": model,
        "temperature": server.temperature,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    if server.backend == Backend::OpenaiChat {
        body["max_completion_tokens"] = json!(prompt.output_tokens);
        body["messages"] = json!([{"role": "user", "content": prompt.content}]);
    } else {
        body["max_tokens"] = json!(prompt.output_tokens);
        body["prompt"] = prompt.content.clone();
    }
    if server.ignore_eos {
        body["ignore_eos"] = json!(true);
    }
    body
}

struct Random<'a> {
    args: &'a DatasetArgs,
    rng: StdRng,
    backend: Backend,
    prefix: Vec<u32>,
}

impl<'a> Random<'a> {
    fn new(args: &'a DatasetArgs, seed: u64, backend: Backend) -> Self {
        let mut random = Self { args, rng: StdRng::seed_from_u64(seed), backend, prefix: Vec::new() };
        random.prefix = random.ids(args.random_prefix_len);
        random
    }

    fn prompt(&mut self) -> Prompt {
        let length = self.length(self.args.random_input_len);
        let mut ids = self.prefix.clone();
        ids.extend(self.ids(length));
        let content = match self.backend {
            Backend::Openai | Backend::Vllm | Backend::OpenaiEmbeddings => json!(ids),
            Backend::OpenaiChat => {
                let words: Vec<_> = ids.iter().map(|id| WORDS[*id as usize % WORDS.len()]).collect();
                json!(words.join(" "))
            }
        };
        Prompt { content, output_tokens: self.length(self.args.random_output_len).max(1) }
    }

    fn ids(&mut self, count: usize) -> Vec<u32> {
        let end = self.args.random_vocab_size;
        let start = if end > 200 { 100 } else { 0 };
        (0..count).map(|_| self.rng.random_range(start..end)).collect()
    }

    fn length(&mut self, middle: usize) -> usize {
        let ratio = self.args.random_range_ratio;
        let low = (middle as f64 * (1.0 - ratio)).floor() as usize;
        let high = (middle as f64 * (1.0 + ratio)).ceil() as usize;
        self.rng.random_range(low..=high.max(low))
    }
}

fn read(path: &Path, args: &DatasetArgs) -> Result<Vec<Prompt>, String> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let rows: Vec<Value> = if text.trim_start().starts_with('[') {
        serde_json::from_str(&text).map_err(|error| error.to_string())?
    } else {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let parse =
            |(number, line)| serde_json::from_str(line).map_err(|error| format!("line {}: {error}", number + 1));
        lines.map(parse).collect::<Result<_, _>>()?
    };
    let prompts: Vec<_> = rows.iter().filter_map(|row| prompt_of(row, args)).collect();
    if prompts.is_empty() { Err("no prompts in it".to_owned()) } else { Ok(prompts) }
}

fn prompt_of(row: &Value, args: &DatasetArgs) -> Option<Prompt> {
    let output_tokens = row["output_tokens"].as_u64().map_or(args.custom_output_len, |count| count.max(1) as usize);
    let content = match args.dataset_name {
        Dataset::Sharegpt => &row["conversations"][0]["value"],
        Dataset::Random | Dataset::Custom => &row["prompt"],
    };
    let usable = content.is_string() || content.is_array();
    usable.then(|| Prompt { content: content.clone(), output_tokens })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::bench::args::ServeArgs;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: ServeArgs,
    }

    fn args(flags: &[&str]) -> ServeArgs {
        Cli::parse_from(["bench"].iter().chain(flags)).args
    }

    fn made(flags: &[&str]) -> Vec<Prompt> {
        let args = args(flags);
        prompts(&args.dataset, &args.load, args.server.backend).unwrap()
    }

    #[test]
    fn random_prompts_repeat_and_keep_their_lengths() {
        let flags = ["--num-prompts=20", "--random-input-len=10", "--random-output-len=4", "--random-prefix-len=3"];
        let first = made(&flags);
        assert_eq!(first, made(&flags));
        let ids: Vec<Vec<u64>> = first.iter().map(|p| serde_json::from_value(p.content.clone()).unwrap()).collect();
        for ids in &ids {
            assert_eq!((ids.len(), &ids[..3]), (13, &ids[..3]));
            assert!(ids.iter().all(|id| (100..1000).contains(id)));
        }
        assert!(first.iter().all(|prompt| prompt.output_tokens == 4));
        assert_ne!(ids[0][3..], ids[1][3..]);
    }

    #[test]
    fn the_range_ratio_bounds_lengths() {
        for prompt in made(&["--num-prompts=50", "--random-input-len=100", "--random-range-ratio=0.2"]) {
            let length = prompt.content.as_array().unwrap().len();
            assert!((80..=120).contains(&length), "{length}");
        }
    }

    #[test]
    fn chats_get_words() {
        let prompt = &made(&["--backend=openai-chat", "--num-prompts=1", "--random-input-len=7"])[0];
        assert_eq!(prompt.content.as_str().unwrap().split(' ').count(), 7);
    }

    #[test]
    fn files_are_read_and_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let flag = format!("--dataset-path={}", path.display());
        fs::write(&path, "{\"prompt\": \"a\", \"output_tokens\": 3}\n\n{\"prompt\": [1, 2]}\n").unwrap();
        let prompts = made(&["--dataset-name=custom", &flag, "--num-prompts=3"]);
        assert_eq!(prompts[0], Prompt { content: json!("a"), output_tokens: 3 });
        assert_eq!(prompts[1], Prompt { content: json!([1, 2]), output_tokens: 256 });
        assert_eq!(prompts[2], prompts[0]);
        fs::write(&path, r#"[{"conversations": [{"value": "hi"}, {"value": "yo"}]}, {"conversations": []}]"#).unwrap();
        let prompts = made(&["--dataset-name=sharegpt", &flag, "--num-prompts=1", "--sharegpt-output-len=9"]);
        assert_eq!(prompts[0], Prompt { content: json!("hi"), output_tokens: 9 });
    }

    #[test]
    fn bodies_carry_the_flags() {
        let args = args(&["--ignore-eos"]);
        let extra = serde_json::from_str(r#"{"top_k": 1}"#).unwrap();
        let prompt = Prompt { content: json!([1]), output_tokens: 5 };
        let body: Value = serde_json::from_slice(&body(&prompt, &args.server, "m", &extra)).unwrap();
        let expected = json!({"model": "m", "temperature": 0.0, "stream": true, "max_tokens": 5, "prompt": [1],
            "stream_options": {"include_usage": true}, "ignore_eos": true, "top_k": 1});
        assert_eq!(body, expected);
    }

    #[test]
    fn embeddings_ask_for_no_tokens() {
        let args = args(&["--backend=openai-embeddings", "--ignore-eos"]);
        let extra = serde_json::from_str(r#"{"dimensions": 8}"#).unwrap();
        let prompt = Prompt { content: json!([1]), output_tokens: 5 };
        let body: Value = serde_json::from_slice(&body(&prompt, &args.server, "m", &extra)).unwrap();
        assert_eq!(body, json!({"model": "m", "input": [1], "dimensions": 8}));
    }
}
