//! Scales of cached keys and values, and checkpoints that are quantised as far as their cache goes.

use super::*;

const KEY: &str = "self_attn.k_scale";
const VALUE: &str = "self_attn.v_scale";

/// A checkpoint whose layers all have these tensors of one element.
fn checkpoint(config: &str, scales: &[(&str, f32)]) -> tempfile::TempDir {
    let scales: Vec<_> = scales.iter().map(|(name, scale)| (*name, vec![*scale])).collect();
    checkpoint_by_head(config, &scales)
}

/// The same with tensors of any length.
fn checkpoint_by_head(config: &str, scales: &[(&str, Vec<f32>)]) -> tempfile::TempDir {
    let (dir, mut tensors) = (folder(config), tensors());
    for (layer, (name, scale)) in (0..2).flat_map(|layer| scales.iter().map(move |scale| (layer, scale))) {
        let (shape, bytes) = (vec![scale.len()], scale.iter().flat_map(|scale| scale.to_le_bytes()).collect());
        tensors.push((format!("model.layers.{layer}.{name}"), Tensor { shape, dtype: Dtype::F32, bytes }));
    }
    write(dir.path(), "model.safetensors", &tensors);
    dir
}

/// All logits with such a cache.
fn with_cache(dir: &tempfile::TempDir, kv_cache_dtype: Option<KvDType>) -> Vec<f32> {
    let options = LoadOptions { kv_cache_dtype, ..options(LoadFormat::Auto, (0, 1)) };
    logits(&mut load(dir.path(), &options).expect("loads").0, &mut Solo)
}

/// The largest distance of two lists, as a share of the largest number.
fn distance(a: &[f32], b: &[f32]) -> f32 {
    let largest = |values: &mut dyn Iterator<Item = f32>| values.map(f32::abs).fold(0.0, f32::max);
    largest(&mut a.iter().zip(b).map(|(a, b)| a - b)) / largest(&mut b.iter().copied())
}

#[test]
fn scales_are_honoured() {
    let narrow = Some(KvDType::E4m3);
    let plain = with_cache(&checkpoint(CONFIG, &[]), narrow);
    // Powers of two change no mantissa: what is divided by them is multiplied again.
    for names in [
        [KEY, VALUE],
        ["self_attn.attn.k_scale", "self_attn.attn.v_scale"],
        ["self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"],
        ["self_attn.k_proj.output_scale", "self_attn.v_proj.output_scale"],
    ] {
        let scaled = with_cache(&checkpoint(CONFIG, &[(names[0], 0.125), (names[1], 0.25)]), narrow);
        assert!(distance(&scaled, &plain) < 0.02, "{names:?}: {}", distance(&scaled, &plain));
    }
    // Numbers end at 448: with so small a scale hardly anything is left of keys, or of values.
    for scales in [vec![(KEY, 1e-4), (VALUE, 1.0)], vec![(KEY, 1.0), (VALUE, 1e-4)], vec![("self_attn.kv_scale", 1e-4)]]
    {
        let cut = with_cache(&checkpoint(CONFIG, &scales), narrow);
        assert!(distance(&cut, &plain) > 0.05, "{scales:?}: {}", distance(&cut, &plain));
    }
}

/// One for each key/value head.
#[test]
fn scales_of_heads_are_honoured() {
    let narrow = Some(KvDType::E4m3);
    let config = quantised(
        r#"{"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": {"strategy": "attn_head"}}"#,
    );
    let by_head =
        |key: [f32; 2], value: [f32; 2]| checkpoint_by_head(&config, &[(KEY, key.to_vec()), (VALUE, value.to_vec())]);
    let options = LoadOptions { kv_cache_dtype: narrow, ..options(LoadFormat::Auto, (0, 1)) };
    let same = checkpoint(CONFIG, &[(KEY, 0.125), (VALUE, 0.25)]);
    let whole = with_cache(&same, narrow);
    assert_eq!(with_cache(&by_head([0.125; 2], [0.25; 2]), None), whole, "fp8 is what auto means");
    let powers = with_cache(&by_head([0.125, 2.0], [0.25, 0.5]), narrow);
    assert!(distance(&powers, &whole) < 0.02, "{}", distance(&powers, &whole));
    // With so small a scale hardly anything is left of one head's keys, or values.
    for (key, value) in [([0.125, 1e-4], [0.25; 2]), ([0.125; 2], [1e-4, 0.25])] {
        let cut = with_cache(&by_head(key, value), narrow);
        assert!(distance(&cut, &whole) > 0.02, "{key:?} {value:?}: {}", distance(&cut, &whole));
    }
    let three = load(checkpoint_by_head(CONFIG, &[(KEY, vec![1.0; 3])]).path(), &options);
    assert!(refusal(three).contains("one for each key/value head"));
    let zero = load(checkpoint_by_head(CONFIG, &[(KEY, vec![1.0, 0.0])]).path(), &options);
    assert!(refusal(zero).contains("positive"));
}

