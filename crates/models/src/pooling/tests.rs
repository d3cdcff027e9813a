//! How models pool, by their files and by what the user says.

use super::*;

const LLAMA: &str = r#"{"architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64}"#;
const MODULES: &str = r#"[{"type": "sentence_transformers.models.Transformer", "path": ""},
    {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]"#;

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    }
    dir
}

fn planned(files: &[(&str, &str)], options: &PoolingOptions) -> Result<Option<PoolingPlan>, String> {
    plan(folder(files).path(), options).map_err(|error| error.to_string())
}

fn asked(runner: RunnerType, convert: Conversion) -> PoolingOptions {
    PoolingOptions { runner, convert, ..PoolingOptions::default() }
}

#[test]
fn what_generates_is_pooled_when_asked() {
    let files = &[("config.json", LLAMA)];
    assert_eq!(planned(files, &PoolingOptions::default()), Ok(None));
    assert_eq!(planned(files, &asked(RunnerType::Generate, Conversion::Embed)), Ok(None));
    for options in [asked(RunnerType::Pooling, Conversion::Auto), asked(RunnerType::Auto, Conversion::Embed)] {
        let plan = planned(files, &options).expect("a plan").expect("it pools");
        assert_eq!((plan.head, plan.spec.task), (NetworkHead::Hidden, PoolingTask::Embed));
        assert_eq!((plan.spec.method, plan.spec.normalize), (PoolingMethod::Last, true));
    }
    let refusal = planned(files, &asked(RunnerType::Pooling, Conversion::Classify)).unwrap_err();
    assert!(refusal.contains("LlamaForCausalLM"), "{refusal}");
}

#[test]
fn files_of_sentence_transformers_are_honoured() {
    let pooling = |mode: &str| format!("{{\"pooling_mode_{mode}\": true, \"pooling_mode_cls_token\": false}}");
    let settings = r#"{"prompts": {"query": "Find: ", "document": ""}, "default_prompt_name": "query"}"#;
    let read = |mode: &str, settings: &str| {
        let files = [
            ("config.json", LLAMA),
            ("modules.json", MODULES),
            ("1_Pooling/config.json", &pooling(mode)),
            ("config_sentence_transformers.json", settings),
            ("sentence_bert_config.json", r#"{"max_seq_length": 40}"#),
        ];
        planned(&files, &PoolingOptions::default())
    };
    let spec = read("mean_tokens", settings).expect("a plan").expect("it pools").spec;
    assert_eq!((spec.method, spec.normalize, spec.max_len), (PoolingMethod::Mean, false, Some(40)));
    assert_eq!((spec.prompts["query"].as_str(), spec.default_prompt.as_deref()), ("Find: ", Some("query")));
    let refusal = read("max_tokens", settings).unwrap_err();
    assert!(refusal.contains("pooling_mode_max_tokens"), "{refusal}");
    let refusal = read("lasttoken", r#"{"default_prompt_name": "query"}"#).unwrap_err();
    assert!(refusal.contains("default_prompt_name"), "{refusal}");
}

#[test]
fn modules_that_are_not_run_are_refused() {
    let modules = MODULES.replace("Pooling", "LayerNorm");
    let refusal =
        planned(&[("config.json", LLAMA), ("modules.json", &modules)], &PoolingOptions::default()).unwrap_err();
    assert!(refusal.contains("LayerNorm") && refusal.contains("modules.json"), "{refusal}");
}

#[test]
fn the_users_word_counts() {
    let pooler: PoolerConfig = r#"{"pooling_type": "mean", "normalize": false, "step_tag_id": 3}"#.parse().unwrap();
    let options = PoolingOptions { pooler, ..asked(RunnerType::Pooling, Conversion::Auto) };
    let spec = planned(&[("config.json", LLAMA)], &options).expect("a plan").expect("it pools").spec;
    assert_eq!((spec.method, spec.normalize, spec.step_token), (PoolingMethod::Mean, false, Some(3)));
    for (text, named) in [("[]", "object"), (r#"{"x": 1}"#, "x is not"), (r#"{"pooling_type": "MAX"}"#, "CLS")] {
        let refusal = text.parse::<PoolerConfig>().unwrap_err();
        assert!(refusal.contains(named), "{refusal}");
    }
}
