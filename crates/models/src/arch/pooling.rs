//! Classes that pool prompts: encoders, and causal language models with something else in the place of their head.
//! Hidden states, or class scores.

use model_spec::{
    Activation, ClassesSpec, ConfigError, ConfigFile, DenseSpec, HeadActivation, HeadSpec, ProjectionSpec, ScoredTokens,
};

use super::{
    Architecture, Blueprint, Folder, bert, bge_m3, distilbert, gemma, gte, jina_bert, llama, modernbert, mpnet,
    nomic_bert, phi3, splade, t5,
};
use crate::weights::{Names, ParamId};

/// Class names of `config.json`, sorted; what reads their layers; and what takes the place of a causal model's head.
const POOLING: &[(&str, Architecture, ReadHead)] = &[
    ("BertForMaskedLM", bert::bert, splade::bert),
    ("BertForSequenceClassification", bert::bert, bert_classes),
    ("BertModel", bert::bert, hidden),
    ("BertSpladeSparseEmbeddingModel", bert::bert, splade::bert),
    ("BgeM3EmbeddingModel", bert::roberta, bge_m3::head),
    ("CamembertModel", bert::roberta, hidden),
    ("ColBERTModel", bert::bert, late_interaction),
    ("ColBERTModernBertModel", modernbert::modernbert, late_interaction),
    ("DistilBertForMaskedLM", distilbert::distilbert, splade::distilbert),
    ("DistilBertForSequenceClassification", distilbert::distilbert, distilbert_classes),
    ("DistilBertModel", distilbert::distilbert, hidden),
    ("Gemma3TextModel", gemma::gemma3, hidden),
    ("GemmaForSequenceClassification", gemma::gemma, classes),
    ("GemmaModel", gemma::gemma, hidden),
    ("GteNewForSequenceClassification", gte::gte, bert_classes),
    ("GteNewModel", gte::gte, hidden),
    ("HF_ColBERT", bert::bert, late_interaction),
    ("JinaBertForMaskedLM", jina_bert::jina_bert, hidden),
    ("JinaBertForSequenceClassification", jina_bert::jina_bert, bert_classes),
    ("JinaBertModel", jina_bert::jina_bert, hidden),
    ("LlamaForSequenceClassification", llama::llama, classes),
    ("LlamaModel", llama::llama, hidden),
    ("MPNetForMaskedLM", mpnet::mpnet, hidden),
    ("MPNetForSequenceClassification", mpnet::mpnet, bert_classes),
    ("MPNetModel", mpnet::mpnet, hidden),
    ("MistralForSequenceClassification", llama::mistral, classes),
    ("MistralModel", llama::mistral, hidden),
    ("ModernBertForSequenceClassification", modernbert::modernbert, modernbert_classes),
    ("ModernBertModel", modernbert::modernbert, hidden),
    ("NewForSequenceClassification", gte::gte, bert_classes),
    ("NewModel", gte::gte, hidden),
    ("NomicBertModel", nomic_bert::nomic_bert, hidden),
    ("Phi3ForSequenceClassification", phi3::phi3, classes),
    ("Qwen2ForProcessRewardModel", llama::qwen2, rewards),
    ("Qwen2ForRewardModel", llama::qwen2, rewards),
    ("Qwen2ForSequenceClassification", llama::qwen2, classes),
    ("Qwen2Model", llama::qwen2, hidden),
    ("Qwen3ForSequenceClassification", llama::qwen3, classes),
    ("Qwen3Model", llama::qwen3, hidden),
    ("RobertaForMaskedLM", bert::roberta, hidden),
    ("RobertaForSequenceClassification", bert::roberta, bert_classes),
    ("RobertaModel", bert::roberta, hidden),
    ("T5EncoderModel", t5::t5_encoder, hidden),
    ("XLMRobertaForSequenceClassification", bert::roberta, bert_classes),
    ("XLMRobertaModel", bert::roberta, hidden),
];

pub(super) type ReadHead = fn(&Folder, Blueprint) -> Result<Blueprint, ConfigError>;

/// What reads the layers of `architecture`, and what takes the place of a head.
pub(super) fn find(architecture: &str) -> Option<(Architecture, ReadHead)> {
    let (_, layers, head) = POOLING.iter().find(|(class, ..)| *class == architecture)?;
    Some((*layers, *head))
}

