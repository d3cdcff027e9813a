//! The part of `docs/models.md` about classes that pool: what each gives, and what that is checked against.

use std::fmt::Write;

use serde_json::Value;

use crate::folders;

const HEAD: &str = "
## Pooling

These classes pool prompts instead of continuing them ([pooling.md](pooling.md)); so does every class above with
`--convert embed`. A folder is a reference model, whose outputs they give in float32 and bfloat16, alone and beside
others. *numpy* means a small model whose outputs `crates/models/tests/zoo/encoders.py` computes. *Layers as* means that
the class has the layers of another with another head, and no check of its own.

| class | gives | checked on |
|---|---|---|
";

/// Reference models that pool.
const FOLDERS: [&str; 11] = [
    "bert-embed",
    "bert-embed-cls",
    "bert-rerank",
    "e5-mistral-embed",
    "modernbert-embed",
    "modernbert-rerank",
    "qwen2-classify",
    "qwen2-process-reward",
    "qwen2-reward",
    "roberta-embed",
    "xlm-roberta-rerank",
];

/// It; absent where the reference models are only a selection.
pub(crate) fn render() -> Option<String> {
    let folders: Vec<(&str, String)> =
        FOLDERS.iter().map(|folder| Some((*folder, class_of(folder)?))).collect::<Option<_>>()?;
    let made: Value = serde_json::from_str(include_str!("encoders.json")).expect("JSON");
    let by_numpy = |class: &str| {
        made["cases"]
            .as_array()
            .is_some_and(|cases| cases.iter().any(|case| case["config"]["architectures"][0] == class))
    };
    let mut text = HEAD.to_owned();
    for class in models::pooled() {
        let mine: Vec<String> =
            folders.iter().filter(|(_, of)| of == class).map(|(folder, _)| format!("`{folder}`")).collect();
        let checked = match (mine.is_empty(), by_numpy(class)) {
            (false, _) => mine.join(", "),
            (true, true) => "numpy".to_owned(),
            (true, false) => format!("layers as `{}`", relative(class)),
        };
        writeln!(text, "| `{class}` | {} | {checked} |", gives(class)).expect("memory");
    }
    Some(text)
}

fn class_of(folder: &str) -> Option<String> {
    let dir = folders::zoo(folder)?;
    Some(models::read_spec(&dir).unwrap_or_else(|error| panic!("{folder}: {error}")).architecture)
}

fn gives(class: &str) -> &'static str {
    match class {
        "BertForMaskedLM" | "BertSpladeSparseEmbeddingModel" | "DistilBertForMaskedLM" => "sparse vectors (SPLADE)",
        "BgeM3EmbeddingModel" => "vectors; a vector and a weight a token",
        _ if class.contains("ColBERT") => "a vector a token",
        _ if class.contains("RewardModel") => "scores of tokens",
        _ if class.ends_with("ForSequenceClassification") => "class scores",
        _ => "vectors",
    }
}

/// The class whose layers it has.
fn relative(class: &str) -> String {
    match class {
        "ColBERTModel" => return "HF_ColBERT".to_owned(),
        "ColBERTModernBertModel" => return "ModernBertModel".to_owned(),
        "BertSpladeSparseEmbeddingModel" => return "BertForMaskedLM".to_owned(),
        "CamembertModel" | "RobertaForMaskedLM" | "RobertaForSequenceClassification" | "RobertaModel" => {
            return "XLMRobertaModel".to_owned();
        }
        "JinaBertModel" => return "JinaBertForMaskedLM".to_owned(),
        "MPNetModel" => return "MPNetForMaskedLM".to_owned(),
        "Gemma3TextModel" => return "Gemma3ForCausalLM".to_owned(),
        _ => {}
    }
    let family = ["ForSequenceClassification", "ForMaskedLM", "Model"].iter().find_map(|end| class.strip_suffix(end));
    let family = family.unwrap_or_else(|| panic!("{class}: say whose layers it has"));
    let causal = format!("{family}ForCausalLM");
    if models::supported().any(|served| served == causal) {
        return causal;
    }
    format!("{}Model", family.replace("GteNew", "New"))
}
