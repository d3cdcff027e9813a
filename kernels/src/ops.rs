//! The seam between the decoder and a device: handles to device memory, and one method per fused operation.
//!
//! Activations are row-major `[rows, width]`; a step's rows are the tokens of all its sequences, one after the other (a ragged batch).
//! Handles stand for device memory, so nothing above this file owns any.
//! Shapes are checked by the backend, by the rules of `ops/shapes.rs`; a mismatch is a bug above it and panics with both shapes.

mod attention;
mod handles;
mod host;
mod limits;
mod mixture;
mod noise;
mod recording;
mod recurrent;
mod shapes;

use crate::choose::{Choice, ChoiceRow, Sampled, Ticket};
pub use attention::{Attention, ExpectedAttention, Heads, KvScales, KvShape, Rope, RopeStyle};
pub use handles::{Act, ExpertChoice, KvLayer, Matrix, MatrixGroup, Table, Vector};
pub use host::HostMatrix;
pub use limits::ShapeLimits;
pub use mixture::{ExpertGroups, GatedExperts, RouterScore, Routing};
pub use noise::{Noise, NoiseRows, mix};
pub use recording::{Recordable, Timing};
pub use recurrent::{Cols, Conv, DeltaInput, DeltaRule, Scan, ScanInput, State};
pub use shapes::{check_experts, check_product};

/// Element type of stored weights and of the KV cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum DType {
    /// IEEE single.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE half.
    F16,
    /// [`crate::e4m3`]: of a KV cache alone.
    E4m3,
}

impl DType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::E4m3 => 1,
        }
    }

    /// As kernels and people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::E4m3 => "e4m3",
        }
    }
}

/// The ragged batch of one step.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Token ids of all rows `[num_tokens]`, or what stands for a slot's last token ([`crate::choose::last_token`]).
    pub tokens: &'a [u32],
    /// Position of each row in its sequence `[num_tokens]`.
    pub positions: &'a [u32],
    /// One entry per sequence, in row order.
    pub sequences: &'a [Sequence<'a>],
}

/// One sequence's part of a [`Batch`].
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    /// First row of the batch that belongs to it.
    pub first_row: usize,
    /// Rows in this step.
    pub num_rows: usize,
    /// Position of the first row: tokens already in the cache.
    pub start: usize,
    /// Block tables, one a group of layers: entry `i` of each is the physical block that holds positions `i * block_size ..`. An entry
    /// that lies wholly behind a layer's window may be any block; nobody looks there.
    pub tables: &'a [Vec<u32>],
    /// Its row in every [`State`]; sequences of one batch differ in it. Means nothing to models without states.
    pub slot: usize,
}

/// Normalisation over the width of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NormKind {
    /// `x / sqrt(mean(x^2) + eps) * w`.
    Rms,
    /// `(x - mean) / sqrt(var + eps) * w + b`.
    Layer,
}

/// A norm's parameters.
#[derive(Clone, Copy, Debug)]
pub struct Norm {
    /// Which norm.
    pub kind: NormKind,
    /// Scale; absent: 1. (`1 + w` conventions are folded in at load.)
    pub weight: Option<Vector>,
    /// Shift; absent: 0.
    pub bias: Option<Vector>,
    /// Epsilon.
    pub eps: f32,
}

/// Gate functions of MLPs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// Gaussian error linear unit, exact.
    Gelu,
    /// Its tanh approximation.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)^2`.
    ReluSquared,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// `y * sigmoid(1.702 y)` with `y = min(x, limit)`; where it gates, the other half counts as `clamp(up, -limit, limit) + 1` (gpt-oss).
    ClampedSwiGlu {
        /// Bound.
        limit: f32,
    },
}

/// Where heads lie in a row: the first from column `first` on, each `stride` columns after the one before.
#[derive(Clone, Copy, Debug)]
pub struct HeadColumns {
    /// First column.
    pub first: usize,
    /// Columns from one head to the next.
    pub stride: usize,
}

/// What happens to a product before it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Epilogue {
    /// `out = x w^T (+ bias)`.
    Store,
    /// `out += x w^T (+ bias)`: the residual add.
    Accumulate,
}

/// Some rows of a step: those whose logits are wanted.
#[derive(Clone, Copy, Debug)]
pub struct RowSelection<'a> {
    /// Row indices into the batch, ascending.
    pub rows: &'a [u32],
}

/// A rank of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Which one.
    pub rank: usize,
    /// Ranks in the group.
    pub size: usize,
}

/// Tells all ranks this rank's bytes, and returns those of all, in rank order. All give as many bytes at a time.
pub type Exchange<'a> = &'a mut dyn FnMut(&[u8]) -> Result<Vec<Vec<u8>>, String>;

/// A device's own memory, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceMemory {
    /// Not taken by anybody.
    pub free: u64,
    /// All of it.
    pub total: u64,
}

