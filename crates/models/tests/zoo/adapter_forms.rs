//! Forms of adapters that PEFT writes, made from an adapter of the zoo: each gives the bits of a plain one that says
//! the same, or is refused by name.

use std::collections::HashMap;
use std::path::Path;

use collectives::Solo;
use half::bf16;
use kernels::ops::DType;
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize};
use serde_json::{Value, json};

use crate::adapters::{ROOM, load, put, run};
use crate::checks::greedy_scripts;
use crate::engine::{Outcome, PLAIN, Setup};
use crate::{folders, reference};

const WHOLE: &str = "lora-llama-r8-all";

/// A tensor in float32.
#[derive(Clone)]
struct Tensor {
    shape: Vec<usize>,
    values: Vec<f32>,
}

/// An adapter that is being changed.
struct Form {
    config: Value,
    tensors: HashMap<String, Tensor>,
}

impl Form {
    fn read() -> Option<Self> {
        let dir = folders::zoo(WHOLE)?;
        let config = std::fs::read(dir.join("adapter_config.json")).expect("a configuration");
        let bytes = std::fs::read(dir.join("adapter_model.safetensors")).expect("weights");
        let found = SafeTensors::deserialize(&bytes).expect("tensors");
        let tensor = |(name, view): (String, TensorView<'_>)| {
            let (data, shape) = (view.data(), view.shape().to_vec());
            let values = match view.dtype() {
                Dtype::F32 => data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
                Dtype::BF16 => data.as_chunks().0.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f32()).collect(),
                other => panic!("{name} is of {other:?}"),
            };
            (name, Tensor { shape, values })
        };
        let config = serde_json::from_slice(&config).expect("JSON");
        Some(Self { config, tensors: found.tensors().into_iter().map(tensor).collect() })
    }

    fn write(&self, dir: &Path) {
        let bytes = |tensor: &Tensor| tensor.values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let stored: Vec<_> = self.tensors.iter().map(|(name, tensor)| (name, &tensor.shape, bytes(tensor))).collect();
        let view = |(name, shape, bytes): &'_ (&String, &Vec<usize>, Vec<u8>)| -> (String, Vec<usize>, Vec<u8>) {
            ((*name).clone(), (*shape).clone(), bytes.clone())
        };
        let owned: Vec<_> = stored.iter().map(view).collect();
        let views = owned.iter().map(|(name, shape, bytes)| {
            (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).expect("a tensor"))
        });
        std::fs::write(dir.join("adapter_model.safetensors"), serialize(views, None).expect("bytes")).expect("written");
        std::fs::write(dir.join("adapter_config.json"), self.config.to_string()).expect("written");
    }

    /// What a model gives with it.
    fn outcomes(&self) -> Vec<Outcome> {
        let dir = tempfile::tempdir().expect("a folder");
        self.write(dir.path());
        let mut runner = load(&folders::zoo("llama").expect("the base"), Setup::new(DType::F32), ROOM);
        put(&mut *runner, 0, dir.path());
        let scripts = greedy_scripts(&reference::read(&folders::zoo(WHOLE).expect("a reference")));
        run(&mut *runner, &mut Solo, &scripts, &vec![Some(0); scripts.len()], PLAIN)
    }

    fn refusal(&self) -> String {
        let dir = tempfile::tempdir().expect("a folder");
        self.write(dir.path());
        let runner = load(&folders::zoo("llama").expect("the base"), Setup::new(DType::F32), ROOM);
        runner.adapter_layout().expect("room").read(dir.path()).expect_err("a refusal").to_string()
    }

    /// Sets the numbers of some tensors to 0.
    fn clear(&mut self, which: impl Fn(&str) -> bool) {
        self.tensors.iter_mut().filter(|(name, _)| which(name)).for_each(|(_, tensor)| tensor.values.fill(0.0));
    }
}

#[test]
fn some_layers_alone_are_the_others_at_zero() {
    let [Some(mut some), Some(mut zeros)] = [Form::read(), Form::read()] else { return };
    some.config["layers_to_transform"] = json!([1]);
    some.config["layers_pattern"] = json!("layers");
    some.tensors.retain(|name, _| name.contains("layers.1."));
    zeros.clear(|name| name.contains("layers.0.") && name.contains("lora_B"));
    assert!(some.outcomes() == zeros.outcomes());
}

#[test]
fn a_pattern_of_ranks_is_the_rest_at_zero() {
    let [Some(mut less), Some(mut zeros)] = [Form::read(), Form::read()] else { return };
    let is_it = |name: &str| name.contains("layers.0.self_attn.q_proj");
    // The same scale: alpha / rank.
    less.config["rank_pattern"] = json!({"layers.0.self_attn.q_proj": 4});
    less.config["alpha_pattern"] = json!({"layers.0.self_attn.q_proj": 8});
    for (name, tensor) in less.tensors.iter_mut().filter(|(name, _)| is_it(name)) {
        let columns = tensor.shape[1];
        let kept = |(at, _): &(usize, &f32)| if name.contains("lora_A") { at / columns < 4 } else { at % columns < 4 };
        tensor.values = tensor.values.iter().enumerate().filter(kept).map(|(_, value)| *value).collect();
        let axis = usize::from(name.contains("lora_B"));
        tensor.shape[axis] = 4;
    }
    for (_, tensor) in zeros.tensors.iter_mut().filter(|(name, _)| is_it(name) && name.contains("lora_A")) {
        let columns = tensor.shape[1];
        tensor.values[4 * columns..].fill(0.0);
    }
    assert!(less.outcomes() == zeros.outcomes());
}

#[test]
fn all_linear_and_names_without_a_prefix_are_the_same() {
    let [Some(mut named), Some(plain)] = [Form::read(), Form::read()] else { return };
    named.config["target_modules"] = json!("all-linear");
    let rename = |(name, tensor): (String, Tensor)| (name.replace("lora_A.weight", "lora_A.default.weight"), tensor);
    named.tensors = named.tensors.into_iter().map(rename).collect();
    assert!(named.outcomes() == plain.outcomes());
}

#[test]
fn what_is_no_matrix_of_a_linear_layer_is_refused_by_name() {
    let Some(plain) = Form::read() else { return };
    let module = "base_model.model.model.layers.0.self_attn.q_proj";
    for name in [
        format!("{module}.lora_magnitude_vector"),
        format!("{module}.lora_B.bias"),
        "base_model.model.model.embed_tokens.weight".to_owned(),
        "base_model.model.model.embed_tokens.lora_embedding_A".to_owned(),
        "base_model.model.lm_head.weight".to_owned(),
        "base_model.model.lm_head.modules_to_save.weight".to_owned(),
        "base_model.model.lm_head.lora_A.weight".to_owned(),
    ] {
        let mut form = Form { config: plain.config.clone(), tensors: plain.tensors.clone() };
        form.tensors.insert(name.clone(), Tensor { shape: vec![2, 2], values: vec![0.0; 4] });
        let refusal = form.refusal();
        assert!(refusal.contains("lm_head") || refusal.contains(&name), "{name}: {refusal}");
    }
    for (field, value) in [
        ("use_dora", json!(true)),
        ("modules_to_save", json!(["embed_tokens", "lm_head"])),
        ("trainable_token_indices", json!([1, 2])),
        ("lora_bias", json!(true)),
        ("target_parameters", json!(["experts.down_proj"])),
    ] {
        let mut form = Form { config: plain.config.clone(), tensors: plain.tensors.clone() };
        form.config[field] = value;
        let refusal = form.refusal();
        assert!(refusal.contains(field) && refusal.contains("not supported"), "{refusal}");
    }
}
