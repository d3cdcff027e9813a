//! Makes a step's operations the phases of one kernel (kernels/cuda/csrc/whole_step/whole_step.cu), or says why they
//! cannot be.
//!
//! A norm is done by every product of what it gives; a product of rows that the next norm adds to the residual stream
//! adds them itself; a gate is part of its product, and norms of heads and the rotation are part of attention. What is
//! left of a layer is five phases.

use std::collections::HashMap;

use cudarc::driver::sys::CUdeviceptr;

use super::phase::{Input, Kind, Output, Phase, Weights};
use crate::fusion::op::{self, AddNorm, Cache, Gated, Gemm, HeadNorm, Norm, Op, Stored};
use crate::layers::elementwise::Function;
use crate::layers::norm;
use kernels::ops::{self, DType, Epilogue, Heads, KvScales, Rope, RopeStyle};

/// As in the kernel: warps of a block, elements of a piece of a row, sums of a block that have room, the widest row
/// that is normed.
const WARPS: usize = 16;
const PIECE: usize = 1024;
const SUMS: usize = 1024;
const WIDEST: usize = 8192;
/// Query heads of a key head at most, and sizes of heads.
const MOST_GROUP: usize = 8;
const DIMS: [usize; 4] = [16, 32, 64, 128];
/// Keys of a tile, which lie in one block of the cache.
const KEYS: usize = 16;

/// What the kernel is compiled for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    pub(super) dtype: DType,
    pub(super) dim: usize,
    pub(super) v_dim: usize,
    /// Query heads of a key head, and key heads.
    pub(super) group: usize,
    pub(super) kv_heads: usize,
}

impl Shape {
    /// Whether the kernel is for such heads.
    pub(super) fn fits(&self) -> bool {
        self.dtype.size() == 2
            && [self.dim, self.v_dim].iter().all(|dim| DIMS.contains(dim))
            && self.group <= MOST_GROUP
    }
}

/// A step that one kernel can do.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) shape: Shape,
    pub(super) phases: Vec<Phase>,
    pub(super) weights: Vec<Weights>,
}

/// What a buffer holds for those that come later.
#[derive(Clone, Copy, Debug)]
enum Held {
    /// A row, stored.
    Row,
    /// The norm of a row, which is not stored.
    Normed { x: CUdeviceptr, params: norm::Params },
    /// What attention left, perhaps in parts.
    Attended { q_heads: u32 },
}

struct Planner {
    /// Blocks that share the outputs of a product.
    blocks: usize,
    dtype: DType,
    shape: Option<Shape>,
    phases: Vec<Phase>,
    weights: Vec<Weights>,
    held: HashMap<CUdeviceptr, Held>,
}

/// The phases of a step of one row, for `blocks` blocks.
pub(super) fn plan(ops: &[Op], blocks: usize) -> Result<Plan, String> {
    let Some((Op::Embed { table, first_entry, scale, out }, mut rest)) = ops.split_first() else {
        return Err("it does not begin with an embedding".to_owned());
    };
    if table.dtype.size() != 2 || out.dtype != DType::F32 || out.rows != 1 {
        return Err(format!("its embedding is of {} into {} rows", table.dtype.name(), out.rows));
    }
    let mut planner = Planner {
        blocks,
        dtype: table.dtype,
        shape: None,
        phases: vec![Phase {
            scale: *scale,
            first_entry: *first_entry,
            entries: table.rows as u32,
            ..Phase::new(Kind::Embed, table.ptr, out.width, out.ptr)
        }],
        weights: Vec::new(),
        held: HashMap::from([(out.ptr, Held::Row)]),
    };
    while !rest.is_empty() {
        rest = planner.take(rest)?;
    }
    let Planner { shape, phases, weights, .. } = planner;
    let ends = phases.last().is_some_and(|phase| phase.output == Output::Wide);
    let shape = shape.filter(|_| ends).ok_or("it has no attention, or does not end with logits")?;
    Ok(Plan { shape, phases, weights })
}

