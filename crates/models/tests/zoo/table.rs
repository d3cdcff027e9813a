//! `docs/models.md`: every class that can be served, what it is made of and how it is checked. `cargo xtask models`
//! writes it.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;

use kernels::ops::DType;
use model_spec::{
    AttentionSpec, FeedForwardSpec, GgufFamily, LayerSpec, MixerSpec, ModelSpec, Position, QkNorm, Residual,
};
use serde_json::Value;

use crate::relabelled::RELABELLED;
use crate::{Checked, checked, folders, pooled_table};

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

Written by `cargo xtask models` from the table of architectures (`crates/models/src/arch/mod.rs`), the table of checks
(`crates/models/tests/zoo/main.rs`) and the reference models; do not edit. How to add one:
[adding-a-model.md](adding-a-model.md).

A model is served when the first of `architectures` in its `config.json` is one of these classes, or of those that pool
(below). Weights may be safetensors, sharded or not, `pytorch_model.bin`, or GGUF where the family has it.

*Checked on* names a reference model: greedy tokens as recorded and logits within its tolerance in float32, close to
them in the 16-bit types named; alone and batched, in chunks, over scattered blocks, with the same bits; and split over
as many ranks as *tensor parallel* says. Other sizes work where they divide the heads and the inner width; what does not
divide is refused. *Under the names of* means that the class is another's arithmetic under its own names: the other's
reference model, rewritten in these names, gives the other's outputs.

Through `quire serve` (`tests/e2e/folders.rs`) the same models give the recorded tokens and log-probabilities: in
float32 with prompts in chunks, one by one and all at once, each cold and from the prefix cache; over two workers, or
refused with the size that does not divide; and in bfloat16 within its bounds. With `QUIRE_TEST_DEVICE=cuda` all of that
runs on a GPU, and passed on an NVIDIA H200 on 2026-11-21, but for `llama-gguf-q5_k`, `llama-gguf-q8_0`, `olmo3`,
`spec-draft` and `spec-target`, which were run over two workers alone. Over two workers, on a GPU each
(`QUIRE_TEST_GPUS=2`), all of them passed on two H200 on 2026-11-21: 55 gave what is recorded and 18 were rightly
refused. Below HTTP (`crates/models/tests/zoo`) all reference models, those that were made for this repository among
them, passed on an NVIDIA H100 on 2026-11-26 (61862b9e).

*Made for this repository* marks references that are not part of the collection.

*Prefix cache* says whether the KV blocks of equal prompt beginnings are shared. *Quantised* names the stored types that
are checked, and GGUF where the family can be read from it without a reference to check it on. AWQ, FP8 (`fp8`;
`compressed-tensors` with float weights of 8 bits), MXFP4 and GGUF are formats of weights, not of classes: every class
takes them; what is not named here is only not checked. Other quantised checkpoints are refused by name. LoRA adapters
are served over every class but `EchoForCausalLM` ([lora.md](lora.md)).

| class | made of | tensor parallel | prefix cache | quantised | checked on |
|---|---|---|---|---|---|
";

/// The whole file; absent where the reference models are only a selection.
fn render() -> Option<String> {
    let rows = checked().into_iter().map(Row::read).collect::<Option<Vec<Row>>>()?;
    let mut text = HEAD.to_owned();
    for class in models::supported() {
        let mine: Vec<&Row> = rows.iter().filter(|row| row.spec.architecture == class).collect();
        let line = match (mine.as_slice(), RELABELLED.iter().find(|(name, _)| *name == class)) {
            ([], Some((_, other))) => {
                let other = rows.iter().find(|row| row.checked.folder == *other).expect("a folder of the table");
                relabelled(class, other)
            }
            ([], None) if class == "EchoForCausalLM" => {
                format!("| `{class}` | nothing: repeats the prompt | any | yes | no | |")
            }
            ([], None) => panic!("{class} is checked on nothing"),
            (mine, _) => line(class, mine),
        };
        writeln!(text, "{line}").expect("memory");
    }
    text.push_str(&pooled_table::render()?);
    Some(text)
}

