//! Tiny checkpoints made here, of formats for which there is no reference model: packed by separate code, read back.

use kernels::e4m3;
use kernels::ops::DType;
use model_spec::ConfigFile;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::weights::{Checkpoint, Decoding, Role, Slice, TensorLocation, Weights};

const OUT: usize = 32;
const IN: usize = 64;

/// A tensor's end of name, and what it holds.
type Made = (&'static str, Dtype, Vec<usize>, Vec<u8>);

/// Numbers below `most`, other ones for another `seed`.
fn numbers(count: usize, most: u32, seed: u32) -> Vec<u32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 12) % most
    };
    (0..count).map(|_| next()).collect()
}

/// Scales that f16 and bf16 hold exactly.
fn scales(count: usize) -> Vec<f32> {
    numbers(count, 100, 9).into_iter().map(|number| (number + 28) as f32 / 1024.0).collect()
}

/// Lines of codes as words of 32 bits, the first code in the lowest bits.
fn words(lines: &[Vec<u32>], bits: usize) -> Vec<Vec<u32>> {
    let line = |codes: &Vec<u32>| {
        let mut words = vec![0_u32; (codes.len() * bits).div_ceil(32)];
        for (at, bit) in
            codes.iter().enumerate().flat_map(|(at, code)| (0..bits).map(move |b| (at * bits + b, code >> b & 1)))
        {
            words[at / 32] |= bit << (at % 32);
        }
        words
    };
    lines.iter().map(line).collect()
}

fn turned(lines: &[Vec<u32>]) -> Vec<Vec<u32>> {
    (0..lines[0].len()).map(|at| lines.iter().map(|line| line[at]).collect()).collect()
}

fn rows(values: &[u32], width: usize) -> Vec<Vec<u32>> {
    values.chunks(width).map(<[u32]>::to_vec).collect()
}

fn i32s(name: &'static str, lines: &[Vec<u32>]) -> Made {
    let bytes = lines.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
    (name, Dtype::I32, vec![lines.len(), lines[0].len()], bytes)
}

fn f32s(name: &'static str, shape: &[usize], values: &[f32]) -> Made {
    (name, Dtype::F32, shape.to_vec(), values.iter().flat_map(|value| value.to_le_bytes()).collect())
}

fn f16s(name: &'static str, shape: &[usize], values: &[f32]) -> Made {
    let bytes = values.iter().flat_map(|value| half::f16::from_f32(*value).to_le_bytes()).collect();
    (name, Dtype::F16, shape.to_vec(), bytes)
}

fn bytes(name: &'static str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> Made {
    (name, dtype, shape.to_vec(), bytes)
}

