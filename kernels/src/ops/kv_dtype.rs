//! The element type of a KV cache, which is neither what is computed in nor what weights are stored as.

use super::DType;

/// Element type of keys and values in a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum KvDType {
    /// Numbers as they are computed.
    Float(DType),
    /// 8-bit floats, see [`crate::e4m3`].
    E4m3,
}

impl KvDType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::Float(dtype) => dtype.size(),
            Self::E4m3 => 1,
        }
    }

    /// As kernels and people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Float(dtype) => dtype.name(),
            Self::E4m3 => "e4m3",
        }
    }
}

impl From<DType> for KvDType {
    fn from(dtype: DType) -> Self {
        Self::Float(dtype)
    }
}

impl PartialEq<DType> for KvDType {
    fn eq(&self, other: &DType) -> bool {
        *self == Self::Float(*other)
    }
}
