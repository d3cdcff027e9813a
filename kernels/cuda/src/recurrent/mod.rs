//! States of slots, and what walks along sequences: `causal_conv.cu`, `selective_scan.cu`, `delta_rule.cu`; and
//! `gate.cu`.

use cudarc::driver::sys::CUdeviceptr;

use crate::CudaBackend;
use crate::fusion::op::Op;
use crate::jit::layouts::twin;
use crate::layers::elementwise::Function;
use crate::runtime::activations::View;
use crate::runtime::batch::Batch;
use crate::runtime::context::Memory;
use crate::runtime::device::{Device, Name, Shape, args};
use kernels::ops::{self, Act, Activation};

/// Rows of a chunk of a convolution, and channels of a block.
const CHUNK: usize = 64;
const CHANNELS: usize = 128;
/// Values of a channel that a lane keeps at most; how many it should, for many lanes to work.
const EACH: usize = 8;
const EACH_SHOULD: usize = 4;
/// Most lanes of a channel, and values that it remembers.
const LANES: usize = 32;
pub(crate) const STATE_DIM: usize = EACH * LANES;
/// Columns of a state of the delta rule that a warp keeps, and the widest key.
const COLUMNS: usize = 8;
pub(crate) const KEY_DIM: usize = 256;
/// Threads of a block of the scans.
const THREADS: usize = 128;

/// One layer's states: `[slots, len]` f32.
pub(crate) struct States {
    memory: Option<Memory>,
    slots: usize,
    len: usize,
}

impl States {
    pub(crate) fn new(device: &mut Device, slots: usize, len: usize) -> Self {
        let memory = device.allocate(slots * len * size_of::<f32>(), "recurrent states");
        if let Some(memory) = &memory {
            device.clear(memory);
        }
        Self { memory, slots, len }
    }

    /// Where they are; each of the batch's slots must have one.
    fn ptr(&self, batch: &Batch) -> CUdeviceptr {
        batch.check_slots(self.slots);
        self.memory.as_ref().map_or(0, |memory| memory.ptr)
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
}

twin!(Conv = "Conv" { state, taps, bias, channels, kernel });

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
    };
    let shape = Shape { grid: [channels.div_ceil(CHANNELS), batch.chunks(CHUNK)], block: CHANNELS, shared: 0 };
    let name = Name::of("causal_conv", &[out.dtype]);
    device.launch(name, shape, args![x.columns(channels, out), parameters, batch.pointers, out.ptr]);
}

/// What a scan reads.
pub(crate) struct ScanInput {
    pub(crate) x: Cols,
    pub(crate) dt: Cols,
    pub(crate) b: Cols,
    pub(crate) c: Cols,
}

/// A scan with its vectors.
pub(crate) struct ScanCall {
    pub(crate) scan: ops::Scan,
    pub(crate) decay: Values,
    pub(crate) skip: Values,
    pub(crate) dt_bias: Option<Values>,
}

/// `struct Scan` of selective_scan.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scan {
    state: CUdeviceptr,
    decay: CUdeviceptr,
    skip: CUdeviceptr,
    dt_bias: CUdeviceptr,
    least_dt: f32,
    most_dt: f32,
    heads: u32,
    head_dim: u32,
    groups: u32,
    state_dim: u32,
    each_value: u32,
    lanes: u32,
}

twin!(Scan = "Scan" {
    state, decay, skip, dt_bias, least_dt, most_dt, heads, head_dim, groups, state_dim, each_value, lanes,
});