/// What a checkpoint of these tensors of a layer gives for its weight, whole and for the second of two ranks: of a
/// linear layer, of one that is turned around, and of a `Conv1D`.
fn check(config: &str, made: &[Made], want: impl Fn(usize, usize) -> f32) {
    let folder = tempfile::tempdir().expect("a folder");
    let views = made.iter().map(|(name, dtype, shape, bytes)| {
        (format!("layer.{name}"), TensorView::new(*dtype, shape.clone(), bytes).expect("a tensor"))
    });
    let file = safetensors::serialize(views, None).expect("safetensors");
    std::fs::write(folder.path().join("model.safetensors"), file).expect("a file");
    let text = format!(r#"{{"quantization_config": {config}}}"#);
    let config_file = ConfigFile::parse(&folder.path().join("config.json"), text.as_bytes()).expect("JSON");
    let quantized = super::read(&config_file).expect(config);
    let checkpoint = Checkpoint::open(folder.path(), None, 2).expect("weights").quantized(quantized.weights);
    let plain = TensorLocation::from("layer.weight".to_owned());
    let turned = TensorLocation { transposed: true, ..plain.clone() };
    let conv1d = TensorLocation { conv1d: true, ..turned.clone() };
    for (rows, cols) in [(0..OUT, 0..IN), (OUT / 2..OUT, 0..IN), (0..OUT, IN / 2..IN), (3..7, 5..50)] {
        let slice = |location: &TensorLocation| Slice {
            location: location.clone(),
            shape: vec![OUT, IN],
            rows: rows.clone(),
            cols: cols.clone(),
            role: Role::Matrix,
        };
        gives(&checkpoint, &slice(&plain), &want);
        let turned = Slice { shape: vec![IN, OUT], rows: cols.clone(), cols: rows.clone(), ..slice(&turned) };
        gives(&checkpoint, &turned, &|row, col| want(col, row));
        if READ_AS_LINEAR.iter().any(|method| config.contains(method)) {
            gives(&checkpoint, &slice(&conv1d), &want);
        } else {
            let refusal = checkpoint.check(&slice(&conv1d)).expect_err(config).to_string();
            assert!(refusal.contains("layer.weight") && refusal.contains("Conv1D"), "{config}: {refusal}");
        }
    }
}

/// Methods by which a `Conv1D` is stored as a linear layer.
const READ_AS_LINEAR: [&str; 5] = ["auto-round", "awq", "bitsandbytes", "gptq", "squeezellm"];

/// What a checkpoint gives for a slice.
fn gives(checkpoint: &Checkpoint, slice: &Slice, want: &dyn Fn(usize, usize) -> f32) {
    let (rows, cols) = (slice.rows.clone(), slice.cols.clone());
    let stored = checkpoint.check(slice).expect("stored");
    let fetched = checkpoint.fetch(slice).expect("fetched");
    assert_eq!(stored.format.row_bytes(cols.len()), fetched.format().row_bytes(cols.len()), "{slice:?}");
    let chunk = fetched.decoded(Decoding { cols: cols.len(), dtype: DType::F32, threads: 1 });
    let values = chunk.bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    let places = rows.flat_map(|row| cols.clone().map(move |col| (row, col)));
    for ((row, col), value) in places.zip(values) {
        let want = want(row, col);
        assert!((value - want).abs() <= 1e-6 * want.abs(), "{slice:?} at ({row}, {col}): {value} is not {want}");
    }
}

#[test]
fn gptq_of_all_bits_and_both_kinds_of_zero_points() {
    for bits in [2, 3, 4, 8] {
        for (format, less) in [("gptq", 1), ("gptq_v2", 0)] {
            let most = 1 << bits;
            let (codes, scale) = (numbers(OUT * IN, most, 1), scales(2 * OUT));
            // [group][output]
            let zeros = numbers(2 * OUT, most, 2);
            let stored: Vec<u32> = zeros.iter().map(|zero| zero.wrapping_sub(less) & (most - 1)).collect();
            let made = [
                i32s("qweight", &turned(&words(&rows(&codes, IN), bits))),
                i32s("qzeros", &words(&rows(&stored, OUT), bits)),
                f16s("scales", &[2, OUT], &scale),
            ];
            let config = format!(
                r#"{{"quant_method": "gptq", "bits": {bits}, "group_size": 32, "checkpoint_format": "{format}"}}"#
            );
            check(&config, &made, |row, col| {
                let at = col / 32 * OUT + row;
                (codes[row * IN + col] as f32 - zeros[at] as f32) * scale[at]
            });
        }
    }
}

#[test]
fn auto_round_in_both_layouts() {
    let (codes, zeros, scale) = (numbers(OUT * IN, 16, 1), numbers(2 * OUT, 15, 2), scales(2 * OUT));
    let weight = |zero: u32| {
        let (codes, zeros, scale) = (&codes, &zeros, &scale);
        move |row: usize, col: usize| {
            let at = col / 32 * OUT + row;
            (codes[row * IN + col] as f32 - (zeros[at] + zero) as f32) * scale[at]
        }
    };
    let config = |packing: &str| {
        format!(r#"{{"quant_method": "auto-round", "bits": 4, "group_size": 32, "packing_format": "{packing}"}}"#)
    };
    let scale_tensor = f16s("scales", &[2, OUT], &scale);
    let made = [
        i32s("qweight", &turned(&words(&rows(&codes, IN), 4))),
        i32s("qzeros", &words(&rows(&zeros, OUT), 4)),
        scale_tensor.clone(),
    ];
    check(&config("auto_round:auto_gptq"), &made, weight(1));
    // Eight outputs a word, in AWQ's order.
    let ordered =
        |line: &Vec<u32>| line.chunks(8).flat_map(|word| [0, 2, 4, 6, 1, 3, 5, 7].map(|at| word[at])).collect();
    let packed = |lines: Vec<Vec<u32>>| words(&lines.iter().map(ordered).collect::<Vec<_>>(), 4);
    let made =
        [i32s("qweight", &packed(turned(&rows(&codes, IN)))), i32s("qzeros", &packed(rows(&zeros, OUT))), scale_tensor];
    check(&config("auto_round:auto_awq"), &made, weight(0));
}

#[test]
fn symmetric_codes_of_two_and_three_bits_keep_their_middle() {
    for bits in [2, 3] {
        let (codes, scale) = (numbers(OUT * IN, 1 << bits, 1), scales(OUT));
        let middle = 1_u32 << (bits - 1);
        let made = [
            i32s("qweight", &turned(&words(&rows(&codes, IN), bits))),
            i32s("qzeros", &words(&[vec![middle - 1; OUT]], bits)),
            f16s("scales", &[1, OUT], &scale),
        ];
        let config = format!(r#"{{"quant_method": "gptq", "bits": {bits}, "group_size": -1}}"#);
        check(&config, &made, |row, col| (codes[row * IN + col] as f32 - middle as f32) * scale[row]);
    }
}

#[test]
fn awq_in_the_layout_of_gemv() {
    let (codes, zeros, scale) = (numbers(OUT * IN, 16, 1), numbers(OUT * 8, 16, 2), scales(OUT * 8));
    let made = [
        i32s("qweight", &words(&rows(&codes, IN), 4)),
        i32s("qzeros", &words(&rows(&zeros, 8), 4)),
        f16s("scales", &[OUT, 8], &scale),
    ];
    let config = r#"{"quant_method": "awq", "group_size": 32, "version": "gemv"}"#;
    check(config, &made, |row, col| {
        let at = row * 8 + col / 32;
        (codes[row * IN + col] as f32 - zeros[at] as f32) * scale[at]
    });
}

fn group(weights: &str) -> String {
    format!(
        r#"{{"quant_method": "compressed-tensors", "config_groups": {{"group_0": {{"targets": ["Linear"],
        "weights": {weights}}}}}}}"#
    )
}