#[test]
fn a_cache_of_what_is_computed_needs_none() {
    let (plain, scaled) = (checkpoint(CONFIG, &[]), checkpoint(CONFIG, &[(KEY, 1e-4), (VALUE, 1e-4)]));
    assert_eq!(with_cache(&scaled, None), with_cache(&plain, None));
}

#[test]
fn scales_that_cannot_be_honoured_are_refused() {
    let refused = |scales: &[(&str, f32)]| {
        let options = LoadOptions { kv_cache_dtype: Some(KvDType::E4m3), ..options(LoadFormat::Auto, (0, 1)) };
        refusal(load(checkpoint(CONFIG, scales).path(), &options))
    };
    for (scales, word) in [
        (vec![(KEY, 0.0)], "positive"),
        (vec![(KEY, f32::NAN)], "positive"),
        (vec![(VALUE, 1.0)], "no scale of keys"),
        (vec![("mlp.k_scale", 1.0)], "no layer"),
    ] {
        let message = refused(&scales);
        assert!(message.contains(word) && message.contains(scales[0].0), "{message}");
    }
}

/// `CONFIG` with a `quantization_config`.
fn quantised(text: &str) -> String {
    format!("{}, \"quantization_config\": {text}}}", CONFIG.trim_end().trim_end_matches('}'))
}

#[test]
fn a_checkpoint_may_be_quantised_as_far_as_its_cache_goes() {
    let config = quantised(
        r#"{"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme":
            {"type": "float", "num_bits": 8, "strategy": "tensor", "dynamic": false, "symmetric": true}}"#,
    );
    let scales = [(KEY, 0.125), (VALUE, 0.25)];
    let (dir, plain) = (checkpoint(&config, &scales), checkpoint(CONFIG, &scales));
    assert_eq!(with_cache(&dir, None), with_cache(&plain, Some(KvDType::E4m3)), "fp8 is what auto means");
    assert_eq!(with_cache(&dir, Some(DType::F32.into())), with_cache(&plain, None));
}

#[test]
fn other_quantisations_are_refused() {
    for (text, word) in [
        (
            r#"{"quant_method": "compressed-tensors", "config_groups": {"a": {}}, "kv_cache_scheme": {}}"#,
            "config_groups.a.weights",
        ),
        (r#"{"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 4}}"#, "kv_cache_scheme"),
        (r#"{"quant_method": "compressed-tensors", "kv_cache_scheme": {"strategy": "channel"}}"#, "attn_head"),
        (r#"{"quant_method": "compressed-tensors", "kv_cache_scheme": {"dynamic": true}}"#, "dynamic"),
        (
            r#"{"quant_method": "modelopt", "quant_algo": "NVFP4"}"#,
            "no random weights are made as modelopt stores these",
        ),
        (r#"{"quant_method": "hqq"}"#, "awq, bitsandbytes, compressed-tensors"),
    ] {
        let message = refusal(load(folder(&quantised(text)).path(), &options(LoadFormat::Dummy, (0, 1))));
        assert!(message.contains(word), "{message}");
    }
}

#[test]
fn random_weights_are_codes_where_the_config_says_so() {
    let bytes = |config: &str| {
        let (mut model, read) = load(folder(config).path(), &options(LoadFormat::Dummy, (0, 1))).expect("loads");
        assert!(logits(&mut model, &mut Solo).iter().all(|x| x.is_finite() && x.abs() < 100.0), "{config}");
        read.bytes_total
    };
    let plain = bytes(CONFIG);
    for text in [
        r#"{"quant_method": "gptq", "bits": 4, "group_size": 4}"#,
        r#"{"quant_method": "awq", "group_size": 4}"#,
        r#"{"quant_method": "fp8"}"#,
        r#"{"quant_method": "compressed-tensors", "config_groups": {"a": {"targets": ["Linear"],
            "weights": {"type": "int", "num_bits": 8, "strategy": "channel"}}}}"#,
    ] {
        assert!(bytes(&quantised(text)) < plain, "{text}");
    }
}