impl Planner {
    /// Plans for the first operation, and those after it that are done with it; what is left.
    fn take<'a>(&mut self, ops: &'a [Op]) -> Result<&'a [Op], String> {
        let (op, rest) = ops.split_first().expect("an operation");
        match *op {
            Op::Norm(norm) => self.norm(norm).map(|()| rest),
            Op::Gemm(gemm) if gemm.epilogue == Epilogue::Store => self.gemm(&gemm, rest),
            Op::HeadNorm(_) | Op::Rope(_) => self.attention(ops),
            Op::Opaque(name) => Err(format!("one kernel has no {name}")),
            Op::Activate(..) => Err("one kernel has no activation but of a gate".to_owned()),
            Op::Gate(_) => Err("one kernel has no gate of columns".to_owned()),
            Op::AllReduce(..) => Err("one kernel has no all_reduce".to_owned()),
            Op::Lora(_) => Err("one kernel has no adapters".to_owned()),
            _ => Err(format!("nothing before prepares {op:?}")),
        }
    }

    /// A norm is made where it is used.
    fn norm(&mut self, norm: Norm) -> Result<(), String> {
        let Norm { x, params, out } = norm;
        let fits = x.dtype == DType::F32 && out.dtype == self.dtype && x.width <= WIDEST && x.width.is_multiple_of(8);
        if !fits || !matches!(self.held.get(&x.ptr), Some(Held::Row)) {
            return Err(format!("a norm of {} {} to {}", x.width, x.dtype.name(), out.dtype.name()));
        }
        self.held.insert(out.ptr, Held::Normed { x: x.ptr, params });
        Ok(())
    }

    fn gemm<'a>(&mut self, gemm: &Gemm, rest: &'a [Op]) -> Result<&'a [Op], String> {
        let Gemm { x, weights: w, bias_at, out, .. } = *gemm;
        if w.dtype != self.dtype || x.dtype != self.dtype || !w.cols.is_multiple_of(8) {
            return Err(format!("a product of {} with {} columns of {}", x.dtype.name(), w.cols, w.dtype.name()));
        }
        let held = *self.held.get(&x.ptr).ok_or("a product of rows that no operation made")?;
        let mut phase = match held {
            Held::Row => Phase::new(Kind::Product, x.ptr, x.width, out.ptr),
            Held::Normed { x: from, params } => {
                Phase { input: Input::Normed, norm: params, ..Phase::new(Kind::Product, from, x.width, out.ptr) }
            }
            Held::Attended { q_heads } => {
                let phase = Phase::new(Kind::Product, x.ptr, x.width, out.ptr);
                Phase { input: Input::Attended, q_heads, ..phase }
            }
        };
        (phase.bias, phase.matrix) = (bias_at, self.weights.len() as u32);
        let mut rest = rest;
        match rest.first() {
            Some(Op::Gated(Gated { gate_up, activation, out: gated })) if gate_up.ptr == out.ptr => {
                (phase.output, phase.to) = (Output::Gated, gated.ptr);
                phase.activation = Function::from(*activation);
                if gated.dtype != self.dtype || out.dtype != self.dtype {
                    return Err("a gate of another type".to_owned());
                }
                self.held.insert(gated.ptr, Held::Row);
                rest = &rest[1..];
            }
            Some(Op::AddNorm(AddNorm { residual, delta, params, out: normed })) if delta.ptr == out.ptr => {
                if out.dtype != DType::F32 || !matches!(self.held.get(&residual.ptr), Some(Held::Row)) {
                    return Err("a sum of other types".to_owned());
                }
                (phase.output, phase.to) = (Output::Added, residual.ptr);
                // Norms of what the row was are no more.
                self.held.retain(|_, held| !matches!(held, Held::Normed { x, .. } if *x == residual.ptr));
                self.held.remove(&out.ptr);
                self.norm(Norm { x: *residual, params: *params, out: *normed })?;
                rest = &rest[1..];
            }
            None if out.dtype == DType::F32 => phase.output = Output::Wide,
            _ if out.dtype == self.dtype => {
                self.held.insert(out.ptr, Held::Row);
            }
            _ => return Err("a product in f32 that is neither added next nor the last".to_owned()),
        }
        self.share(w, phase.output)?;
        self.phases.push(phase);
        Ok(rest)
    }

    /// Cuts a matrix among blocks and warps.
    fn share(&mut self, w: Stored, output: Output) -> Result<(), String> {
        let halves = if output == Output::Gated { 2 } else { 1 };
        let outputs = w.rows / halves;
        let rows = outputs.div_ceil(self.blocks) * halves;
        let split = if output == Output::Wide { 0 } else { split(rows, w.cols) };
        if output != Output::Wide && rows << split > SUMS {
            return Err(format!("{} outputs for {} blocks", w.rows, self.blocks));
        }
        if u32::try_from(outputs * (self.blocks + 1)).is_err() {
            return Err(format!("{} outputs", w.rows));
        }
        let [outputs, k, halves] = [outputs, w.cols, halves].map(|number| number as u32);
        self.weights.push(Weights { rows: w.ptr, outputs, k, halves, split });
        Ok(())
    }

    /// Norms of heads, the rotation, and attention.
    fn attention<'a>(&mut self, ops: &'a [Op]) -> Result<&'a [Op], String> {
        let norms = ops.iter().take_while(|op| matches!(op, Op::HeadNorm(_))).count();
        let (norms, rest) = ops.split_at(norms);
        let [
            Op::Rope(op::Rope { qkv, heads, rope, cache, .. }),
            Op::Attention(op::Attention { qkv: queries, attention, cache: same, out, .. }),
            rest @ ..,
        ] = rest
        else {
            return Err("norms of heads or a rotation that attention does not follow".to_owned());
        };
        if queries.ptr != qkv.ptr || cache != same || !matches!(self.held.get(&qkv.ptr), Some(Held::Row)) {
            return Err("attention of other rows than those before it".to_owned());
        }
        self.check_attention(attention, cache, [qkv.dtype, out.dtype])?;
        let mut phase = Phase {
            keys: cache.keys,
            values: cache.values,
            first_block: cache.first_block,
            block_shift: cache.shape.block_size.ilog2(),
            q_heads: heads.q as u32,
            kv_heads: heads.kv as u32,
            scale: attention.scale,
            window: attention.window.map_or(u32::MAX, |window| u32::try_from(window).unwrap_or(u32::MAX)),
            ..Phase::new(Kind::Attention, qkv.ptr, qkv.width, out.ptr)
        };
        if let Some((rope, inv_freq)) = rope {
            rotate(&mut phase, rope, *inv_freq, heads.dim)?;
        }
        if let Some((q, k)) = head_norms(norms, qkv.ptr, *heads)? {
            (phase.norm, phase.key_norm, phase.normed) = (q, k, 1);
        }
        self.held.remove(&qkv.ptr);
        // What an earlier layer left is no more.
        self.held.retain(|_, held| !matches!(held, Held::Attended { .. }));
        self.held.insert(out.ptr, Held::Attended { q_heads: phase.q_heads });
        self.phases.push(phase);
        Ok(rest)
    }

    /// Attention's shape is the whole step's.
    fn check_attention(&mut self, attention: &ops::Attention, cache: &Cache, rows: [DType; 2]) -> Result<(), String> {
        let Heads { q, kv, dim, v_dim } = attention.heads;
        let shape = Shape { dtype: self.dtype, dim, v_dim, group: q / kv, kv_heads: kv };
        let bends = attention.alibi.is_some() || attention.relative.is_some();
        let plain = attention.soft_cap.is_none() && attention.sinks.is_none() && !bends;
        let fits = rows == [self.dtype; 2]
            && cache.shape.dtype == self.dtype
            && !cache.shape.shared
            && cache.scales == KvScales::default()
            && cache.shape.block_size.is_multiple_of(KEYS)
            && cache.shape.block_size.is_power_of_two()
            && q.is_multiple_of(kv)
            && shape.fits()
            && kv <= self.blocks
            && *self.shape.get_or_insert(shape) == shape;
        if plain && fits { Ok(()) } else { Err(format!("{attention:?} over a cache of {:?}", cache.shape)) }
    }
}