/// A reference model of the table of checks.
struct Row {
    spec: ModelSpec,
    checked: Checked,
    dir: PathBuf,
    /// How its weights are stored, where they are quantised.
    quantization: Option<String>,
}

impl Row {
    fn read(checked: Checked) -> Option<Self> {
        let dir = folders::zoo(checked.folder)?;
        let spec = models::read_spec(&dir).unwrap_or_else(|error| panic!("{}: {error}", checked.folder));
        let reference = std::fs::read(dir.join("reference.json")).expect("reference.json");
        let reference: Value = serde_json::from_slice(&reference).expect("JSON");
        // GGUF's F16 is stored as it is.
        let stored = reference["quantization"].as_str().filter(|stored| !stored.ends_with("F16"));
        Some(Self { spec, checked, dir, quantization: stored.map(str::to_owned) })
    }

    fn is_made_here(&self) -> bool {
        self.dir.starts_with(folders::repository().join("tests/fixtures/made"))
    }
}

fn relabelled(class: &str, other: &Row) -> String {
    let (folder, original) = (other.checked.folder, &other.spec.architecture);
    let (made_of, cache) = (made_of(&[other]), prefix_cache(&[other]));
    let (quantised, on) = (quantised(class, &[]), format!("`{folder}`, under the names of `{original}`"));
    format!("| `{class}` | {made_of} | as it | {cache} | {quantised} | {on} |")
}

fn line(class: &str, rows: &[&Row]) -> String {
    let ranks: BTreeSet<usize> = rows.iter().flat_map(|row| row.checked.ranks.clone()).collect();
    let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
    let ranks = if ranks.is_empty() { "refusal only".to_owned() } else { ranks.join(", ") };
    let mut folders: Vec<String> = rows.iter().map(|row| folder(row)).collect();
    folders.dedup();
    let (made_of, cache, quantised) = (made_of(rows), prefix_cache(rows), quantised(class, rows));
    format!("| `{class}` | {made_of} | {ranks} | {cache} | {quantised} | {} |", folders.join(", "))
}

fn folder(row: &Row) -> String {
    let made = if row.is_made_here() { "; made for this repository" } else { "" };
    format!("`{}` ({}{made})", row.checked.folder, types(&row.checked.low))
}

/// Stored types that are checked, and whether GGUF files of the family can be read at all.
fn quantised(class: &str, rows: &[&Row]) -> String {
    let checked: BTreeSet<String> = rows.iter().filter_map(|row| row.quantization.clone()).collect();
    let mut found: Vec<String> = checked.into_iter().collect();
    if found.is_empty()
        && GgufFamily::all().iter().any(|family| family.class == class || family.with_experts == Some(class))
    {
        found.push("gguf, not checked".to_owned());
    }
    if found.is_empty() { "no".to_owned() } else { found.join(", ") }
}

fn prefix_cache(rows: &[&Row]) -> &'static str {
    let recurrent = |layer: &LayerSpec| !matches!(layer.mixer, MixerSpec::Attention(_) | MixerSpec::Latent(_));
    if rows.iter().any(|row| row.spec.layers.iter().any(recurrent)) { "no: recurrent state" } else { "yes" }
}

fn types(low: &[DType]) -> String {
    low.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", ")
}

/// What any of these models has.
fn made_of(rows: &[&Row]) -> String {
    let features: BTreeSet<&str> = rows.iter().flat_map(|row| features(&row.spec)).collect();
    features.into_iter().collect::<Vec<_>>().join(", ")
}

fn features(spec: &ModelSpec) -> Vec<&'static str> {
    let mut found: Vec<&str> = spec.layers.iter().flat_map(of_layer).collect();
    found.extend(spec.embedding.positions.map(|_| "learned positions"));
    found.extend((spec.embedding.width != spec.hidden_size).then_some("projected embeddings"));
    found.extend(spec.embedding.norm.map(|_| "normed embeddings"));
    let head = spec.head.logits().expect("a head that gives logits");
    found.extend(head.tied.then_some("tied head"));
    found.extend(head.soft_cap.map(|_| "soft caps"));
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
        Position::Relative(_) => Some("relative biases"),
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
