//! `pytorch_model.bin`, in both forms that PyTorch has written.

use std::io::Write;
use std::path::Path;

use collectives::Solo;
use models::{LoadFormat, LoadOptions, LoraOptions};
use safetensors::Dtype;
use zip::write::SimpleFileOptions;

use super::pickle::{Form, Pickle, pickled};
use super::{CONFIG, Tensor, Tensors, folder, load, logits, options, refusal, tensors, write};

fn bin(form: Form, tensors: &[(String, Tensor)]) -> Vec<u8> {
    pickled(form, &tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect::<Vec<_>>())
}

fn write_bin(dir: &Path, file: &str, form: Form, tensors: &[(String, Tensor)]) {
    std::fs::write(dir.join(file), bin(form, tensors)).expect("written");
}

fn reference() -> Vec<f32> {
    let dir = folder(CONFIG);
    write(dir.path(), "model.safetensors", &tensors());
    logits(&mut load(dir.path(), &options(LoadFormat::Safetensors, (0, 1))).expect("loads").0, &mut Solo)
}

#[test]
fn both_forms_hold_the_same_model() {
    let expected = reference();
    for form in [Form::Archive, Form::Stream] {
        let dir = folder(CONFIG);
        write_bin(dir.path(), "pytorch_model.bin", form, &tensors());
        let (mut model, _) = load(dir.path(), &options(LoadFormat::Torch, (0, 1))).expect("loads");
        assert_eq!(logits(&mut model, &mut Solo), expected, "{form:?}");
    }
}

/// An adapter of one projection, as it is printed: pickled or not, in 16 bits or 32, it is the same.
#[test]
fn adapters_may_be_pickled() {
    let base = folder(CONFIG);
    write(base.path(), "model.safetensors", &tensors());
    let lora =
        Some(LoraOptions { slots: 1, max_rank: 2, dtype: None, experts: true, saved_modules: false, extra_vocab: 0 });
    let options = LoadOptions { lora, ..options(LoadFormat::Auto, (0, 1)) };
    let layout = load(base.path(), &options).expect("loads").0.runner.adapter_layout().expect("room");
    // Numbers that are the same in all of them.
    let bytes = |dtype, number: f32| match dtype {
        Dtype::BF16 => half::bf16::from_f32(number).to_le_bytes().to_vec(),
        Dtype::F16 => half::f16::from_f32(number).to_le_bytes().to_vec(),
        _ => number.to_le_bytes().to_vec(),
    };
    let tensor = |dtype, shape: [usize; 2]| {
        let bytes = (0..shape[0] * shape[1]).flat_map(|index| bytes(dtype, index as f32 / 8.0)).collect();
        Tensor { dtype, shape: shape.to_vec(), bytes }
    };
    let module = "base_model.model.model.layers.1.self_attn.q_proj";
    let tensors = |dtype| -> Tensors {
        vec![
            (format!("{module}.lora_A.weight"), tensor(dtype, [2, 32])),
            (format!("{module}.lora_B.weight"), tensor(dtype, [32, 2])),
        ]
    };
    let read = |write: &dyn Fn(&Path)| {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("adapter_config.json"), r#"{"r": 2, "lora_alpha": 4}"#).expect("written");
        write(dir.path());
        let adapter = layout.read(dir.path()).expect("an adapter");
        assert_eq!((adapter.bytes(), adapter.fingerprint().len()), (2 * 2 * 32 * 4, 64));
        format!("{adapter:?}").replace(adapter.fingerprint(), "")
    };
    let expected = read(&|dir| write(dir, "adapter_model.safetensors", &tensors(Dtype::F32)));
    for dtype in [Dtype::F32, Dtype::BF16, Dtype::F16] {
        let tensors = tensors(dtype);
        assert_eq!(read(&|dir| write(dir, "adapter_model.safetensors", &tensors)), expected, "{dtype:?}");
        for form in [Form::Archive, Form::Stream] {
            assert_eq!(read(&|dir| write_bin(dir, "adapter_model.bin", form, &tensors)), expected, "{form:?}");
        }
    }
}

#[test]
fn shards_are_the_file_in_parts() {
    let dir = folder(CONFIG);
    let (even, odd): (Vec<_>, Vec<_>) = tensors().into_iter().enumerate().partition(|(i, _)| i % 2 == 0);
    let mut map = Vec::new();
    for (part, tensors) in [even, odd].into_iter().enumerate() {
        let tensors: Tensors = tensors.into_iter().map(|(_, tensor)| tensor).collect();
        map.extend(tensors.iter().map(|(name, _)| format!("{name:?}: \"part-{part}.bin\"")));
        write_bin(dir.path(), &format!("part-{part}.bin"), Form::Archive, &tensors);
    }
    let index = format!("{{\"weight_map\": {{{}}}}}", map.join(","));
    std::fs::write(dir.path().join("pytorch_model.bin.index.json"), index).expect("written");
    let (mut model, _) = load(dir.path(), &options(LoadFormat::Auto, (0, 1))).expect("loads");
    assert_eq!(logits(&mut model, &mut Solo), reference());
}

/// A pickle that would run a command is refused or passed over, and runs nothing.
#[test]
fn nothing_is_run() {
    let dir = folder(CONFIG);
    let trace = dir.path().join("trace");
    let mut pickle = Pickle::new();
    pickle.op(b"cposix\nsystem\n(").text(&format!("touch {}", trace.display())).op(b"tR");
    let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    archive.start_file("archive/data.pkl", SimpleFileOptions::default()).expect("an entry");
    archive.write_all(&pickle.done()).expect("written");
    let bytes = archive.finish().expect("an archive").into_inner();
    std::fs::write(dir.path().join("pytorch_model.bin"), bytes).expect("written");
    refusal(load(dir.path(), &options(LoadFormat::Auto, (0, 1))));
    assert!(!trace.exists());
}

/// Cut anywhere and with bytes changed: a model or an error, never a panic.
#[test]
fn damage_never_panics() {
    for form in [Form::Archive, Form::Stream] {
        let (dir, good) = (folder(CONFIG), bin(form, &tensors()));
        let attempt = |bytes: &[u8]| {
            std::fs::write(dir.path().join("pytorch_model.bin"), bytes).expect("written");
            load(dir.path(), &options(LoadFormat::Auto, (0, 1))).is_ok()
        };
        assert!(attempt(&good));
        for end in (0..good.len()).step_by(good.len() / 40) {
            assert!(!attempt(&good[..end]), "{form:?} cut at {end}");
        }
        // The pickle is at the front, the archive's directory at the end.
        let places = (0..5000.min(good.len())).step_by(37).chain((good.len() - 2000..good.len()).step_by(29));
        for (round, at) in places.enumerate() {
            let mut bytes = good.clone();
            bytes[at] ^= [1, 0x10, 0x80, 0xff][round % 4];
            attempt(&bytes);
        }
    }
}
