//! States of slots, and what walks along sequences: `causal_conv.cu`, `selective_scan.cu`, `delta_rule.cu` (in chunks:
//! `delta_chunks`).

pub(crate) mod delta_chunks;
pub(crate) mod delta_steps;
pub(crate) mod scan_chunks;
pub(crate) mod scan_steps;
pub(crate) mod selective_scan;

use cudarc::driver::sys::CUdeviceptr;

use crate::CudaBackend;
use crate::fusion::op::{ColumnGate, Op};
use crate::jit::layouts::twin;
use crate::options::LinearAttention;
use crate::runtime::activations::View;
use crate::runtime::batch::Batch;
use crate::runtime::context::Memory;
use crate::runtime::device::{Device, Name, Shape, args};
use delta_chunks::{ChunkScratch, ChunkedCall};
use kernels::ops::{self, Act, Activation, DType};
use selective_scan::{Places, ScanCall, ScanInput};

/// Rows of a chunk of a convolution, and the number that a row sees where a thread has four channels.
const CHUNK: usize = 64;
const FOURS_KERNEL: usize = 4;
/// Widest key of the delta rule, keys and columns of a state that a lane keeps, and threads of a block.
pub(crate) const KEY_DIM: usize = 256;
const RULE_KEYS: usize = 8;
const RULE_COLUMNS: usize = 4;
const RULE_THREADS: usize = 64;
/// Threads of a block of the others.
const THREADS: usize = 128;

/// One layer's states: `[slots, len]`.
pub(crate) struct States {
    memory: Option<Memory>,
    slots: usize,
    len: usize,
    dtype: DType,
}

impl States {
    pub(crate) fn new(device: &mut Device, slots: usize, len: usize, dtype: DType) -> Self {
        let memory = device.allocate(slots * len * dtype.size(), "recurrent states");
        if let Some(memory) = &memory {
            device.clear(memory);
        }
        Self { memory, slots, len, dtype }
    }

    /// Where they are; each of the batch's slots must have one.
    fn ptr(&self, batch: &Batch) -> CUdeviceptr {
        batch.check_slots(self.slots);
        self.memory.as_ref().map_or(0, |memory| memory.ptr)
    }
}

/// `enum StateType` of recurrent.cuh.
const fn state_type(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 0,
        DType::Bf16 => 1,
        DType::F16 => 2,
    }
}

/// A vector with its length.
#[derive(Clone, Copy)]
pub(crate) struct Values {
    pub(crate) ptr: CUdeviceptr,
    pub(crate) len: usize,
}

/// Columns of a buffer from `first` on.
#[derive(Clone, Copy)]
pub(crate) struct Cols {
    pub(crate) view: View,
    pub(crate) first: usize,
}

/// `struct Columns` of recurrent.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Columns {
    first: CUdeviceptr,
    width: u32,
}

twin!(Columns = "Columns" { first, width });

impl Columns {
    /// Whether rows begin at multiples of `bytes`.
    fn is_aligned(&self, bytes: usize, dtype: DType) -> bool {
        self.first.is_multiple_of(bytes as u64) && (self.width as usize * dtype.size()).is_multiple_of(bytes)
    }
}

impl Cols {
    /// `count` columns of as many rows as `out` has, in its element type.
    fn columns(&self, count: usize, out: View) -> Columns {
        let Self { view, first } = *self;
        assert!(first + count <= view.width, "columns {first}..{} of {}", first + count, view.width);
        assert_eq!((view.rows, view.dtype), (out.rows, out.dtype), "rows and element type of what a scan reads");
        Columns { first: view.ptr + (first * view.dtype.size()) as u64, width: view.width as u32 }
    }
}

/// `struct Conv` of causal_conv.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conv {
    state: CUdeviceptr,
    taps: CUdeviceptr,
    bias: CUdeviceptr,
    channels: u32,
    kernel: u32,
    state_type: u32,
}

twin!(Conv = "Conv" { state, taps, bias, channels, kernel, state_type });

