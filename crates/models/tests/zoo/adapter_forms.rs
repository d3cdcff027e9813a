//! Forms of adapters that PEFT writes, made from an adapter of the zoo: each gives the bits of a plain one that says
//! the same, or is refused by name.

use std::path::Path;

use collectives::Solo;
use kernels::ops::DType;
use serde_json::{Value, json};

use crate::adapters::{ROOM, load, put, run};
use crate::checks::greedy_scripts;
use crate::engine::{Outcome, PLAIN, Setup};
use crate::tensors::{self, Tensor, Tensors};
use crate::{folders, reference};

const WHOLE: &str = "lora-llama-r8-all";

/// An adapter that is being changed.
struct Form {
    config: Value,
    tensors: Tensors,
}

impl Form {
    fn read() -> Option<Self> {
        let dir = folders::zoo(WHOLE)?;
        let config = std::fs::read(dir.join("adapter_config.json")).expect("a configuration");
        let config = serde_json::from_slice(&config).expect("JSON");
        Some(Self { config, tensors: tensors::read(&dir.join("adapter_model.safetensors")) })
    }

    fn write(&self, dir: &Path) {
        tensors::write(&self.tensors, &dir.join("adapter_model.safetensors"));
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
