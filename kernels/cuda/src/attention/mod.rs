//! Chooses the attention kernels of `kernels/cuda`, and launches the plain one.

pub(crate) mod attention_cascade;
pub(crate) mod attention_decode;
pub(crate) mod attention_decode_mqa;
pub(crate) mod attention_prefill;
pub(crate) mod backend;
pub(crate) mod kv;
pub(crate) mod layer;
pub(crate) mod rope_and_cache;

use std::time::Duration;

use crate::CudaBackend;
use crate::attention::attention_cascade::{Rooms, Units};
use crate::attention::attention_decode::Scratch;
use crate::attention::attention_prefill::{Counter, Hopper, HopperTile};
use crate::attention::kv::Kv;
use crate::attention::layer::{AttentionTypes, HeadDims, HeadScales, Layer, Params, Tensors};
use crate::fusion::op::{self, Op};
use crate::jit::specialization::{HOPPER, LOWEST, Special};
use crate::latent::attention_latent::{self, Latent, Parts, Step};
use crate::options::{AttentionBackend, CascadeAttention};
use crate::runtime::activations::View;
use crate::runtime::batch::{Batch, Rows};
use crate::runtime::device::{Device, Name, Shape, args};
use crate::runtime::shared_prefix::{Least, SharedPrefix, Tables};
use kernels::ops::{self, Act, KvLayer, KvShape, RowSelection, Vector};

/// Threads of a block of the plain kernel.
const THREADS: usize = 128;
/// Widest query head of the plain kernel, which keeps one in shared memory, beside 2 KiB of its own; and so does the
/// rotation before it.
pub(crate) const MOST_DIM: usize = 8192;

/// Some rows of a batch, to be attended to as sequences of their own.
pub(crate) struct Alone<'a> {
    pub(crate) batch: &'a mut Batch,
    pub(crate) rows: &'a [u32],
}

/// What attention keeps between launches.
#[derive(Debug)]
pub(crate) struct Attention {
    scratch: Option<(Scratch, Counter)>,
    /// What latent attention leaves between its kernels, once a layer was seen that has it.
    latent: Option<Parts>,
    /// What cascade attention leaves, once a layer was seen that it is for.
    units: Option<Units>,
    backend: AttentionBackend,
    cascade: CascadeAttention,
    /// Kernels of cascade attention for the layers seen so far, and the block tables of these.
    cascade_kernels: Vec<(Special, usize)>,
    cascade_tables: Vec<usize>,
}

impl Attention {
    /// With the kernels that are asked for.
    pub(crate) fn new(backend: AttentionBackend, cascade: CascadeAttention) -> Self {
        let (cascade_kernels, cascade_tables) = (Vec::new(), Vec::new());
        Self { scratch: None, latent: None, units: None, backend, cascade, cascade_kernels, cascade_tables }
    }

    /// Whether steps may attend to a shared prefix once.
    pub(crate) fn cascades(&self) -> bool {
        self.cascade != CascadeAttention::Never && self.backend != AttentionBackend::Plain
    }

    /// What a step's sequences share, if it is to be attended to once: where that pays, and its kernels are compiled.
    /// Where only that is missing, they are compiled meanwhile.
    pub(crate) fn shared_prefix(
        &self,
        device: &mut Device,
        batch: ops::Batch<'_>,
        caches: &[Kv],
    ) -> Option<SharedPrefix> {
        let (tables, least) = match self.cascade {
            _ if !self.cascades() => return None,
            CascadeAttention::Always => (Tables::All, Least::ANY),
            _ => (Tables::Some(&self.cascade_tables), Least::paying(token_bytes(caches))),
        };
        let block_size = caches.iter().map(|kv| kv.shape.block_size).min()?;
        let found = SharedPrefix::find(batch.sequences, tables, block_size, least)?;
        let is_missing = |&&(special, _): &&(Special, usize)| !device.is_compiled(special, Duration::ZERO);
        let missing: Vec<(Special, usize)> = self.cascade_kernels.iter().filter(is_missing).copied().collect();
        if self.cascade == CascadeAttention::Always || missing.is_empty() {
            return Some(found);
        }
        missing.into_iter().for_each(|(special, shared)| device.wish(special, shared));
        None
    }

    /// The kernels that were asked for.
    pub(crate) fn backend(&self) -> AttentionBackend {
        self.backend
    }