/// A convolution with its vectors.
pub(crate) struct ConvCall {
    pub(crate) conv: ops::Conv,
    pub(crate) taps: Values,
    pub(crate) bias: Option<Values>,
}

/// See [`ops::Conv`].
pub(crate) fn causal_conv(
    device: &mut Device,
    x: Cols,
    ConvCall { conv, taps, bias }: ConvCall,
    states: &States,
    batch: &Batch,
    out: View,
) {
    let ops::Conv { channels, kernel, .. } = conv;
    conv.check(taps.len, bias.map(|bias| bias.len), states.len);
    let parameters = Conv {
        state: states.ptr(batch),
        taps: taps.ptr,
        bias: bias.map_or(0, |bias| bias.ptr),
        channels: channels as u32,
        kernel: kernel as u32,
        state_type: state_type(states.dtype),
    };
    let x = x.columns(channels, out);
    let fours = kernel == FOURS_KERNEL && channels.is_multiple_of(4) && x.is_aligned(4 * out.dtype.size(), out.dtype);
    let (function, channels) = if fours { ("causal_conv_fours", channels / 4) } else { ("causal_conv", channels) };
    let shape = Shape { grid: [channels.div_ceil(THREADS), batch.chunks(CHUNK)], block: THREADS, shared: 0 };
    let name = Name::in_file("causal_conv", function, &[out.dtype]);
    device.launch(name, shape, args![x, parameters, batch.pointers, out.ptr]);
}

/// What the delta rule reads.
pub(crate) struct DeltaInput {
    pub(crate) qkv: Cols,
    pub(crate) beta: Cols,
    pub(crate) dt: Cols,
}

/// `struct Rule` of delta_rule.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    state: CUdeviceptr,
    rate: CUdeviceptr,
    dt_bias: CUdeviceptr,
    key_heads: u32,
    value_heads: u32,
    key_dim: u32,
    value_dim: u32,
    stepped: u32,
    state_type: u32,
}

twin!(Rule = "Rule" { state, rate, dt_bias, key_heads, value_heads, key_dim, value_dim, stepped, state_type });

/// A delta rule with its vectors.
pub(crate) struct DeltaCall {
    pub(crate) rule: ops::DeltaRule,
    pub(crate) rate: Values,
    pub(crate) dt_bias: Values,
}

/// What a delta rule works in.
pub(crate) struct DeltaMemory<'a> {
    pub(crate) states: &'a States,
    /// Absent: all sequences are walked row by row.
    pub(crate) chunks: Option<&'a mut ChunkScratch>,
}

/// See [`ops::DeltaRule`].
pub(crate) fn delta_rule(
    device: &mut Device,
    input: DeltaInput,
    DeltaCall { rule, rate, dt_bias }: DeltaCall,
    DeltaMemory { states, chunks }: DeltaMemory<'_>,
    batch: &Batch,
    out: View,
) {
    let ops::DeltaRule { key_heads, value_heads, key_dim, value_dim, .. } = rule;
    rule.check(input.qkv.view.width, [rate.len, dt_bias.len], states.len);
    assert!(key_dim <= KEY_DIM, "keys of {key_dim} in linear attention");
    let parameters = Rule {
        state: states.ptr(batch),
        rate: rate.ptr,
        dt_bias: dt_bias.ptr,
        key_heads: key_heads as u32,
        value_heads: value_heads as u32,
        key_dim: key_dim as u32,
        value_dim: value_dim as u32,
        stepped: 0,
        state_type: state_type(states.dtype),
    };
    let columns = [
        input.qkv.columns(rule.row_width(), out),
        input.beta.columns(value_heads, out),
        input.dt.columns(value_heads, out),
    ];
    let mut call = ChunkedCall { rule, parameters, columns };
    if chunks.is_some() && delta_steps::run(device, &call, states.dtype, batch, out) {
        call.parameters.stepped = 1;
    }
    let done = chunks.and_then(|chunks| delta_chunks::run(device, chunks, &call, batch, out));
    let least = call.parameters.stepped as usize * 2;
    if batch.with_rows(least) == batch.with_rows(done.unwrap_or(usize::MAX)) {
        return;
    }
    let too_many = done.map_or(u32::MAX, |rows| rows as u32);
    let warps = value_heads * value_dim.div_ceil(rule_columns(key_dim));
    let grid = [(32 * warps).div_ceil(RULE_THREADS), batch.sequences()];
    let shape = Shape { grid, block: RULE_THREADS, shared: 0 };
    let name = Name::of("delta_rule", &[out.dtype]);
    device.launch(name, shape, args![columns, call.parameters, batch.pointers, too_many, out.ptr]);
}

