//! Tensors of random codes, as checkpoints of a quantisation method have them.

use ::safetensors::Dtype;
use kernels::ops::{ALL_COLUMNS, DType, mix};

use super::cast::narrow;

/// A weight that is made up as a method stores it.
pub(crate) struct RandomWeight<'a> {
    /// Its plain tensor's name.
    pub name: &'a str,
    /// How many matrices lie in it, where they are stacked.
    pub experts: Option<usize>,
    /// Output features and input features of each.
    pub shape: [usize; 2],
    /// What plain numbers are stored as.
    pub dtype: DType,
    /// It is a `Conv1D`'s.
    pub conv1d: bool,
}

/// What stands for a weight.
pub(crate) enum Made {
    /// Its plain tensor.
    Plain,
    Tensors(Vec<RandomTensor>),
    /// The method does not know.
    Unknown,
    /// Loading would refuse them, for this reason.
    Refused(&'static str),
}

/// A tensor and what it holds.
pub(crate) struct RandomTensor {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub content: Content,
}

/// What a tensor's bytes are.
pub(crate) enum Content {
    /// Each is one of these, drawn.
    Drawn(Box<[u8; 256]>),
    /// These, over and over.
    Repeated(Vec<u8>),
    /// These.
    Given(Vec<u8>),
}

impl RandomWeight<'_> {
    /// What names of tensors beside the weight's own begin with.
    pub(crate) fn stem(&self) -> &str {
        self.name.strip_suffix("weight").unwrap_or(self.name)
    }

    /// Groups of `group` input features.
    pub(crate) fn groups(&self, group: usize) -> usize {
        if group == ALL_COLUMNS { 1 } else { self.shape[1].div_ceil(group) }
    }

    /// With which numbers like these have a variance of one over the input features.
    pub(crate) fn scale(&self, numbers: &[f32]) -> f32 {
        let squares: f32 = numbers.iter().map(|number| number * number).sum();
        (self.shape[1] as f32 * squares / numbers.len() as f32).sqrt().recip()
    }

    /// The same of integers of so many bits, see [`integers`].
    pub(crate) fn integer_scale(&self, bits: usize) -> f32 {
        let middle = 1_i32 << (bits - 1);
        let numbers: Vec<f32> = (0..1 << bits)
            .map(|code: i32| if code == 0 && is_moved(bits) { 0.0 } else { (code - middle) as f32 })
            .collect();
        self.scale(&numbers)
    }
}

impl RandomTensor {
    /// Drawn bytes.
    pub(crate) fn drawn(name: String, dtype: Dtype, shape: Vec<usize>, table: [u8; 256]) -> Self {
        Self { name, dtype, shape, content: Content::Drawn(Box::new(table)) }
    }

    /// The same number everywhere.
    pub(crate) fn filled(name: String, dtype: DType, shape: Vec<usize>, value: f32) -> Self {
        let mut bytes = Vec::new();
        narrow(std::iter::once(value), dtype, &mut bytes);
        Self { name, dtype: element_type(dtype), shape, content: Content::Repeated(bytes) }
    }

    /// Words of codes that are all the same.
    pub(crate) fn words(name: String, shape: Vec<usize>, code: u32, bits: usize) -> Self {
        // 32 codes fill whole words, whatever their bits.
        let mut bytes = vec![0_u8; bits * 4];
        for bit in (0..32 * bits).filter(|bit| code >> (bit % bits) & 1 == 1) {
            bytes[bit / 8] |= 1 << (bit % 8);
        }
        Self { name, dtype: Dtype::I32, shape, content: Content::Repeated(bytes) }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bitsize() / 8
    }
}

impl Content {
    /// Fills `out` with the bytes from `start` on, which lies at a multiple of eight.
    pub(crate) fn fill(&self, key: u64, start: usize, out: &mut [u8]) {
        match self {
            Self::Given(bytes) => out.copy_from_slice(&bytes[start..start + out.len()]),
            Self::Repeated(bytes) => {
                let cycle = bytes.iter().cycle().skip(start % bytes.len());
                out.iter_mut().zip(cycle).for_each(|(out, byte)| *out = *byte);
            }
            Self::Drawn(table) => {
                for (draw, out) in out.chunks_mut(8).enumerate() {
                    let bits = mix(key.wrapping_add((start / 8 + draw) as u64)).to_le_bytes();
                    out.iter_mut().zip(bits).for_each(|(out, byte)| *out = table[usize::from(byte)]);
                }
            }
        }
    }
}

/// Whether codes of so many bits, which fit a byte whole, have their lowest one moved to the middle: then their mean
/// is zero.
fn is_moved(bits: usize) -> bool {
    8 % bits == 0
}

/// Bytes of unsigned integers of so many bits.
pub(crate) fn integers(bits: usize) -> [u8; 256] {
    let (mask, middle) = (((1_u32 << bits) - 1) as u8, 1_u8 << (bits - 1));
    std::array::from_fn(|byte| {
        let byte = byte as u8;
        if !is_moved(bits) {
            return byte;
        }
        (0..8 / bits).fold(0, |all, at| {
            let code = byte >> (at * bits) & mask;
            all | (if code == 0 { middle } else { code }) << (at * bits)
        })
    })
}

/// The type of plain numbers in a file.
pub(crate) fn element_type(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::Bf16 => Dtype::BF16,
        DType::F16 => Dtype::F16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_no_mean() {
        for bits in [2, 4, 8] {
            let (mask, middle) = ((1_i32 << bits) - 1, 1_i32 << (bits - 1));
            let codes = integers(bits).map(|byte| (i32::from(byte) & mask) - middle);
            assert_eq!(codes.iter().sum::<i32>(), 0, "{bits}");
        }
        assert_eq!(integers(3), std::array::from_fn(|byte| byte as u8));
    }

    #[test]
    fn content_is_the_same_in_pieces() {
        let contents = [
            Content::Drawn(Box::new(integers(4))),
            Content::Repeated(vec![1, 2, 3]),
            Content::Given((0..64).collect()),
        ];
        for content in contents {
            let (mut whole, mut part) = (vec![0; 64], vec![0; 20]);
            content.fill(7, 0, &mut whole);
            content.fill(7, 40, &mut part);
            assert_eq!(whole[40..60], part[..]);
        }
    }
}
