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
    for (mode, method) in [
        ("max_tokens", PoolingMethod::Max),
        ("mean_sqrt_len_tokens", PoolingMethod::MeanSqrtLen),
        ("weightedmean_tokens", PoolingMethod::WeightedMean),
        ("lasttoken", PoolingMethod::Last),
    ] {
        assert_eq!(read(mode, settings).expect("a plan").expect("it pools").spec.method, method, "{mode}");
    }
    let refusal = read("max_tokens\": true, \"pooling_mode_mean_tokens", settings).unwrap_err();
    assert!(refusal.contains("pooling_mode_mean_tokens") && refusal.contains("side by side"), "{refusal}");
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

/// Files of a model whose pooled output goes through a linear layer.
fn dense<'a>(modules: &'a str, settings: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![
        ("config.json", LLAMA),
        ("modules.json", modules),
        ("1_Pooling/config.json", r#"{"pooling_mode": "mean"}"#),
        ("2_Dense/config.json", settings),
        ("config_sentence_transformers.json", r#"{"query_prefix": "[Q] ", "prompts": {"document": "d "}}"#),
    ]
}

const DENSE: &str = r#"[{"type": "a.Transformer"}, {"type": "a.Pooling", "path": "1_Pooling"},
    {"type": "a.Dense", "path": "2_Dense"}, {"type": "a.Normalize", "path": "3_Normalize"}]"#;
const LINEAR: &str = r#"{"in_features": 32, "out_features": 5, "activation_function": "torch.nn.ReLU"}"#;