#[test]
fn compressed_tensors_with_zero_points() {
    let (codes, scale) = (numbers(OUT * IN, 16, 1), scales(OUT * 2));
    // [output][group], packed along the outputs.
    let zeros = numbers(OUT * 2, 16, 2);
    let weight = |row: usize, col: usize| {
        let at = row * 2 + col / 32;
        (codes[row * IN + col] as f32 - zeros[at] as f32) * scale[at]
    };
    let config = group(r#"{"type": "int", "num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": false}"#);
    let (packed, scale_tensor) =
        (i32s("weight_packed", &words(&rows(&codes, IN), 4)), f16s("weight_scale", &[OUT, 2], &scale));
    let packed_zeros = i32s("weight_zero_point", &turned(&words(&turned(&rows(&zeros, 2)), 4)));
    check(&config, &[packed.clone(), scale_tensor.clone(), packed_zeros], weight);
    let signed: Vec<u8> = zeros.iter().map(|zero| (*zero as i32 - 8) as u8).collect();
    check(&config, &[packed, scale_tensor, bytes("weight_zero_point", Dtype::I8, &[OUT, 2], signed)], weight);
}

#[test]
fn integers_of_eight_bits() {
    let (codes, scale) = (numbers(OUT * IN, 256, 1), scales(OUT));
    let signed = |at: usize| f32::from(codes[at] as u8 as i8);
    let stored = bytes("weight", Dtype::I8, &[OUT, IN], codes.iter().map(|code| *code as u8).collect());
    let config = group(r#"{"type": "int", "num_bits": 8, "strategy": "channel"}"#);
    check(&config, &[stored.clone(), f32s("weight_scale", &[OUT, 1], &scale)], |row, col| {
        signed(row * IN + col) * scale[row]
    });
    // LLM.int8: what is stored is the largest of each row.
    let config = r#"{"quant_method": "bitsandbytes", "load_in_8bit": true}"#;
    check(config, &[stored, f32s("SCB", &[OUT], &scale)], |row, col| signed(row * IN + col) * (scale[row] / 127.0));
}

#[test]
fn a_sparse_part_is_added() {
    let (codes, table) = (numbers(OUT * IN, 16, 1), scales(OUT * 16));
    // Every fifth row has two.
    let (mut starts, mut cols, mut values) = (vec![0], Vec::new(), Vec::new());
    for row in 0..OUT as u32 {
        if row % 5 == 0 {
            cols.extend([row, row + 32]);
            values.extend([row as f32 + 0.5, -1.0]);
        }
        starts.push(cols.len() as u32);
    }
    let line = |name, values: &Vec<u32>| {
        let (_, dtype, shape, bytes) = i32s(name, std::slice::from_ref(values));
        (name, dtype, shape[1..].to_vec(), bytes)
    };
    let made = [
        i32s("qweight", &turned(&words(&rows(&codes, IN), 4))),
        f32s("lookup_table", &[OUT, 16], &table),
        line("rows", &starts),
        line("cols", &cols),
        f32s("vals", &[values.len()], &values),
    ];
    check(r#"{"quant_method": "squeezellm", "wbits": 4}"#, &made, |row, col| {
        let dense = table[row * 16 + codes[row * IN + col] as usize];
        match (row % 5, col) {
            (0, col) if col == row => dense + (row as f32 + 0.5),
            (0, col) if col == row + 32 => dense - 1.0,
            _ => dense,
        }
    });
}

/// What four bits of a float mean.
fn float4(code: u32) -> f32 {
    let (exponent, mantissa) = (code >> 1 & 3, (code & 1) as f32);
    let size = if exponent == 0 { mantissa * 0.5 } else { (1.0 + mantissa * 0.5) * 2.0_f32.powi(exponent as i32 - 1) };
    if code & 8 == 8 { -size } else { size }
}

#[test]
fn floats_of_four_bits() {
    let codes = numbers(OUT * IN, 16, 1);
    let packed: Vec<u8> = codes.chunks(2).map(|pair| (pair[0] | pair[1] << 4) as u8).collect();
    let scale_codes: Vec<u8> = numbers(OUT * 4, 100, 2).into_iter().map(|code| code as u8).collect();
    let scale = |row: usize, col: usize| e4m3::decode(scale_codes[row * 4 + col / 16]);
    let weight = |row: usize, col: usize| float4(codes[row * IN + col]);
    let stored = |name| bytes(name, Dtype::U8, &[OUT, IN / 2], packed.clone());
    let stored_scales = bytes("weight_scale", Dtype::F8_E4M3, &[OUT, 4], scale_codes.clone());
    let made = [stored("weight"), stored_scales.clone(), f32s("weight_scale_2", &[], &[0.25])];
    let mixed = r#"{"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers":
        {"layer": {"quant_algo": "NVFP4", "group_size": 16}}}"#;
    for config in [r#"{"quant_method": "modelopt", "quant_algo": "NVFP4"}"#, mixed] {
        check(config, &made, |row, col| weight(row, col) * scale(row, col) * 0.25);
    }
    let config = group(r#"{"type": "float", "num_bits": 4, "strategy": "tensor_group", "group_size": 16}"#);
    let made = [stored("weight_packed"), stored_scales, f32s("weight_global_scale", &[1], &[4.0])];
    check(&config, &made, |row, col| weight(row, col) * scale(row, col) / 4.0);
    let exponents: Vec<u8> = numbers(OUT * 2, 20, 3).into_iter().map(|number| number as u8 + 117).collect();
    let config = group(r#"{"type": "float", "num_bits": 4, "strategy": "group", "group_size": 32}"#);
    let made = [stored("weight_packed"), bytes("weight_scale", Dtype::U8, &[OUT, 2], exponents.clone())];
    check(&config, &made, |row, col| weight(row, col) * 2.0_f32.powi(i32::from(exponents[row * 2 + col / 32]) - 127));
}

/// MXFP8: a power of two for 32 columns, as an exponent plus 127.
#[test]
fn floats_of_eight_bits_with_exponents_as_scales() {
    let codes: Vec<u8> = numbers(OUT * IN, 120, 1).into_iter().map(|code| code as u8).collect();
    let exponents: Vec<u8> = numbers(OUT * 2, 20, 3).into_iter().map(|number| number as u8 + 117).collect();
    let made = [
        bytes("weight", Dtype::F8_E4M3, &[OUT, IN], codes.clone()),
        bytes("weight_scale", Dtype::U8, &[OUT, 2], exponents.clone()),
    ];
    let compressed = group(r#"{"type": "float", "num_bits": 8, "strategy": "group", "group_size": 32}"#);
    let mixed = r#"{"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}"#;
    for config in [compressed.as_str(), r#"{"quant_method": "modelopt", "quant_algo": "MXFP8"}"#, mixed] {
        check(config, &made, |row, col| {
            e4m3::decode(codes[row * IN + col]) * 2.0_f32.powi(i32::from(exponents[row * 2 + col / 32]) - 127)
        });
    }
}

#[test]
fn floats_of_eight_bits_by_other_makers() {
    let codes: Vec<u8> = numbers(OUT * IN, 120, 1).into_iter().map(|code| code as u8).collect();
    let (stored, scale) = (bytes("weight", Dtype::F8_E4M3, &[OUT, IN], codes.clone()), scales(OUT));
    let weight = |row: usize, col: usize| e4m3::decode(codes[row * IN + col]);
    let made = [stored.clone(), f32s("weight_scale", &[OUT, 1], &scale)];
    check(r#"{"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}"#, &made, |row, col| {
        weight(row, col) * scale[row]
    });
    let made = [stored, f32s("weight_scale", &[], &[0.5]), f32s("input_scale", &[], &[0.1])];
    for algorithm in ["FP8", "MIXED_PRECISION"] {
        let config = format!(r#"{{"quant_method": "modelopt", "quant_algo": "{algorithm}"}}"#);
        check(&config, &made, |row, col| weight(row, col) * 0.5);
    }
}

fn quark(rest: &str, weight: &str) -> String {
    format!(r#"{{"quant_method": "quark", {rest}"global_quant_config": {{"weight": {weight}}}}}"#)
}

#[test]
fn quark_of_eight_bits() {
    let codes: Vec<u8> = numbers(OUT * IN, 120, 1).into_iter().map(|code| code as u8).collect();
    let (stored, scale) = (bytes("weight", Dtype::F8_E4M3, &[OUT, IN], codes.clone()), scales(OUT));
    let weight = |row: usize, col: usize| e4m3::decode(codes[row * IN + col]);
    // The module has a scheme of its own, which has a stored scale of inputs; the first that means it counts.
    let named = r#""layer_quant_config": {"lay?r*": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_channel"},
        "input_tensors": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}}, "*": {"weight": null}}, "#;
    let made = [stored.clone(), f32s("weight_scale", &[OUT], &scale), f32s("input_scale", &[], &[0.1])];
    check(&quark(named, "null"), &made, |row, col| weight(row, col) * scale[row]);
    let made = [stored.clone(), f32s("weight_scale", &[1], &[0.5])];
    check(&quark("", r#"{"dtype": "fp8_e4m3", "qscheme": "per_tensor"}"#), &made, |row, col| weight(row, col) * 0.5);
    let exponents: Vec<u8> = numbers(4, 20, 3).into_iter().map(|number| number as u8 + 117).collect();
    let made = [stored, bytes("weight_scale", Dtype::U8, &[2, 2], exponents.clone())];
    let config = quark("", r#"{"dtype": "fp8_e4m3", "qscheme": "per_block", "block_size": [16, 32]}"#);
    check(&config, &made, |row, col| {
        weight(row, col) * 2.0_f32.powi(i32::from(exponents[row / 16 * 2 + col / 32]) - 127)
    });
    let stored = bytes("weight", Dtype::I8, &[OUT, IN], codes.iter().map(|code| code.wrapping_mul(2)).collect());
    let made =
        [stored, f32s("weight_scale", &[OUT], &scale), bytes("weight_zero_point", Dtype::I8, &[OUT], vec![0; OUT])];
    check(&quark("", r#"{"dtype": "int8", "qscheme": "per_channel", "symmetric": true}"#), &made, |row, col| {
        f32::from(codes[row * IN + col].wrapping_mul(2) as i8) * scale[row]
    });
}

#[test]
fn quark_of_four_bits() {
    let (codes, scale) = (numbers(OUT * IN, 16, 1), scales(2 * OUT));
    let packed: Vec<u8> = codes.chunks(2).map(|pair| (pair[0] | pair[1] << 4) as u8).collect();
    let exponents: Vec<u8> = numbers(OUT * 2, 20, 3).into_iter().map(|number| number as u8 + 117).collect();
    let floats = bytes("weight", Dtype::U8, &[OUT, IN / 2], packed);
    let made = [floats.clone(), bytes("weight_scale", Dtype::U8, &[OUT, 2], exponents.clone())];
    let config = quark("", r#"{"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}"#);
    check(&config, &made, |row, col| {
        float4(codes[row * IN + col]) * 2.0_f32.powi(i32::from(exponents[row * 2 + col / 32]) - 127)
    });
    let scale_codes: Vec<u8> = numbers(OUT * 4, 100, 2).into_iter().map(|code| code as u8).collect();
    let made = [
        floats,
        bytes("weight_scale", Dtype::F8_E4M3, &[OUT, 4], scale_codes.clone()),
        f32s("weight_scale_2", &[], &[0.25]),
    ];
    let config = quark("", r#"[{"dtype": "fp4", "qscheme": "per_group", "group_size": 16}, {"dtype": "fp8_e4m3"}]"#);
    check(&config, &made, |row, col| {
        float4(codes[row * IN + col]) * (e4m3::decode(scale_codes[row * 4 + col / 16]) * 0.25)
    });
    // Integers: signed in AWQ's order, and with zero points in their own.
    let lines = |order: [usize; 8], lines: Vec<Vec<u32>>, turn: u32| {
        let word = |word: &[u32]| order.map(|at| word[at] ^ turn);
        let lines: Vec<Vec<u32>> = lines.iter().map(|line| line.chunks(8).flat_map(word).collect()).collect();
        words(&lines, 4)
    };
    let (awq, own) = ([0, 2, 4, 6, 1, 3, 5, 7], [0, 1, 2, 3, 4, 5, 6, 7]);
    let scale_tensor = f16s("weight_scale", &[2, OUT], &scale);
    let made = [i32s("weight", &lines(awq, turned(&rows(&codes, IN)), 8)), scale_tensor.clone()];
    let config = quark("", r#"{"dtype": "int4", "qscheme": "per_group", "group_size": 32}"#);
    check(&config, &made, |row, col| (codes[row * IN + col] as f32 - 8.0) * scale[col / 32 * OUT + row]);
    let made = [i32s("weight", &lines(awq, turned(&rows(&codes, IN)), 8)), f16s("weight_scale", &[OUT], &scale[..OUT])];
    let config = quark("", r#"{"dtype": "int4", "qscheme": "per_channel", "group_size": null}"#);
    check(&config, &made, |row, col| (codes[row * IN + col] as f32 - 8.0) * scale[row]);
    let zeros = numbers(2 * OUT, 16, 2);
    let made = [
        i32s("weight", &lines(own, turned(&rows(&codes, IN)), 0)),
        i32s("weight_zero_point", &lines(own, rows(&zeros, OUT), 0)),
        scale_tensor,
    ];
    let export = r#""export": {"pack_method": "order"}, "#;
    let config = quark(export, r#"{"dtype": "uint4", "qscheme": "per_group", "group_size": 32}"#);
    check(&config, &made, |row, col| {
        let at = col / 32 * OUT + row;
        (codes[row * IN + col] as f32 - zeros[at] as f32) * scale[at]
    });
}