/// Class names that pool prompts, sorted.
pub fn pooled() -> impl Iterator<Item = &'static str> {
    POOLING.iter().map(|(name, ..)| *name)
}

fn hidden(_: &Folder, mut blueprint: Blueprint) -> Result<Blueprint, ConfigError> {
    blueprint.spec.head = HeadSpec::Hidden;
    Ok(blueprint)
}

/// How many classes the file names; two where it names none, as in the library that writes such files.
fn count(config: &ConfigFile) -> Result<usize, ConfigError> {
    let labels = config.get("id2label").and_then(|labels| labels.as_object()).map(|labels| labels.len());
    match config.size_or("num_labels", labels.unwrap_or(2))? {
        0 => Err(config.unsupported("id2label", "expected at least one label")),
        count => Ok(count),
    }
}

/// `linear`, a matrix without bias, applied to each token (ColBERT). Its width stands in `config.json`, or in the file
/// that ColBERT's own library writes.
fn late_interaction(folder: &Folder, mut blueprint: Blueprint) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let usual = match config.file().parent() {
        Some(dir) => ConfigFile::read_optional(&dir.join("artifact.metadata"))?,
        None => None,
    };
    let width = match config.spelled(&["colbert_dim", "projection_dim", "dim"]) {
        Some(key) => config.size(key)?,
        None => usual.map_or(Ok(128), |metadata| metadata.size_or("dim", 128))?,
    };
    let (inputs, outputs) = (blueprint.spec.hidden_size, width);
    let linear = ProjectionSpec { file: None, inputs, outputs, bias: false, activation: None };
    blueprint.spec.head = HeadSpec::Projected(vec![linear]);
    Ok(blueprint)
}

/// `score`, a matrix without bias; one row a label, applied to the last token.
fn classes(folder: &Folder, Blueprint { mut spec, names }: Blueprint) -> Result<Blueprint, ConfigError> {
    if folder.config.get("classifier_from_token").is_some() {
        // Its classes are tokens of the causal head, which stays.
        return Ok(Blueprint { spec, names });
    }
    let count = count(&folder.config)?;
    let of = ScoredTokens::Last;
    spec.head = HeadSpec::Classes(ClassesSpec { count, bias: false, dense: None, of, tokens: None });
    Ok(Blueprint { spec, names: with_head(names, "score", "") })
}

/// `score`: two linear layers with a ReLU between them, applied to each token.
fn rewards(folder: &Folder, Blueprint { mut spec, names }: Blueprint) -> Result<Blueprint, ConfigError> {
    let dense = DenseSpec { activation: HeadActivation::Of(Activation::Relu), bias: true, norm: None };
    let usual = if spec.architecture.contains("Process") { 2 } else { 1 };
    let count = folder.config.size_or("num_labels", usual)?;
    let of = ScoredTokens::Each;
    spec.head = HeadSpec::Classes(ClassesSpec { count, bias: true, dense: Some(dense), of, tokens: None });
    Ok(Blueprint { spec, names: with_head(names, "score.2", "score.0") })
}

fn bert_classes(folder: &Folder, mut blueprint: Blueprint) -> Result<Blueprint, ConfigError> {
    blueprint.spec.head = HeadSpec::Classes(bert::classes(count(&folder.config)?));
    Ok(blueprint)
}

fn distilbert_classes(folder: &Folder, mut blueprint: Blueprint) -> Result<Blueprint, ConfigError> {
    blueprint.spec.head = HeadSpec::Classes(distilbert::classes(count(&folder.config)?));
    Ok(blueprint)
}

fn modernbert_classes(folder: &Folder, mut blueprint: Blueprint) -> Result<Blueprint, ConfigError> {
    blueprint.spec.head = HeadSpec::Classes(modernbert::classes(&folder.config, count(&folder.config)?)?);
    Ok(blueprint)
}

/// The same names, but for the head's.
fn with_head(names: Names, head: &'static str, dense: &'static str) -> Names {
    Box::new(move |id, kind| match id {
        ParamId::Head => format!("{head}.{}", kind.ending()).into(),
        ParamId::HeadDense => format!("{dense}.{}", kind.ending()).into(),
        other => names(other, kind),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_names_no_class_that_generates() {
        assert!(POOLING.is_sorted_by(|a, b| a.0 < b.0));
        for (class, ..) in POOLING {
            assert!(crate::supported().all(|served| served != *class), "{class}");
        }
    }
}