#[test]
fn dense_modules_make_embeddings_of_another_width() {
    let plan = planned(&dense(DENSE, LINEAR), &PoolingOptions::default()).expect("a plan").expect("it pools");
    assert_eq!((plan.head, plan.spec.task, plan.spec.normalize), (NetworkHead::Projected, PoolingTask::Embed, true));
    assert!(!plan.spec.prompts.contains_key("query"), "a prefix is PyLate's");
    let read = projections(folder(&dense(DENSE, LINEAR)).path()).expect("a linear layer");
    let file = Some("2_Dense/pytorch_model.bin".to_owned());
    let activation = Some(model_spec::HeadActivation::Of(model_spec::Activation::Relu));
    assert_eq!(read, [ProjectionSpec { file, inputs: 32, outputs: 5, bias: true, activation }]);
    let refusal = |modules: &str, settings: &str| {
        planned(&dense(modules, settings), &PoolingOptions::default()).expect_err(settings)
    };
    assert!(refusal(DENSE, r#"{"in_features": 32, "out_features": 5, "activation_function": "x.Y"}"#).contains("Tanh"));
    assert!(refusal(DENSE, r#"{"in_features": 32}"#).contains("out_features"));
    let first = DENSE.replace("a.Transformer\"}", "a.Transformer\"}, {\"type\": \"a.Normalize\"}");
    assert!(refusal(&first, LINEAR).contains("Normalize after Pooling"));
}

#[test]
fn a_linear_layer_without_pooling_embeds_tokens() {
    let modules = DENSE.replace("{\"type\": \"a.Pooling\", \"path\": \"1_Pooling\"},", "");
    let plan = planned(&dense(&modules, LINEAR), &PoolingOptions::default()).expect("a plan").expect("it pools");
    assert_eq!((plan.head, plan.spec.task), (NetworkHead::Projected, PoolingTask::TokenEmbed));
    assert_eq!((plan.spec.method, plan.spec.normalize), (PoolingMethod::Each, true));
    assert_eq!((plan.spec.prompts["query"].as_str(), plan.spec.prompts["document"].as_str()), ("[Q] ", "d "));
}

#[test]
fn tokens_that_score_are_named_by_the_model() {
    let config =
        |more: &str| LLAMA.replace("LlamaForCausalLM\"]", &format!("LlamaForSequenceClassification\"], {more}"));
    let tokens = |more: &str| class_tokens(folder(&[("config.json", &config(more))]).path()).map_err(|e| e.to_string());
    let two = r#""classifier_from_token": ["no", "yes"], "is_original_qwen3_reranker": true"#;
    let text = |text: &str| ClassToken::Text(text.to_owned());
    assert_eq!(tokens(two), Ok(Some(vec![text("no"), text("yes")])));
    let one = r#""classifier_from_token": ["Yes"], "method": "no_post_processing""#;
    assert_eq!(tokens(one), Ok(Some(vec![text("Yes")])));
    assert!(tokens(&one.replace("no_post_processing", "from_2_way_softmax")).unwrap_err().contains("two tokens"));
    let plan = |ids: &[u32]| {
        let pooler =
            PoolerConfig { tokens: Some(ids.iter().map(|id| ClassToken::Id(*id)).collect()), ..Default::default() };
        let options = PoolingOptions { pooler, ..PoolingOptions::default() };
        planned(&[("config.json", &config(two))], &options).expect("a plan").expect("it pools")
    };
    let by_two = plan(&[7, 9]);
    assert_eq!((by_two.head, by_two.spec.score_class), (NetworkHead::Tokens(ScoreTokens::Two([7, 9])), Some(1)));
    assert_eq!(by_two.spec.activation, ScoreActivation::Softmax);
    let by_one = plan(&[9]);
    assert_eq!((by_one.head, by_one.spec.score_class), (NetworkHead::Tokens(ScoreTokens::One(9)), Some(0)));
    assert_eq!(by_one.spec.activation, ScoreActivation::Sigmoid);
}

#[test]
fn a_decoder_that_sees_both_ways_embeds() {
    let config = LLAMA.replace("{\"arch", "{\"is_causal\": false, \"arch");
    let plan = planned(&[("config.json", &config)], &PoolingOptions::default()).expect("a plan").expect("it pools");
    assert_eq!((plan.spec.task, plan.spec.whole_prompts), (PoolingTask::Embed, true));
    let refusal = planned(&[("config.json", &config)], &asked(RunnerType::Generate, Conversion::Auto)).unwrap_err();
    assert!(refusal.contains("LlamaForCausalLM"), "{refusal}");
}

#[test]
fn masked_heads_give_sparse_vectors() {
    let config = |class: &str| {
        format!(
            r#"{{"architectures": ["{class}"], "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
            "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64}}"#
        )
    };
    let splade = config("BertForMaskedLM");
    let plan = planned(&[("config.json", &splade)], &PoolingOptions::default()).expect("a plan").expect("it pools");
    assert_eq!((plan.head, plan.spec.task), (NetworkHead::Stored, PoolingTask::Embed));
    assert_eq!((plan.spec.method, plan.spec.normalize), (PoolingMethod::SparseMax, false));
    let modules = r#"[{"type": "sentence_transformers.sparse_encoder.models.MLMTransformer", "path": ""},
        {"type": "sentence_transformers.sparse_encoder.models.SpladePooling", "path": "1_SpladePooling"}]"#;
    let with = |config: &str, settings: &str| {
        let files = [("config.json", config), ("modules.json", modules), ("1_SpladePooling/config.json", settings)];
        planned(&files, &PoolingOptions::default())
    };
    let summed = with(&splade, r#"{"pooling_strategy": "sum", "activation_function": "relu"}"#);
    assert_eq!(summed.expect("a plan").expect("it pools").spec.method, PoolingMethod::SparseSum);
    let refusal = with(&splade, r#"{"activation_function": "log1p_relu"}"#).unwrap_err();
    assert!(refusal.contains("expected relu"), "{refusal}");
    let refusal = with(&config("BertModel"), "{}").unwrap_err();
    assert!(refusal.contains("masked-language head"), "{refusal}");
    let mean = PoolingOptions { pooler: "{\"pooling_type\": \"MEAN\"}".parse().expect("JSON"), ..Default::default() };
    assert!(planned(&[("config.json", &splade)], &mean).is_err());
    let classify = asked(RunnerType::Auto, Conversion::Classify);
    assert!(planned(&[("config.json", &splade)], &classify).is_err());
}