    /// How prompts are read by the kernel for Hopper, where it serves.
    fn hopper<'a>(&self, device: &Device, kv: &'a Kv) -> Option<Hopper<'a>> {
        Hopper::of(device, kv).filter(|_| self.backend.may_be_hopper())
    }

    pub(crate) fn run(&mut self, device: &mut Device, qkv: View, params: Params, batch: &Batch, kv: &Kv, out: View) {
        let layer = Layer::new(qkv, params, batch, kv);
        let tensors = Tensors::new(qkv, kv, out);
        let done = match self.latent(device, tensors, layer, kv) {
            Some(latent) => self.run_latent(device, latent, Step::of(batch, layer.q_heads as usize)),
            None => self.fast(device, tensors, layer, batch, kv),
        };
        if !done {
            plain(device, tensors, layer, batch);
        }
    }

    /// Attention of some rows alone (see [`Batch::alone`]), from and to the views of `io`; false, and nothing happens,
    /// where that is not to be had.
    pub(crate) fn run_alone(
        &mut self,
        device: &mut Device,
        io: [View; 2],
        params: Params,
        alone: Alone<'_>,
        kv: &Kv,
    ) -> bool {
        let ([qkv, out], Alone { batch, rows }) = (io, alone);
        let layer = Layer::new(qkv, params, batch, kv);
        let tensors = Tensors::new(qkv, kv, out);
        if let Some(latent) = self.latent(device, tensors, layer, kv) {
            let Some(alone) = batch.alone(device, rows) else { return false };
            return self.run_latent(device, latent, Step::of_rows(alone, layer.q_heads as usize));
        }
        if self.backend == AttentionBackend::Plain
            || !fits(device, tensors, layer, kv)
            || !attention_decode::fits(device, tensors, layer, rows.len())
        {
            return false;
        }
        let Some(alone) = batch.alone(device, rows) else { return false };
        self.prepare(device);
        let Some((scratch, _)) = &self.scratch else { return true };
        attention_decode::run(device, scratch, tensors, layer, alone)
    }

    /// Latent attention, where its kernels are for a layer.
    fn latent<'a>(&self, device: &Device, tensors: Tensors, layer: Layer, kv: &'a Kv) -> Option<Latent<'a>> {
        let latent = Latent { tensors, layer, kv };
        let serves = self.backend != AttentionBackend::Plain && latent.fits((&*device.context).into());
        serves.then_some(latent)
    }

    /// Of all rows; false where that cannot be here.
    pub(crate) fn run_latent(&mut self, device: &mut Device, latent: Latent<'_>, step: Step) -> bool {
        if self.latent.is_none() {
            self.latent = Parts::new(device);
        }
        let Some(parts) = &self.latent else { return true };
        attention_latent::run(device, parts, latent, step)
    }

    fn prepare(&mut self, device: &mut Device) {
        if self.scratch.is_none() {
            self.scratch = Scratch::new(device).zip(Counter::new(device));
        }
    }

    /// Notes which kernels cascade attention of a layer takes, and makes room for what they leave.
    fn prepare_cascade(&mut self, device: &mut Device, tensors: Tensors, layer: &Layer, table: usize) {
        if !self.cascades() || device.is_capturing() || !attention_cascade::takes(device, layer) {
            return;
        }
        if self.units.as_ref().is_none_or(|units| !units.are_for(device, layer.dims())) {
            self.units = Units::new(device, layer.dims());
        }
        for kernel in attention_cascade::kernels(tensors.types(), layer) {
            if !self.cascade_kernels.contains(&kernel) {
                self.cascade_kernels.push(kernel);
            }
        }
        if !self.cascade_tables.contains(&table) {
            self.cascade_tables.push(table);
        }
    }

    /// Sequences with one row; false where that cannot be here.
    fn decode(&mut self, device: &mut Device, tensors: Tensors, layer: Layer, batch: &Batch) -> bool {
        self.prepare_cascade(device, tensors, &layer, batch.table());
        let Some((scratch, _)) = &self.scratch else { return true };
        let units = self.units.as_ref().filter(|_| batch.shares_prefix());
        units.is_some_and(|units| attention_cascade::run(device, Rooms { scratch, units }, tensors, layer, batch))
            || attention_decode::run(device, scratch, tensors, layer, batch.all())
    }

    /// The kernels for rows of 16-bit types, which between them do all rows; false where one of them cannot.
    fn fast(&mut self, device: &mut Device, tensors: Tensors, layer: Layer, batch: &Batch, kv: &Kv) -> bool {
        if self.backend == AttentionBackend::Plain || !fits(device, tensors, layer, kv) {
            return false;
        }
        self.prepare(device);
        let Some((_, counter)) = &self.scratch else { return true };
        if !batch.has(Rows::Several) {
            attention_prefill::wish(device, tensors, layer, self.hopper(device, kv).as_ref());
        }
        (!batch.has(Rows::Several)
            || attention_prefill::run(device, counter, tensors, layer, self.hopper(device, kv), batch))
            && (!batch.has(Rows::One) || self.decode(device, tensors, layer, batch))
    }
}