/// See [`ops::Scan`].
pub(crate) fn selective_scan(
    device: &mut Device,
    input: ScanInput,
    ScanCall { scan, decay, skip, dt_bias }: ScanCall,
    states: &States,
    batch: &Batch,
    out: View,
) {
    let ops::Scan { heads, head_dim, groups, state_dim, dt_limit, .. } = scan;
    scan.check([decay.len, skip.len], dt_bias.map(|bias| bias.len), states.len);
    assert!(state_dim <= STATE_DIM, "{state_dim} values a channel");
    let lanes = state_dim.div_ceil(EACH_SHOULD).next_power_of_two().min(LANES);
    let parameters = Scan {
        state: states.ptr(batch),
        decay: decay.ptr,
        skip: skip.ptr,
        dt_bias: dt_bias.map_or(0, |bias| bias.ptr),
        least_dt: dt_limit.0,
        most_dt: dt_limit.1,
        heads: heads as u32,
        head_dim: head_dim as u32,
        groups: groups as u32,
        state_dim: state_dim as u32,
        each_value: u32::from(decay.len != heads),
        lanes: lanes as u32,
    };
    let columns = [
        input.x.columns(heads * head_dim, out),
        input.dt.columns(heads, out),
        input.b.columns(groups * state_dim, out),
        input.c.columns(groups * state_dim, out),
    ];
    let blocks = (heads * head_dim * lanes).div_ceil(THREADS);
    let shape = Shape { grid: [blocks, batch.sequences()], block: THREADS, shared: 0 };
    let name = Name::of("selective_scan", &[out.dtype]);
    device.launch(name, shape, args![columns, parameters, batch.pointers, out.ptr]);
}

/// What the delta rule reads.
pub(crate) struct DeltaInput {
    pub(crate) qkv: Cols,
    pub(crate) beta: Cols,
    pub(crate) dt: Cols,
}

/// `struct Rule` of delta_rule.cu.
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
}

twin!(Rule = "Rule" { state, rate, dt_bias, key_heads, value_heads, key_dim, value_dim });

/// A delta rule with its vectors.
pub(crate) struct DeltaCall {
    pub(crate) rule: ops::DeltaRule,
    pub(crate) rate: Values,
    pub(crate) dt_bias: Values,
}

/// See [`ops::DeltaRule`].
pub(crate) fn delta_rule(
    device: &mut Device,
    input: DeltaInput,
    DeltaCall { rule, rate, dt_bias }: DeltaCall,
    states: &States,
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
    };
    let columns = [
        input.qkv.columns(rule.row_width(), out),
        input.beta.columns(value_heads, out),
        input.dt.columns(value_heads, out),
    ];
    let blocks = (value_heads * value_dim.div_ceil(COLUMNS) * 32).div_ceil(THREADS);
    let shape = Shape { grid: [blocks, batch.sequences()], block: THREADS, shared: 0 };
    let name = Name::of("delta_rule", &[out.dtype]);
    device.launch(name, shape, args![columns, parameters, batch.pointers, out.ptr]);
}

/// `x *= activation(gate)`.
pub(crate) fn gate(device: &mut Device, x: View, gate: Cols, activation: Activation) {
    let gates = gate.columns(x.width, x);
    let name = Name::of("gate", &[x.dtype]);
    let (function, width) = (Function::from(activation), x.width as u32);
    device.launch(name, Shape::rows(x.rows, x.width), args![x.ptr, gates.first, function, width, gates.width]);
}

/// Operations with a state, whose handles become addresses here.
impl CudaBackend {
    pub(crate) fn gate_columns(&mut self, x: Act, gates: ops::Cols, activation: Activation) {
        assert_ne!(x, gates.act, "columns that gate themselves");
        self.append(Op::Opaque("gate"));
        let (x, gates) = (self.acts.view(x), self.cols(gates));
        gate(&mut self.device, x, gates, activation);
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
        selective_scan(&mut self.device, input, call, states, &self.batch, out);
    }

    pub(crate) fn attend_linearly(&mut self, input: ops::DeltaInput, rule: ops::DeltaRule, out: Act) {
        let ops::DeltaInput { qkv, beta, dt } = input;
        assert!([qkv, beta.act, dt.act].iter().all(|act| *act != out), "linear attention cannot overwrite its input");
        self.append(Op::Opaque("delta_rule"));
        let out = self.acts.target(out, self.batch.rows(), rule.value_heads * rule.value_dim);
        let call = DeltaCall { rule, rate: self.values(rule.rate), dt_bias: self.values(rule.dt_bias) };
        let qkv = self.cols(ops::Cols { act: qkv, first: 0 });
        let input = DeltaInput { qkv, beta: self.cols(beta), dt: self.cols(dt) };
        let states = &self.states[rule.state.0 as usize];
        delta_rule(&mut self.device, input, call, states, &self.batch, out);
    }
}