fn rotate(phase: &mut Phase, rope: &Rope, inv_freq: CUdeviceptr, dim: usize) -> Result<(), String> {
    if rope.rotary_dim > dim || !rope.rotary_dim.is_multiple_of(2) {
        return Err(format!("a rotation of {} of {dim}", rope.rotary_dim));
    }
    phase.inv_freq = inv_freq;
    phase.mscale = rope.mscale;
    phase.rotary_dim = rope.rotary_dim as u32;
    phase.interleaved = u32::from(rope.style == RopeStyle::Interleaved);
    Ok(())
}

/// The norms of all queries and of all keys; none where there are none.
fn head_norms(norms: &[Op], qkv: CUdeviceptr, heads: Heads) -> Result<Option<(norm::Params, norm::Params)>, String> {
    let covers = |op: &Op, first: usize, count: usize| match *op {
        Op::HeadNorm(HeadNorm { x, first_col, heads: several, dim, params, stride: 0 }) => {
            let same = (x.ptr, first_col, several, dim) == (qkv, first, count, heads.dim);
            same.then_some(params)
        }
        _ => None,
    };
    let params = match norms {
        [] => return Ok(None),
        [q, k] => covers(q, 0, heads.q).zip(covers(k, heads.q * heads.dim, heads.kv)),
        _ => None,
    };
    params.map(Some).ok_or_else(|| "norms of some heads, or of several as one".to_owned())
}

/// Warps share each row of a matrix in `2^split` parts, so that with `rows` rows a block none of them has much more to
/// do than others.
fn split(rows: usize, k: usize) -> u32 {
    let pieces = k.div_ceil(PIECE);
    let longest = |split: &u32| (rows << split).div_ceil(WARPS) * pieces.div_ceil(1 << split);
    (0..=pieces.ilog2()).filter(|split| rows << split <= SUMS).min_by_key(longest).unwrap_or(0)
}

#[cfg(test)]
mod tests;