/// A device: owns weights, activations and KV memory, and runs the operations of a forward pass in order.
///
/// Guarantee: a row's results depend only on that row's inputs (and its sequence's cache), bit for bit, never on which or how many other
/// rows share the step, nor on how its sequence was cut into chunks.
pub trait Backend: Send {
    /// For people: "cpu (amx, 2 threads)".
    fn describe(&self) -> String;
    /// Why the device can no longer be used. From then on operations do nothing and what is read means nothing.
    fn fault(&self) -> Option<&str> {
        None
    }

    /// How much memory the device has and how much of it is free; absent where it is the machine's own.
    fn memory(&self) -> Option<DeviceMemory> {
        None
    }

    /// The largest shapes that it computes.
    fn limits(&self) -> ShapeLimits {
        ShapeLimits::NONE
    }

    /// Layers with such attention will be loaded: what computes them may be compiled meanwhile.
    fn expect_attention(&mut self, expected: ExpectedAttention) {
        let _ = expected;
    }

    /// Takes a weight matrix into device memory, packing it as the device likes. `compute` is the activation type it will meet:
    /// with `Bf16` the backend may round inputs to bf16, with `F32` it must not.
    fn load_matrix(&mut self, source: HostMatrix<'_>, compute: DType) -> Matrix {
        self.load_stack(&[source], compute)
    }
    /// The same for a matrix whose rows lie in several places, one piece below the other: all of one width and element type.
    fn load_stack(&mut self, pieces: &[HostMatrix<'_>], compute: DType) -> Matrix;
    /// Takes a lookup table.
    fn load_table(&mut self, source: HostMatrix<'_>) -> Table;
    /// The rows of a matrix as a lookup table, in the same memory (tied embeddings).
    fn table_of(&mut self, matrix: Matrix) -> Table;
    /// Makes a weight matrix of random numbers where it will lie, as [`Backend::load_matrix`] takes a stored one; absent where only the host
    /// can make them.
    fn make_matrix(&mut self, noise: Noise<'_>, compute: DType) -> Option<Matrix> {
        let _ = (noise, compute);
        None
    }
    /// The same for a lookup table.
    fn make_table(&mut self, noise: Noise<'_>) -> Option<Table> {
        let _ = noise;
        None
    }
    /// Takes a vector of f32.
    fn load_vector(&mut self, values: &[f32]) -> Vector;
    /// Makes one handle of matrices that were loaded with equal shapes, element types and computing types; they stay usable alone.
    fn group_matrices(&mut self, members: &[Matrix]) -> MatrixGroup;
    /// Makes room for the choices of up to `max_rows` rows, `top_k` each.
    fn new_expert_choice(&mut self, max_rows: usize, top_k: usize) -> ExpertChoice;
    /// Allocates activations for up to `max_rows` rows, in f32.
    fn new_act(&mut self, max_rows: usize, width: usize) -> Act;
    /// The same for values that only feed products and attention: the backend may round them to `precision`.
    fn new_rounded_act(&mut self, max_rows: usize, width: usize, precision: DType) -> Act {
        let _ = precision;
        self.new_act(max_rows, width)
    }
    /// Allocates KV memory, once; it answers with table 0.
    fn new_kv(&mut self, shape: KvShape) -> KvLayer;
    /// Allocates one layer's recurrent states: `slots` rows of `len` f32.
    fn new_state(&mut self, slots: usize, len: usize) -> State;
    /// Copies whole blocks within a memory: `from[i]` to `to[i]`.
    fn copy_blocks(&mut self, kv: KvLayer, from: &[u32], to: &[u32]);

    /// Starts a step: rows of all later operations are this batch's tokens.
    fn begin(&mut self, batch: Batch<'_>);
    /// The same for a step of one row a sequence: the device may add rows of no sequence, up to a number of rows that it would record
    /// ([`Backend::set_recordable`]). They come last, in every buffer, and mean nothing.
    fn begin_padded(&mut self, batch: Batch<'_>) {
        self.begin(batch);
    }
    /// `out[row] = table[token(row) - first_entry]`, zero for tokens outside the table (vocabulary-parallel embedding); times `scale`.
    fn embed(&mut self, table: Table, first_entry: u32, scale: f32, out: Act);
    /// `x[row] += table[position(row) + offset]` (learned positions). The entries exist.
    fn add_positions(&mut self, table: Table, offset: usize, x: Act);
    /// `out = norm(x)`; `out` may be `x`.
    fn norm(&mut self, x: Act, norm: Norm, out: Act);
    /// `residual += delta; out = norm(residual)`.
    fn add_norm(&mut self, residual: Act, delta: Act, norm: Norm, out: Act);
    /// Norm of each head of `x`'s columns `first_col .. first_col + heads * dim`, in place (q/k norm). The norm's vectors are `[dim]`, for
    /// all heads, or `[heads * dim]`, each head's own.
    fn head_norm(&mut self, x: Act, first_col: usize, heads: usize, dim: usize, norm: Norm);
    /// `out = x w^T + bias`, or accumulated.
    fn matmul(&mut self, x: Act, w: Matrix, bias: Option<Vector>, epilogue: Epilogue, out: Act);
    /// `out = activation(gate) * up`, where `gate_up` holds `[gate | up]` in each row: the product that came last. A device may do both in
    /// one, so what is in `gate_up` afterwards means nothing.
    fn gated(&mut self, gate_up: Act, activation: Activation, out: Act);
    /// `x = activation(x)`.
    fn activate(&mut self, x: Act, activation: Activation);
    /// `x *= activation(gate)`, with as many columns of `gate` as `x` has.
    fn gate(&mut self, x: Act, gate: Cols, activation: Activation);
    /// Convolves `conv.channels` columns of `x` along each sequence, into the whole of `out`; see [`Conv`].
    fn causal_conv(&mut self, x: Cols, conv: Conv, out: Act);
    /// See [`Scan`]; `out` is `[rows, heads * head_dim]`.
    fn selective_scan(&mut self, input: ScanInput, scan: Scan, out: Act);
    /// See [`DeltaRule`]; `out` is `[rows, value_heads * value_dim]`.
    fn delta_rule(&mut self, input: DeltaInput, rule: DeltaRule, out: Act);
    /// Rotates q and k of `qkv` (`[q | k | v]` in each row; `rope` absent: no rotation) in place, and writes k and v to the cache.
    fn rope_and_cache(&mut self, qkv: Act, heads: Heads, rope: Option<Rope>, kv: KvLayer);
    /// Causal attention of the batch's q (in `qkv`) over the paged cache; `out` is `[rows, heads.q * heads.v_dim]`. With a bf16 cache the
    /// backend may round queries and softmax weights to bf16; with an f32 cache it must not. `only`: the rows that are looked at later, about one of
    /// each sequence; the others of `out` may hold anything.
    fn attention(&mut self, qkv: Act, attention: Attention, kv: KvLayer, only: Option<RowSelection<'_>>, out: Act);
    /// Chooses each row's experts: `logits` is `[rows, experts]`. A row of NaN chooses some experts, all different, like any other.
    fn route(&mut self, logits: Act, routing: Routing, out: ExpertChoice);
    /// The product of each row with each of its experts, as one operation: with `k = top_k` and `e` the row's choice at `slot`,
    /// `out[row * k + slot] = x[row] w[e]^T + bias[e]`, or `x[row * k + slot] w[e]^T + bias[e]` where `x` has a row for every choice.
    /// `bias` is `[experts, out_features]`. Reads the weights of chosen experts only.
    fn expert_matmul(&mut self, x: Act, w: MatrixGroup, bias: Option<Vector>, choice: ExpertChoice, out: Act);
    /// [`Backend::expert_matmul`], whose rows `[gate | up]` give `out = activation(gate) * up`.
    fn gated_experts(&mut self, x: Act, experts: GatedExperts, choice: ExpertChoice, out: Act) {
        self.expert_matmul(x, experts.w, experts.bias, choice, experts.raised);
        self.gated(experts.raised, experts.activation, out);
    }
    /// `out[row] = sum over slots of weight[row][slot] * x[row * top_k + slot]`, slots in ascending order; or added to `out`.
    fn combine(&mut self, x: Act, choice: ExpertChoice, epilogue: Epilogue, out: Act);
    /// `x[row] *= sigmoid(gate[row])`; `gate` has one column.
    fn gate_rows(&mut self, x: Act, gate: Act);
    /// A product for each head, as one operation: `out`'s columns of head `h` are `x`'s columns of head `h` times `w[h]^T`. The number of
    /// heads is the group's, the widths are its matrices'.
    fn head_matmul(&mut self, x: Act, from: HeadColumns, w: MatrixGroup, out: Act, to: HeadColumns);
    /// Copies `heads` pieces of `width` columns of each row from `x` to `out`, which keeps its other columns.
    fn copy_columns(&mut self, x: Act, from: HeadColumns, out: Act, to: HeadColumns, heads: usize, width: usize);
    /// `x += y` (all rows).
    fn add(&mut self, x: Act, y: Act);
    /// `x = min(max(x, -limit), limit)`; a NaN stays one.
    fn clamp(&mut self, x: Act, limit: f32);
    /// `x *= factor`.
    fn scale(&mut self, x: Act, factor: f32);
    /// `x = cap * tanh(x / cap)`.
    fn soft_cap(&mut self, x: Act, cap: f32);
    /// `out[i] = x[rows[i]]`; later operations on `out` see `rows.len()` rows.
    fn gather(&mut self, x: Act, selection: RowSelection<'_>, out: Act);
    /// The rows of `x` on the host, for reading: `[rows, width]`. Waits for the device.
    fn read(&mut self, x: Act) -> &[f32];
    /// The same for writing: what a host-side collective works on.
    fn host_mut(&mut self, x: Act) -> &mut [f32];

    /// Whether devices of several ranks can meet ([`Backend::join`]). Where not, the host carries what ranks exchange.
    fn can_join(&self) -> bool {
        false
    }
    /// Meets the devices of a group's other ranks, for the two operations that follow. Once in a backend's life; all ranks call it.
    fn join(&mut self, place: Place, exchange: Exchange<'_>) -> Result<(), String> {
        let _ = exchange;
        Err(format!("rank {} of {}: this backend leaves to the host what ranks exchange", place.rank, place.size))
    }
    /// `x = sum over ranks of x`, the same bits on all of them. Every rank calls it with a buffer of the same shape, after joining.
    fn sum_over_ranks(&mut self, x: Act) {
        unreachable!("{x:?} of a backend that cannot join others");
    }
    /// `out[row] = [x[row] of rank 0 | x[row] of rank 1 | ...]`, cut to `out`'s width. Called like [`Backend::sum_over_ranks`].
    fn gather_over_ranks(&mut self, x: Act, out: Act) {
        unreachable!("{x:?} and {out:?} of a backend that cannot join others");
    }

    /// Makes room for the sequences of `count` slots, empty, over logits of `vocab` columns. Steps under way must have been taken.
    fn set_slots(&mut self, count: usize, vocab: usize);
    /// Whether [`Backend::choose`] can do all of this. What it cannot do, the host does on rows that were read.
    fn can_choose(&self, choice: &Choice) -> bool;
    /// Another sequence begins in a slot. `counts` has every token of it so far and how often it occurs in the output (0: in the prompt
    /// only), when there are penalties.
    fn set_slot(&mut self, slot: u32, choice: &Choice, counts: &[(u32, u32)]);
    /// Ends a step: chooses tokens from rows of `logits` (any act when there are no rows), makes each its slot's last token, and counts it
    /// for penalties. Does not wait for the device. At most [`crate::choose::STEPS_IN_FLIGHT`] steps may be ended and not taken.
    ///
    /// The same logits and settings give the same token whatever else is in the batch.
    fn choose(&mut self, logits: Act, rows: &[ChoiceRow]) -> Ticket;
    /// Whether [`Backend::take`] would not have to wait.
    fn is_done(&mut self, ticket: Ticket) -> bool;
    /// Waits for a step and appends what its rows gave to `out`, in the order of the rows. To be called once a ticket, in order.
    fn take(&mut self, ticket: Ticket, out: &mut Vec<Sampled>);

    /// Numbers of rows, ascending, of the steps that the device should record, to replay them as a whole: steps of one row a sequence whose
    /// tokens it chooses. None: it records nothing. A device that cannot record ignores this.
    fn set_recordable(&mut self, rows: &[usize]) {
        let _ = rows;
    }
    /// Bytes that recordings of as many kinds of steps may take, of a model with so many layers.
    fn recording_bytes(&self, kinds: usize, layers: usize) -> u64 {
        let _ = (kinds, layers);
        0
    }
    /// What to record next; absent when there is nothing (more) to record.
    fn next_recording(&self) -> Option<Recordable> {
        None
    }
    /// From here on nothing runs: operations are recorded, from [`Backend::begin_padded`] with a batch of rows without sequences, to
    /// [`Backend::choose`] without rows, whose ticket is not taken. Such a step must have run.
    fn start_recording(&mut self) {}
    /// Keeps what was recorded, or says why steps cannot be: then nothing will be recorded any more.
    fn end_recording(&mut self) -> Result<(), String> {
        Ok(())
    }
    /// Does a whole step, from [`Backend::begin_padded`] to [`Backend::choose`], from a recording. Row `i` is that of sequence `i`, and
    /// `rows[i]` chooses from its logits. Absent, and nothing happens, without such a recording.
    fn replay(&mut self, batch: Batch<'_>, rows: &[ChoiceRow]) -> Option<Ticket> {
        let _ = (batch, rows);
        None
    }

    /// Does a piece of what steps to come would otherwise wait for when they first need it (loading and measuring kernels), of a few milliseconds at
    /// most where nothing has to be loaded; whether there may be more of it. No step may be under way, and what activations and logits hold
    /// is lost.
    fn prepare(&mut self) -> bool {
        false
    }

    /// From here on the device notes when everything that it does begins and ends. What overlapped before may not do so any more.
    fn start_profile(&mut self) {}
    /// Stops that, waits for the device, and returns what it did, in order; nothing for a device that cannot tell.
    fn end_profile(&mut self) -> Vec<Timing> {
        Vec::new()
    }
}