impl CudaBackend {
    /// See [`ops::Ops::attention`].
    pub(crate) fn attend(
        &mut self,
        qkv: Act,
        attention: ops::Attention,
        kv: KvLayer,
        only: Option<RowSelection<'_>>,
        out: Act,
    ) {
        assert_ne!(qkv, out, "attention cannot overwrite its input");
        let qkv = self.acts.view(qkv);
        let out = self.acts.target(out, qkv.rows, attention.heads.q * attention.heads.v_dim);
        let params = self.attention_params(attention, kv);
        let (cache, only) = (self.cache(kv), only.map(|only| self.pass.keep_rows(only.rows)));
        self.append(Op::Attention(op::Attention { qkv, attention, params, kv, cache, only, out }));
    }

    /// A layer's attention with its vectors looked up.
    pub(crate) fn attention_params(&self, attention: ops::Attention, kv: KvLayer) -> Params {
        let length = |vector: Vector| self.vectors[vector.0 as usize].len;
        attention.check(attention.sinks.map(length), attention.alibi.map(length));
        let table = attention.relative.map(|bias| bias.table);
        attention.check_relative(table.map(length));
        let (sinks, alibi, relative) = (self.vector(attention.sinks), self.vector(attention.alibi), self.vector(table));
        let layer = ops::Attention { scale: attention.scale * kv.scales.key, ..attention };
        let head_scales = self.head_scales(kv);
        Params { layer, value_scale: kv.scales.value, sinks, alibi, relative, head_scales }
    }

    /// Where the scales of a cache's heads lie, as many as it has heads.
    pub(crate) fn head_scales(&self, kv: KvLayer) -> HeadScales {
        let heads = self.caches[kv.memory as usize].shape.kv_heads;
        let at = |scales: Vector| {
            let scales = &self.vectors[scales.0 as usize];
            assert_eq!(scales.len, heads, "scales of heads");
            scales.ptr()
        };
        kv.head_scales
            .map_or(HeadScales::default(), |scales| HeadScales { key: at(scales.key), value: at(scales.value) })
    }
}

/// Bytes of a layer's keys and values of a token.
fn token_bytes(caches: &[Kv]) -> usize {
    let bytes = |KvShape { kv_heads, head_dim, v_head_dim, dtype, .. }: KvShape| {
        kv_heads * (head_dim + v_head_dim) * dtype.size()
    };
    caches.iter().map(|kv| bytes(kv.shape)).max().unwrap_or(0)
}

/// Whether the fast kernels are for such a layer.
fn fits(device: &Device, tensors: Tensors, layer: Layer, kv: &Kv) -> bool {
    let Tensors { qkv, out, .. } = tensors;
    device.context.arch >= LOWEST
        && are_fast(tensors.types(), layer.dims())
        && out.dtype == qkv.dtype
        && !kv.shape.shared
        && kv.shape.block_size.is_multiple_of(16)
}

/// Whether the fast kernels are for rows and a cache of these types, and heads of these widths.
pub(crate) fn are_fast(types: AttentionTypes, HeadDims { dim, v_dim }: HeadDims) -> bool {
    types.are_short() && [dim, v_dim].iter().all(|dim| dim.is_multiple_of(16) && *dim <= 256)
}

/// Tokens of a block that a kernel reads at once by the copy engine, if one does so with a cache of this shape.
pub(crate) fn mapped_tokens(device: &Device, shape: KvShape) -> Option<usize> {
    if shape.shared {
        return attention_latent::mapped_tokens((&*device.context).into(), shape);
    }
    let KvShape { block_size, head_dim, v_head_dim, dtype, .. } = shape;
    let heads = HeadDims { dim: head_dim, v_dim: v_head_dim };
    let tile = HopperTile::of(heads, dtype, block_size);
    tile.filter(|_| device.context.arch == HOPPER && dtype.size() == 2).map(|tile| tile.copied_tokens(block_size))
}

fn plain(device: &mut Device, tensors: Tensors, layer: Layer, batch: &Batch) {
    let Tensors { qkv, keys, values, cache, out } = tensors;
    let name = Name::of("attention", &[qkv.dtype, out.dtype]).with_cache(cache);
    let shared = layer.dim as usize * size_of::<f32>();
    let shape = Shape { grid: [qkv.rows, layer.q_heads as usize], block: THREADS, shared };
    device.launch(name, shape, args![qkv.ptr, batch.pointers, layer, keys, values, out.ptr]);
}
