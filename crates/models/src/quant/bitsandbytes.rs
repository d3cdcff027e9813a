//! `bitsandbytes` (arXiv 2305.14314, 2208.07339): weights of four bits with sixteen levels, or integers of eight.
//!
//! ```text
//! 4 bits  X.weight                    uint8: codes of the flattened [out, in] weight, the high half of a byte first
//!         X.weight.absmax             f32: the scale of each block; or uint8, quantised again:
//!         X.weight.nested_absmax      f32, of each block of scales, with
//!         X.weight.nested_quant_map   [256] f32; a scale is map[q] * nested_absmax + nested_offset
//!         X.weight.quant_map          [16] f32: the levels
//!         X.weight.quant_state.bitsandbytes__nf4 (or fp4)   JSON: blocksize, shape, nested_blocksize, nested_offset
//! 8 bits  X.weight  [out, in] int8    weight = q * SCB / 127
//!         X.SCB     [out] f32         the largest weight of each row
//! ```
//! Outputs come first also where the plain weight has inputs first (GPT-2's).
//!
//! With eight bits, inputs of at least `llm_int8_threshold` are outliers, which are never rounded.

use kernels::ops::{ALL_COLUMNS, CodeBits, DType, InputRounding};
use model_spec::{ConfigError, ConfigFile};
use serde_json::Value;

use super::Quantized;
use super::grouped::{CodeMatrix, Grouped, GroupedMethod, Meaning, OfGroup};
use super::input::InputScheme;
use super::packed::{Numbers, check, greatest_common_divisor, whole_shape};
use super::stored_codes::StoredCodes;
use crate::error::LoadError;
use crate::weights::{Code, Element, Slice, Tensor, Tensors};

pub(super) fn read(config: &ConfigFile) -> Result<Quantized, ConfigError> {
    // The threshold is 0 where there are no outliers.
    let outliers = match config.number_or("llm_int8_threshold", 6.0)? as f32 {
        0.0 => f32::INFINITY,
        threshold => threshold,
    };
    let key = "bnb_4bit_quant_storage";
    if config.text_or(key, "uint8")?.trim_start_matches("torch.") != "uint8" {
        return Err(config.unsupported(key, "codes are read from uint8; save the model with that"));
    }
    Ok(Quantized { weights: Some(Box::new(Grouped(BitsAndBytes { outliers }))), ..Quantized::default() })
}

/// The method.
struct BitsAndBytes {
    /// Inputs of 8-bit weights that are at least as large stay.
    outliers: f32,
}

impl GroupedMethod for BitsAndBytes {
    fn find<'a>(&self, slice: &Slice, tensors: Tensors<'a>) -> Result<Option<CodeMatrix<'a>>, LoadError> {
        let name = &slice.location.tensor;
        let Some(codes) = tensors.get(name).filter(|_| slice.shape.len() == 2) else { return Ok(None) };
        let mut slice = slice.clone();
        // Of experts in one tensor, rows are output features also where plain ones lie the other way round.
        slice.location.transposed &= slice.location.stack.is_none();
        match codes.element {
            Element::Code(Code::U8) => State::find(&codes, tensors)?.matrix(&slice, &codes, tensors).map(Some),
            Element::Code(Code::I8) => self.bytes(&slice, &codes, tensors).map(Some),
            _ => Ok(None),
        }
    }
}

impl BitsAndBytes {
    fn bytes<'a>(&self, slice: &Slice, tensor: &Tensor<'a>, tensors: Tensors<'a>) -> Result<CodeMatrix<'a>, LoadError> {
        let shape = whole_shape(slice).ok_or_else(|| tensor.misshapen(slice.stored_shape()))?;
        check(tensor, &shape, Element::Code(Code::I8))?;
        let stem = slice.location.tensor.strip_suffix("weight").unwrap_or_default();
        let largest = Numbers::read(&tensors.find(&format!("{stem}SCB"))?, &[shape[0]], tensors)?;
        let (codes, width) = (tensors.files.bytes(&tensor.name)?, shape[1]);
        Ok(CodeMatrix {
            shape,
            bits: CodeBits::Eight,
            group: ALL_COLUMNS,
            scale_type: DType::F32,
            codes: StoredCodes::Each(Box::new(move |row, cols, out| {
                let codes = &codes[row * width..][cols];
                out.iter_mut().zip(codes).for_each(|(out, code)| *out = code.wrapping_add(128));
            })),
            scale: Box::new(move |row, _| largest.at(row) / 127.0),
            meaning: Meaning::Symmetric,
            groups: None,
            input: InputScheme::PerTokenInt8 { outliers: self.outliers }.rounding(slice, tensors)?,
            upright: slice.location.stack.is_some(),
        })
    }
}

