//! What recurrent mixers load alike.

use std::ops::Range;

use kernels::ops::{State, Vector};

use crate::builder::Builder;
use crate::error::LoadError;
use crate::weights::{LayerParam, ParamId, ParamKind, Role, Slice};

/// Stands in for a state until memory is given out.
pub(super) const NOT_YET: State = State(u32::MAX);

/// A convolution's weights, stored `[channels, 1, kernel]`, as `[kernel, channels]` of these channels.
pub(super) fn taps(
    builder: &mut Builder<'_>,
    index: usize,
    kernel: usize,
    channels: usize,
    mine: &[Range<usize>],
) -> Result<Vector, LoadError> {
    let id = ParamId::Layer(index, LayerParam::Taps);
    let slices: Vec<Slice> = (mine.iter())
        .map(|part| part.start * kernel..part.end * kernel)
        .map(|rows| builder.vector_slice(id, ParamKind::Weight, channels * kernel, rows, Role::Scale))
        .collect();
    let turned = |stored: Vec<f32>| {
        let count = stored.len() / kernel;
        (0..kernel)
            .flat_map(|tap| (0..count).map(move |channel| (tap, channel)))
            .map(|(t, c)| stored[c * kernel + t])
            .collect()
    };
    builder.store.vector_of(&slices, &turned)
}

/// Rates of decay, stored as the logarithm of their negative.
pub(super) fn decay(
    builder: &mut Builder<'_>,
    index: usize,
    len: usize,
    rows: Range<usize>,
) -> Result<Vector, LoadError> {
    let slice =
        builder.vector_slice(ParamId::Layer(index, LayerParam::Decay), ParamKind::Weight, len, rows, Role::Shift);
    builder.store.vector_of(&[slice], &|stored| stored.into_iter().map(|log| -log.exp()).collect())
}

/// A vector of a layer, as it is stored.
pub(super) struct StoredVector {
    pub param: LayerParam,
    pub kind: ParamKind,
    /// Elements of all ranks.
    pub len: usize,
    pub role: Role,
}

/// This rank's part of a vector of a layer.
pub(super) fn vector(
    builder: &mut Builder<'_>,
    index: usize,
    stored: StoredVector,
    rows: &[Range<usize>],
) -> Result<Vector, LoadError> {
    let StoredVector { param, kind, len, role } = stored;
    let id = ParamId::Layer(index, param);
    let slices: Vec<Slice> = rows.iter().map(|rows| builder.vector_slice(id, kind, len, rows.clone(), role)).collect();
    builder.store.vector(&slices, 0.0)
}
