//! Handles to what a backend holds: plain numbers that only the backend that gave them understands.

use super::attention::KvScales;

/// An activation buffer `[max_rows, width]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Act(pub u32);

/// A weight matrix `[out_features, in_features]`, in the backend's own packing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Matrix(pub u32);

/// A lookup table `[entries, width]`, rows addressable one by one (embeddings).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Table(pub u32);

/// A vector of f32 (norm weights, biases, sinks).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vector(pub u32);

/// Matrices of one shape and element type: a layer's experts, or one for each attention head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MatrixGroup(pub u32);

/// Which experts the rows of a step chose, and with what weights: `[max_rows, top_k]` of both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExpertRouting(pub u32);

/// Paged K and V, and which of a sequence's block tables leads into it. Layers with different tables may share one
/// memory, since no two tables name the same block.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct KvLayer {
    /// The memory; [`Load::new_kv`](super::Load::new_kv) gives it.
    pub memory: u32,
    /// Index into [`Sequence::tables`](super::Sequence::tables).
    pub table: u32,
    /// Of the layer's keys and values.
    pub scales: KvScales,
    /// Of each K/V head, times those of the layer, in a cache of 8-bit floats.
    pub head_scales: Option<HeadScales>,
}

/// Scales of the keys and values of each K/V head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeadScales {
    /// Of keys.
    pub key: Vector,
    /// Of values.
    pub value: Vector,
}