/// Columns of a state that a warp of `delta_rule.cu` has: so many groups of its lanes share the keys.
fn rule_columns(key_dim: usize) -> usize {
    let groups = key_dim.div_ceil(RULE_KEYS).next_power_of_two().max(8);
    32 / groups * RULE_COLUMNS
}

/// Operations with a state, whose handles become addresses here.
impl CudaBackend {
    pub(crate) fn gate_columns(&mut self, x: Act, gates: ops::Cols, activation: Activation) {
        assert_ne!(x, gates.act, "columns that gate themselves");
        let x = self.acts.view(x);
        let Columns { first, width } = self.cols(gates).columns(x.width, x);
        self.append(Op::Gate(ColumnGate { x, first, width: width as usize, activation }));
    }

    pub(crate) fn convolve(&mut self, x: ops::Cols, conv: ops::Conv, out: Act) {
        assert_ne!(x.act, out, "a convolution cannot overwrite its input");
        self.append(Op::Opaque("causal_conv"));
        let out = self.acts.target(out, self.batch.rows(), conv.channels);
        let bias = conv.bias.map(|bias| self.values(bias));
        let call = ConvCall { conv, taps: self.values(conv.taps), bias };
        let (x, states) = (self.cols(x), &self.states[conv.state.0 as usize]);
        causal_conv(&mut self.device, x, call, states, &self.batch, out);
    }

    pub(crate) fn scan(&mut self, input: ops::ScanInput, scan: ops::Scan, out: Act) {
        let ops::ScanInput { x, dt, b, c } = input;
        assert!([x, dt, b, c].iter().all(|cols| cols.act != out), "a scan cannot overwrite its input");
        self.append(Op::Opaque("selective_scan"));
        let out = self.acts.target(out, self.batch.rows(), scan.heads * scan.head_dim);
        let call = ScanCall {
            scan,
            decay: self.values(scan.decay),
            skip: self.values(scan.skip),
            dt_bias: scan.dt_bias.map(|bias| self.values(bias)),
        };
        let input = ScanInput { x: self.cols(x), dt: self.cols(dt), b: self.cols(b), c: self.cols(c) };
        let states = &self.states[scan.state.0 as usize];
        self.scans.run(&mut self.device, input, call, Places { states, batch: &self.batch, out });
    }

    pub(crate) fn attend_linearly(&mut self, input: ops::DeltaInput, rule: ops::DeltaRule, out: Act) {
        let ops::DeltaInput { qkv, beta, dt } = input;
        assert!([qkv, beta.act, dt.act].iter().all(|act| *act != out), "linear attention cannot overwrite its input");
        self.append(Op::Opaque("delta_rule"));
        let out = self.acts.target(out, self.batch.rows(), rule.value_heads * rule.value_dim);
        let call = DeltaCall { rule, rate: self.values(rule.rate), dt_bias: self.values(rule.dt_bias) };
        let qkv = self.cols(ops::Cols { act: qkv, first: 0 });
        let input = DeltaInput { qkv, beta: self.cols(beta), dt: self.cols(dt) };
        let chunks = (self.linear_attention == LinearAttention::Chunks).then_some(&mut self.chunks);
        let memory = DeltaMemory { states: &self.states[rule.state.0 as usize], chunks };
        delta_rule(&mut self.device, input, call, memory, &self.batch, out);
    }
}
