//! Adapters of experts as PEFT writes them for Mixtral: a server gives what the model gives that they were merged into.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, ensure};
use e2e_tests::{Client, Server, group_sizes, zoo};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::json;

use super::folder;

const RANK: usize = 8;
const ALPHA: usize = 16;
const BASE: &str = "mixtral";

/// Numbers of a matrix.
struct Matrix {
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl Matrix {
    /// Between plus and minus `size`, as the name says.
    fn drawn(name: &str, shape: [usize; 2], size: f32) -> Self {
        let mut state = name.bytes().fold(7_u64, |state, byte| state.wrapping_mul(31).wrapping_add(u64::from(byte)));
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            size * ((state >> 40) as f32 / (1 << 23) as f32 - 1.0)
        };
        Self { shape: shape.to_vec(), values: (0..shape[0] * shape[1]).map(|_| draw()).collect() }
    }

    /// Adds `factor b a`.
    fn merge(&mut self, a: &Self, b: &Self, factor: f32) {
        let inputs = self.shape[1];
        for (row, values) in self.values.chunks_mut(inputs).enumerate() {
            for (column, value) in values.iter_mut().enumerate() {
                let products = (0..RANK).map(|rank| b.values[row * RANK + rank] * a.values[rank * inputs + column]);
                *value += factor * products.sum::<f32>();
            }
        }
    }
}

fn write(path: &Path, matrices: &BTreeMap<String, Matrix>) -> anyhow::Result<()> {
    let bytes = |matrix: &Matrix| -> Vec<u8> { matrix.values.iter().flat_map(|x| x.to_le_bytes()).collect() };
    let bytes: BTreeMap<&String, Vec<u8>> = matrices.iter().map(|(name, matrix)| (name, bytes(matrix))).collect();
    let views: Result<Vec<_>, _> = (matrices.iter())
        .map(|(name, matrix)| Ok((name, TensorView::new(Dtype::F32, matrix.shape.clone(), &bytes[name])?)))
        .collect::<Result<_, safetensors::SafeTensorError>>();
    fs::write(path, safetensors::serialize(views?, None)?).with_context(|| path.display().to_string())
}

fn read(path: &Path) -> anyhow::Result<BTreeMap<String, Matrix>> {
    let bytes = fs::read(path)?;
    let tensors = SafeTensors::deserialize(&bytes)?;
    let matrix = |view: &TensorView<'_>| {
        let values =
            view.data().chunks_exact(2).map(|bf16| f32::from_bits(u32::from_le_bytes([0, 0, bf16[0], bf16[1]])));
        Matrix { shape: view.shape().to_vec(), values: values.collect() }
    };
    Ok(tensors.iter().map(|(name, view)| (name.to_owned(), matrix(&view))).collect())
}

/// Writes an adapter of every expert of the base, and the model that it is merged into.
fn make(base: &Path, adapter: &Path, merged: &Path) -> anyhow::Result<()> {
    let mut model = read(&base.join("model.safetensors"))?;
    let mut deltas = BTreeMap::new();
    for (name, weight) in model.iter_mut().filter(|(name, _)| name.contains(".experts.")) {
        let module = name.strip_suffix(".weight").context("a matrix")?;
        let [a, b] = ["lora_A", "lora_B"].map(|part| format!("base_model.model.{module}.{part}.weight"));
        let (down, up) =
            (Matrix::drawn(&a, [RANK, weight.shape[1]], 0.3), Matrix::drawn(&b, [weight.shape[0], RANK], 0.3));
        weight.merge(&down, &up, ALPHA as f32 / RANK as f32);
        deltas.extend([(a, down), (b, up)]);
    }
    write(&adapter.join("adapter_model.safetensors"), &deltas)?;
    let config = json!({"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": ["w1", "w2", "w3"]});
    fs::write(adapter.join("adapter_config.json"), config.to_string())?;
    write(&merged.join("model.safetensors"), &model)?;
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(base.join(file), merged.join(file)).with_context(|| file.to_owned())?;
    }
    Ok(())
}

/// What a model gives for each prompt of the base's reference.
async fn tokens(client: &Client, model: &str) -> anyhow::Result<Vec<Vec<u32>>> {
    let mut all = Vec::new();
    for case in zoo::cases(BASE).context("a reference")? {
        all.push(client.greedy(model, &case.prompt, case.greedy.len()).await?);
    }
    Ok(all)
}

#[tokio::test]
async fn adapters_of_experts_are_the_merged_model() -> anyhow::Result<()> {
    let Some(base) = folder(BASE) else { return Ok(()) };
    let [adapter, merged] = [tempfile::tempdir()?, tempfile::tempdir()?];
    make(&base, adapter.path(), merged.path())?;
    let path = |path: &Path| path.display().to_string();
    let same = ["--dtype", "float32", "--served-model-name", "base"];
    let server = Server::start(&[&[&*path(merged.path())], &same[..]].concat()).await?;
    let want = tokens(&server.client(), "base").await?;
    drop(server);
    for ranks in group_sizes().take(2) {
        let (ranks, module) = (ranks.to_string(), format!("guest={}", path(adapter.path())));
        let flags = ["--enable-lora", "--lora-modules", &module, "--tensor-parallel-size", &ranks];
        let server = Server::start(&[&[&*path(&base)], &same[..], &flags[..]].concat()).await?;
        let client = server.client();
        let (guest, own) = tokio::try_join!(tokens(&client, "guest"), tokens(&client, "base"))?;
        ensure!(guest == want, "{ranks} ranks: {guest:?}, merged: {want:?}");
        let recorded: Vec<Vec<u32>> =
            zoo::cases(BASE).context("a reference")?.into_iter().map(|case| case.greedy).collect();
        ensure!(own == recorded && own != guest, "{ranks} ranks: the base gives {own:?}");
    }
    Ok(())
}
