//! `squeezellm` (arXiv 2306.07629): codes of four bits, each row with sixteen levels of its own; and a sparse matrix of
//! what lies far from them, which is added.
//!
//! ```text
//! X.qweight       [in / 8, out]  int32: eight inputs a word, least significant first
//! X.lookup_table  [out, 16]
//! X.rows          [out + 1]      int32: where each row's begins in
//! X.cols          [count]        int32: inputs, and
//! X.vals          [count]        what is added there
//! ```
//! A weight with a sparse part is decoded while it loads.

use std::borrow::Cow;

use kernels::ops::{ALL_COLUMNS, CodeBits, DType, InputRounding};
use model_spec::{ConfigError, ConfigFile};

use super::grouped::{CodeMatrix, GroupedMethod, Meaning};
use super::packed::{Numbers, check, read_words, stem, whole_shape};
use super::stored_codes::{StoredCodes, words};
use super::{Quantization, Quantized};
use crate::error::LoadError;
use crate::weights::{Chunk, Code, Element, Fetched, Slice, Stored, Tensors};

pub(super) fn read(config: &ConfigFile) -> Result<Quantized, ConfigError> {
    if config.size_or("wbits", 4)? != 4 {
        return Err(config.unsupported("wbits", "only 4 bits are supported"));
    }
    Ok(Quantized { weights: Some(Box::new(SqueezeLlm)), ..Quantized::default() })
}

/// The method.
struct SqueezeLlm;

impl GroupedMethod for SqueezeLlm {
    fn find<'a>(&self, slice: &Slice, tensors: Tensors<'a>) -> Result<Option<CodeMatrix<'a>>, LoadError> {
        let Some(stem) = stem(slice, tensors) else { return Ok(None) };
        let Some(weights) = tensors.get(&format!("{stem}qweight")) else { return Ok(None) };
        let table = tensors.find(&format!("{stem}lookup_table"))?;
        let shape = whole_shape(slice).ok_or_else(|| weights.misshapen(slice.stored_shape()))?;
        let [outputs, inputs] = shape;
        if let Some(full) = tensors.get(&format!("{stem}full_rows")).filter(|full| !full.shape.contains(&0)) {
            return Err(full.invalid("dense rows beside the sparse part are not supported"));
        }
        let codes = read_words(&weights, [words(inputs, 4), outputs], tensors)?;
        let levels = Numbers::read(&table, &[outputs, 16], tensors)?;
        Ok(Some(CodeMatrix {
            shape,
            bits: CodeBits::Four,
            group: ALL_COLUMNS,
            scale_type: DType::F32,
            codes: StoredCodes::along_columns(codes, [outputs, inputs, 4]),
            scale: Box::new(|_, _| 1.0),
            meaning: Meaning::RowLevels(Box::new(move |row| std::array::from_fn(|i| levels.at(row * 16 + i)))),
            groups: None,
            input: InputRounding::None,
            upright: false,
        }))
    }
}

impl Quantization for SqueezeLlm {
    fn check(&self, slice: &Slice, tensors: Tensors<'_>) -> Result<Option<Stored>, LoadError> {
        let Some(matrix) = self.find(slice, tensors)? else { return Ok(None) };
        Ok(Some(match Sparse::find(slice, matrix.shape, tensors)? {
            Some(_) => Stored::plain(DType::F32, slice.elements()),
            None => matrix.stored(slice),
        }))
    }

    fn fetch<'a>(&self, slice: &Slice, tensors: Tensors<'a>) -> Result<Option<Fetched<'a>>, LoadError> {
        let Some(matrix) = self.find(slice, tensors)? else { return Ok(None) };
        let Some(sparse) = Sparse::find(slice, matrix.shape, tensors)? else {
            return Ok(Some(matrix.fetch(slice, tensors.threads)));
        };
        // Added in stored order, before the slice is turned.
        let upright = slice.upright();
        let mut bytes = matrix.decode(&upright, tensors.threads);
        sparse.add(&upright, &mut bytes);
        let bytes = if slice.location.transposed { upright.turned(&bytes) } else { bytes };
        Ok(Some(Fetched::Plain(Chunk { dtype: DType::F32, bytes: Cow::Owned(bytes) })))
    }

    fn is_decoded(&self) -> bool {
        false
    }
}

/// What is added to a weight: rows in compressed form.
struct Sparse<'a> {
    rows: Vec<usize>,
    cols: Vec<usize>,
    values: Numbers<'a>,
}

impl<'a> Sparse<'a> {
    fn find(slice: &Slice, shape: [usize; 2], tensors: Tensors<'a>) -> Result<Option<Self>, LoadError> {
        let Some(stem) = stem(slice, tensors) else { return Ok(None) };
        let [Some(rows), Some(cols), Some(values)] =
            ["rows", "cols", "vals"].map(|end| tensors.get(&format!("{stem}{end}")))
        else {
            return Ok(None);
        };
        let whole = |name: &str| -> Result<Vec<usize>, LoadError> {
            let bytes = tensors.files.bytes(name)?;
            Ok(bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes) as usize).collect())
        };
        let count = cols.shape.iter().product::<usize>();
        check(&rows, &[shape[0] + 1], Element::Code(Code::I32))?;
        check(&cols, &[count], Element::Code(Code::I32))?;
        let values = Numbers::read(&values, &[count], tensors)?;
        let (starts, inputs) = (whole(&rows.name)?, whole(&cols.name)?);
        if !starts.is_sorted() || starts.last() != Some(&count) {
            return Err(rows.invalid("its numbers do not ascend to the count of cols"));
        }
        if inputs.iter().any(|input| *input >= shape[1]) {
            return Err(cols.invalid("it names an input that is not there"));
        }
        Ok(Some(Self { rows: starts, cols: inputs, values }))
    }

    /// To a slice's f32, row-major.
    fn add(&self, slice: &Slice, bytes: &mut [u8]) {
        let width = slice.cols.len();
        for (at, row) in slice.rows.clone().enumerate() {
            let row = slice.location.rows.stored(row);
            for index in self.rows[row]..self.rows[row + 1] {
                let Some(col) = self.cols[index].checked_sub(slice.cols.start).filter(|col| *col < width) else {
                    continue;
                };
                let place = &mut bytes.as_chunks_mut::<4>().0[at * width + col];
                *place = (f32::from_le_bytes(*place) + self.values.at(index)).to_le_bytes();
            }
        }
    }
}
