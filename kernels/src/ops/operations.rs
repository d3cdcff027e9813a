//! The operations of a forward pass, at the grain of fused kernels.

use super::{
    Act, Activation, Attention, Batch, CaptureOwner, Cols, Conv, DeltaInput, DeltaRule, Epilogue, ExpertRouting,
    GatedExperts, HeadColumns, Heads, KvLayer, LatentAttention, Matrix, MatrixGroup, Norm, Rope, Routing, RowMeans,
    RowSelection, Scan, ScanInput, Table, Vector,
};

/// Runs the operations of a forward pass in order.
///
/// Shapes are checked by the backend, by the rules of `ops/shapes.rs`; a mismatch is a bug of the caller and panics
/// with both shapes.
pub trait Ops {
    /// Starts a step: rows of all later operations are this batch's tokens.
    fn begin(&mut self, batch: Batch<'_>);
    /// The same for a step of one row a sequence: the device may add padding rows up to a capture size of this owner
    /// ([`Capture::set_capture_sizes`](super::Capture::set_capture_sizes)). They come last in every buffer, and their
    /// values are undefined.
    fn begin_padded(&mut self, owner: CaptureOwner, batch: Batch<'_>) {
        let _ = owner;
        self.begin(batch);
    }
    /// `out[row] = table[token(row) - first_entry]`, zero for tokens outside the table (vocabulary-parallel embedding);
    /// times `scale`.
    fn embed(&mut self, table: Table, first_entry: u32, scale: f32, out: Act);
    /// `x[row] += table[position(row) + offset]` (learned positions). The entries exist.
    fn add_positions(&mut self, table: Table, offset: usize, x: Act);
    /// `x[row] += table[entries[row]]` (types of tokens). The entries exist, one a row.
    fn add_entries(&mut self, table: Table, entries: &[u32], x: Act);
    /// `out = norm(x)`; `out` may be `x`.
    fn norm(&mut self, x: Act, norm: Norm, out: Act);
    /// `residual += delta; out = norm(residual)`. The content of `delta` is undefined afterwards.
    fn add_norm(&mut self, residual: Act, delta: Act, norm: Norm, out: Act);
    /// `x = norm(x + delta)`. The content of `delta` is undefined afterwards.
    fn add_norm_in_place(&mut self, x: Act, delta: Act, norm: Norm) {
        self.add(x, delta);
        self.norm(x, norm, x);
    }
    /// Norm of each head of `x`'s columns `first_col .. first_col + heads * dim`, in place (q/k norm). The norm's
    /// vectors are `[dim]`, for all heads, or `[heads * dim]`, each head's own.
    fn head_norm(&mut self, x: Act, first_col: usize, heads: usize, dim: usize, norm: Norm);
    /// `out = x w^T + bias`, or accumulated.
    fn matmul(&mut self, x: Act, w: Matrix, bias: Option<Vector>, epilogue: Epilogue, out: Act);
    /// `out = activation(x w^T + bias)`.
    fn matmul_activated(&mut self, x: Act, w: Matrix, bias: Option<Vector>, activation: Activation, out: Act) {
        self.matmul(x, w, bias, Epilogue::Store, out);
        self.activate(out, activation);
    }
    /// `out = activation(gate) * up`, where `gate_up` holds `[gate | up]` in each row. The content of `gate_up` is
    /// undefined afterwards.
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
    /// Rotates q and k of `qkv` (`[q | k | v]` in each row; `rope` absent: no rotation) in place, and writes k and v to
    /// the cache.
    fn rope_and_cache(&mut self, qkv: Act, heads: Heads, rope: Option<Rope>, kv: KvLayer);
    /// Attention of the batch's q (in `qkv`) over the paged cache; `out` is `[rows, heads.q * heads.v_dim]`.
    /// With a bf16 cache the backend may round queries and softmax weights to bf16; with an f32 cache it must not.
    /// `only`: the rows that are read later, about one of each sequence; the values of other rows are undefined.
    fn attention(&mut self, qkv: Act, attention: Attention, kv: KvLayer, only: Option<RowSelection<'_>>, out: Act);
    /// Latent attention; `out` is `[rows, heads * value_dim]`. A device may attend to keys and values of each head that
    /// it makes anew from the cache, instead of attending in the latent space. `only`: as for [`Ops::attention`].
    fn latent_attention(&mut self, latent: LatentAttention, only: Option<RowSelection<'_>>, out: Act) {
        latent.absorbed_form(self, only, out);
    }
    /// Routes each row to experts: `logits` is `[rows, experts]`. A row of NaN gets some experts, all different, like
    /// any other row.
    fn route(&mut self, logits: Act, routing: Routing, out: ExpertRouting);
    /// The grouped GEMM of a MoE layer: with `k = top_k` and `e` the row's expert at `slot`,
    /// `out[row * k + slot] = x[row] w[e]^T + bias[e]`, or `x[row * k + slot] w[e]^T + bias[e]` where `x` has a row for
    /// every (row, slot). `bias` is `[experts, out_features]`. Reads the weights of routed experts only.
    fn expert_matmul(&mut self, x: Act, w: MatrixGroup, bias: Option<Vector>, routing: ExpertRouting, out: Act);
    /// [`Ops::expert_matmul`], whose rows `[gate | up]` give `out = activation(gate) * up`.
    fn gated_experts(&mut self, x: Act, experts: GatedExperts, routing: ExpertRouting, out: Act) {
        self.expert_matmul(x, experts.w, experts.bias, routing, experts.raised);
        self.gated(experts.raised, experts.activation, out);
    }
    /// `out[row] = sum over slots of weight[row][slot] * x[row * top_k + slot]`, slots in ascending order; or added to
    /// `out`.
    fn combine(&mut self, x: Act, routing: ExpertRouting, epilogue: Epilogue, out: Act);
    /// `x[row] *= sigmoid(gate[row])`; `gate` has one column.
    fn gate_rows(&mut self, x: Act, gate: Act);
    /// A GEMM for each head, as one operation: `out`'s columns of head `h` are `x`'s columns of head `h` times
    /// `w[h]^T`. The number of heads is the group's, the widths are its matrices'.
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
    /// `out[i]` is the mean over some rows of `x`, which is in f32; later operations on `out` see as many rows as there
    /// are means.
    fn mean_rows(&mut self, x: Act, means: RowMeans<'_>, out: Act) {
        let firsts: Vec<u32> = means.ranges.iter().map(|range| range.start as u32).collect();
        let computed = means.compute(self.read(x));
        self.gather(x, RowSelection { rows: &firsts }, out);
        self.host_mut(out).copy_from_slice(&computed);
    }
    /// Copies whole KV blocks within a memory: `from[i]` to `to[i]`.
    fn copy_blocks(&mut self, kv: KvLayer, from: &[u32], to: &[u32]);
    /// The rows of `x` on the host, for reading: `[rows, width]`. Waits for the device.
    fn read(&mut self, x: Act) -> &[f32];
    /// The same for writing: for collectives on the host.
    fn host_mut(&mut self, x: Act) -> &mut [f32];
}