/// What lies beside four-bit codes.
struct State<'a> {
    /// Weights of a block.
    block: usize,
    levels: [f32; 16],
    /// Outputs and inputs, where they are said.
    shape: Option<Vec<u64>>,
    /// Of each block.
    scale: Box<dyn Fn(usize) -> f32 + Sync + 'a>,
}

impl<'a> State<'a> {
    fn find(codes: &Tensor<'a>, tensors: Tensors<'a>) -> Result<Self, LoadError> {
        let name = &codes.name;
        let state = ["nf4", "fp4"].map(|kind| format!("{name}.quant_state.bitsandbytes__{kind}"));
        let state = match state.iter().find_map(|name| tensors.get(name)) {
            Some(state) => state,
            None => tensors.find(&state[0])?,
        };
        let text = tensors.files.bytes(&state.name)?;
        let state_of: Value =
            serde_json::from_slice(&text).map_err(|_| state.invalid("it is not JSON, as bitsandbytes writes it"))?;
        let size = |key: &str| state_of.get(key).and_then(Value::as_u64).map(|size| size as usize).filter(|s| *s > 0);
        let block = size("blocksize").ok_or_else(|| state.invalid("it has no blocksize"))?;
        let levels = Numbers::read(&tensors.find(&format!("{name}.quant_map"))?, &[16], tensors)?;
        let levels = std::array::from_fn(|level| levels.at(level));
        let sizes = state_of.get("shape").and_then(Value::as_array);
        let shape = sizes.and_then(|sizes| sizes.iter().map(Value::as_u64).collect());
        let count = codes.shape.iter().product::<usize>() * 2;
        let blocks = count.div_ceil(block);
        let absmax = tensors.find(&format!("{name}.absmax"))?;
        if absmax.element != Element::Code(Code::U8) {
            let absmax = Numbers::read(&absmax, &[blocks], tensors)?;
            return Ok(Self { block, levels, shape, scale: Box::new(move |block| absmax.at(block)) });
        }
        check(&absmax, &[blocks], Element::Code(Code::U8))?;
        let nested = size("nested_blocksize").ok_or_else(|| state.invalid("it has no nested_blocksize"))?;
        let offset = state_of.get("nested_offset").and_then(Value::as_f64);
        let offset = offset.ok_or_else(|| state.invalid("it has no nested_offset"))? as f32;
        let map = Numbers::read(&tensors.find(&format!("{name}.nested_quant_map"))?, &[256], tensors)?;
        let outer = tensors.find(&format!("{name}.nested_absmax"))?;
        let outer = Numbers::read(&outer, &[blocks.div_ceil(nested)], tensors)?;
        let codes = tensors.files.bytes(&absmax.name)?;
        let scale = move |block: usize| map.at(usize::from(codes[block])) * outer.at(block / nested) + offset;
        Ok(Self { block, levels, shape, scale: Box::new(scale) })
    }

    fn matrix(self, slice: &Slice, codes: &Tensor<'a>, tensors: Tensors<'a>) -> Result<CodeMatrix<'a>, LoadError> {
        let shape = whole_shape(slice).ok_or_else(|| codes.misshapen(slice.stored_shape()))?;
        let [rows, cols] = shape;
        let stored = codes.shape.iter().product::<usize>();
        if stored != (rows * cols).div_ceil(2) {
            return Err(codes.misshapen(vec![(rows * cols).div_ceil(2), 1]));
        }
        let is_other = |said: Vec<u64>| slice.location.stack.is_none() && said != [rows as u64, cols as u64];
        if self.shape.is_some_and(is_other) {
            return Err(codes.invalid("its quant_state has another shape than config.json implies"));
        }
        // Blocks follow each other over the ends of rows: `group` columns have the same block in every row.
        let (group, block) = (greatest_common_divisor(cols, self.block), self.block);
        let (bytes, scale) = (tensors.files.bytes(&codes.name)?, self.scale);
        let scale: OfGroup<'a, f32> = Box::new(move |row, column| scale((row * cols + column * group) / block));
        Ok(CodeMatrix {
            shape,
            bits: CodeBits::Four,
            group,
            scale_type: DType::F32,
            codes: StoredCodes::Each(Box::new(move |row, columns, out| {
                for (col, code) in columns.zip(out) {
                    let at = row * cols + col;
                    *code = bytes[at / 2] >> (4 - at % 2 * 4) & 15;
                }
            })),
            scale,
            meaning: Meaning::Levels(self.levels),
            groups: None,
            input: InputRounding::None,
            upright: slice.location.stack.is_some(),
        })
    }
}
