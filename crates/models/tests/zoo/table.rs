//! `docs/models.md`: every class that can be served, what it is made of and how it is checked. `cargo xtask models` writes it.

use std::collections::BTreeSet;
use std::fmt::Write;

use kernels::ops::DType;
use model_spec::{
    AttentionSpec, FeedForwardSpec, LayerSpec, MixerSpec, ModelKind, ModelSpec, Position, QkNorm, Residual,
};

use crate::relabelled::RELABELLED;
use crate::{Checked, checked, folders};

/// Set by `cargo xtask models`: the file is written instead of compared.
const WRITE: &str = "QUIRE_WRITE_MODELS";

#[test]
fn is_fresh() {
    let Some(text) = render() else { return };
    let file = folders::repository().join("docs/models.md");
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&file, text).expect("docs/models.md");
        return;
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(found == text, "docs/models.md is stale: run `cargo xtask models`");
}

const HEAD: &str = "\
# Models

Written by `cargo xtask models` from the table of architectures (`crates/models/src/arch/mod.rs`) and the table of checks
(`crates/models/tests/zoo/main.rs`); do not edit. How to add one: [adding-a-model.md](adding-a-model.md).

A model is served when the first of `architectures` in its `config.json` is one of these classes. Weights may be safetensors, sharded or
not, `pytorch_model.bin`, or GGUF where the family has it.

*Checked on* names a reference model: greedy tokens as recorded and logits within its tolerance in float32, close to them in the 16-bit
types named; alone and batched, in chunks, over scattered blocks, with the same bits; and split over as many ranks as *tensor parallel*
says. Other sizes work where they divide the heads and the inner width; what does not divide is refused. *Under the names of* means that
the class is another's arithmetic under its own names: the other's reference model, rewritten in these names, gives the other's outputs.

Prefixes are shared in the cache for every model made of attention alone. Quantised weights are read from GGUF, and MXFP4
experts as gpt-oss has them; other quantised checkpoints, and LoRA adapters, are refused.

| class | made of | tensor parallel | checked on |
|---|---|---|---|
";

/// The whole file; absent where the reference models are only a selection.
fn render() -> Option<String> {
    let all = checked();
    let mut rows = Vec::new();
    for row in &all {
        let dir = folders::zoo(row.folder)?;
        let spec = models::read_spec(&dir).unwrap_or_else(|error| panic!("{}: {error}", row.folder));
        rows.push((spec, row));
    }
    let mut text = HEAD.to_owned();
    for class in models::supported() {
        let mine: Vec<&(ModelSpec, &Checked)> = rows.iter().filter(|(spec, _)| spec.architecture == class).collect();
        let line = match (mine.as_slice(), RELABELLED.iter().find(|(name, _)| *name == class)) {
            ([], Some((_, other))) => relabelled(class, other, &rows),
            ([], None) if class == "EchoForCausalLM" => format!("| `{class}` | nothing: repeats the prompt | any | |"),
            ([], None) => panic!("{class} is checked on nothing"),
            (mine, _) => line(class, mine),
        };
        writeln!(text, "{line}").expect("memory");
    }
    Some(text)
}

fn relabelled(class: &str, folder: &str, rows: &[(ModelSpec, &Checked)]) -> String {
    let (spec, _) = rows.iter().find(|(_, row)| row.folder == folder).expect("a folder of the table");
    format!("| `{class}` | {} | as it | `{folder}`, under the names of `{}` |", made_of(&[spec]), spec.architecture)
}

fn line(class: &str, rows: &[&(ModelSpec, &Checked)]) -> String {
    let specs: Vec<&ModelSpec> = rows.iter().map(|(spec, _)| spec).collect();
    let ranks: BTreeSet<usize> = rows.iter().flat_map(|(_, row)| row.ranks.clone()).collect();
    let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
    let ranks = if ranks.is_empty() { "refusal only".to_owned() } else { ranks.join(", ") };
    let mut folders: Vec<String> =
        rows.iter().map(|(_, row)| format!("`{}` ({})", row.folder, types(&row.low))).collect();
    folders.dedup();
    format!("| `{class}` | {} | {ranks} | {} |", made_of(&specs), folders.join(", "))
}

fn types(low: &[DType]) -> String {
    let name = |dtype: &DType| match dtype {
        DType::F32 => "f32",
        DType::Bf16 => "bf16",
        DType::F16 => "f16",
    };
    low.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// What any of these models has.
fn made_of(specs: &[&ModelSpec]) -> String {
    let features: BTreeSet<&str> = specs.iter().flat_map(|spec| features(spec)).collect();
    features.into_iter().collect::<Vec<_>>().join(", ")
}

fn features(spec: &ModelSpec) -> Vec<&'static str> {
    assert_eq!(spec.kind, ModelKind::Decoder, "{}", spec.architecture);
    let mut found: Vec<&str> = spec.layers.iter().flat_map(of_layer).collect();
    found.extend(spec.embedding.positions.map(|_| "learned positions"));
    found.extend((spec.embedding.width != spec.hidden_size).then_some("projected embeddings"));
    found.extend(spec.embedding.norm.map(|_| "normed embeddings"));
    found.extend(spec.head.tied.then_some("tied head"));
    found.extend(spec.head.soft_cap.map(|_| "soft caps"));
    found
}

fn of_layer(layer: &LayerSpec) -> Vec<&'static str> {
    let mut found = match layer.mixer.clone().attention_mut() {
        Some(attention) => of_attention(attention),
        None if matches!(layer.mixer, MixerSpec::Latent(_)) => vec!["latent attention"],
        None => vec!["recurrent state"],
    };
    found.extend(match layer.residual {
        Residual::Sequential => None,
        Residual::Parallel => Some("parallel residual"),
        Residual::Normed => Some("norms after the adds"),
    });
    let dense = matches!(layer.feed_forward, FeedForwardSpec::Dense(_) | FeedForwardSpec::None);
    found.extend((!dense).then_some("mixture of experts"));
    found
}

fn of_attention(attention: &AttentionSpec) -> Vec<&'static str> {
    let mut found = vec![match attention.kv_heads {
        heads if heads == attention.heads => "multi-head",
        1 => "multi-query",
        _ => "grouped-query",
    }];
    found.extend(match &attention.position {
        Position::Rope(rope) if rope.rotary_dim < attention.head_dim => Some("partial rotary"),
        Position::Rope(_) => Some("rotary"),
        Position::Alibi(_) => Some("ALiBi"),
        Position::None => None,
    });
    found.extend(attention.window.map(|_| "sliding window"));
    found.extend(attention.soft_cap.map(|_| "soft caps"));
    found.extend(attention.sinks.then_some("sinks"));
    found.extend(attention.clip.map(|_| "clipped projections"));
    found.extend(attention.qk_norm.map(|norm| match norm {
        QkNorm::PerHead(_) | QkNorm::EachHead(_) => "q/k norm by head",
        QkNorm::Whole(_) => "q/k norm",
    }));
    found
}
