//! How checkpoints ask for the inputs of a layer to be rounded.

use kernels::ops::{ALL_COLUMNS, InputRounding};

use crate::error::LoadError;
use crate::weights::{Slice, Tensors};

/// How a layer's inputs are rounded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum InputScheme {
    /// Not at all.
    None,
    /// To 8-bit floats, with a scale that is stored.
    Static,
    /// To 8-bit floats, each row with a scale of its own.
    PerToken,
    /// To 8-bit floats; each group of this many columns has a scale of its own.
    PerGroup(usize),
    /// To integers of 8 bits, with a scale that is stored.
    StaticInt8,
    /// To integers of 8 bits, each row with a scale of its own.
    PerTokenInt8 {
        /// Elements of at least this size stay.
        outliers: f32,
    },
}

/// The stored scale that random weights come with: activations are about one.
const DUMMY_SCALE: f32 = 1.0 / 64.0;

impl InputScheme {
    /// Beside random weights.
    pub(super) fn dummy(self) -> InputRounding {
        match self {
            Self::None => InputRounding::None,
            Self::Static => InputRounding::Static(DUMMY_SCALE),
            Self::PerToken => InputRounding::Dynamic { cols: ALL_COLUMNS },
            Self::PerGroup(cols) => InputRounding::Dynamic { cols },
            Self::StaticInt8 => InputRounding::StaticInt8(DUMMY_SCALE),
            Self::PerTokenInt8 { outliers } => InputRounding::DynamicInt8 { outliers },
        }
    }

    /// With the slice's stored scale, where there is one.
    pub(super) fn rounding(self, slice: &Slice, tensors: Tensors<'_>) -> Result<InputRounding, LoadError> {
        let stored = || tensors.scalar(&input_scale(slice));
        Ok(match self {
            Self::Static => InputRounding::Static(stored()?),
            Self::StaticInt8 => InputRounding::StaticInt8(stored()?),
            other => other.dummy(),
        })
    }
}

/// The name of a layer's stored scale of inputs.
pub(super) fn input_scale(slice: &Slice) -> String {
    let stem = slice.location.tensor.strip_suffix("weight").unwrap_or(&slice.location.tensor);
    format!("{stem}input_scale")
}
