//! Experts, which run under one handle.

use super::*;

pub(super) const MIXTURE: &str = r#"{"architectures": ["MixtralForCausalLM"], "vocab_size": 33, "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "num_local_experts": 3, "num_experts_per_tok": 2, "eos_token_id": 2, "torch_dtype": "float32"}"#;

/// A checkpoint whose experts have weights that 16 bits hold, stored as these types.
pub(super) fn checkpoint(dtypes: [Dtype; 3]) -> tempfile::TempDir {
    let (dir, mut all) = (folder(MIXTURE), tensors());
    all.retain(|(name, _)| !name.contains(".mlp."));
    for layer in 0..2 {
        let mut add = |name: &str, shape: [usize; 2], dtype: Dtype| {
            let value = |i: usize| ((i * 7919 + name.len() * 31 + layer) % 64) as f32 / 64.0 - 0.5;
            let short = |i: usize| (value(i).to_bits() >> 16) as u16;
            let count = shape[0] * shape[1];
            let bytes = match dtype {
                Dtype::BF16 => (0..count).flat_map(|i| short(i).to_le_bytes()).collect(),
                _ => (0..count).flat_map(|i| value(i).to_le_bytes()).collect(),
            };
            let name = format!("model.layers.{layer}.block_sparse_moe.{name}.weight");
            all.push((name, Tensor { shape: shape.to_vec(), dtype, bytes }));
        };
        add("gate", [3, 32], Dtype::F32);
        for (expert, dtype) in dtypes.into_iter().enumerate() {
            add(&format!("experts.{expert}.w1"), [48, 32], dtype);
            add(&format!("experts.{expert}.w2"), [32, 48], dtype);
            add(&format!("experts.{expert}.w3"), [48, 32], dtype);
        }
    }
    write(dir.path(), "model.safetensors", &all);
    dir
}

#[test]
fn experts_may_be_stored_as_different_types() {
    let run = |dtypes| {
        let options = options(LoadFormat::Auto, (0, 1));
        logits(&mut load(checkpoint(dtypes).path(), &options).expect("loads").0, &mut Solo)
    };
    let (wide, short) = (run([Dtype::F32; 3]), run([Dtype::BF16; 3]));
    assert_eq!(run([Dtype::F32, Dtype::BF16, Dtype::BF16]), wide);
    assert_eq!(short.len(), wide.len());
}

/// As tools that quantise write them, who take the experts apart and name them as other families do.
#[test]
fn experts_of_mixtral_may_be_named_as_other_families_do() {
    let run = |dir: &tempfile::TempDir| {
        let options = options(LoadFormat::Auto, (0, 1));
        logits(&mut load(dir.path(), &options).expect("loads").0, &mut Solo)
    };
    let dir = checkpoint([Dtype::F32; 3]);
    let usual = run(&dir);
    let file = dir.path().join("model.safetensors");
    let bytes = std::fs::read(&file).expect("weights");
    let stored = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let renamed = stored.tensors().into_iter().map(|(name, tensor)| {
        let pieces = [(".w1.", ".gate_proj."), (".w2.", ".down_proj."), (".w3.", ".up_proj.")];
        (pieces.iter().fold(name, |name, (from, to)| name.replace(from, to)), tensor)
    });
    std::fs::write(&file, safetensors::serialize(renamed, None).expect("a file")).expect("written");
    assert_eq!(run(&dir), usual);
}
