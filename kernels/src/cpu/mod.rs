//! The CPU backend: one operation a file, each compiled for every instruction set, on a pool of threads that sleeps
//! when idle.

#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "parts serve x86 instruction sets only"))]

mod attention;
mod gemm;
mod layers;
mod lora;
mod moe;
mod recurrent;
mod runtime;
mod sample;
mod simd;

pub use runtime::isa::Isa;
pub use runtime::memory::{MachineMemory, machine_memory};

use crate::decode::IntegerFormat;
use crate::ops::{
    self, Act, Activation, Cols, DType, DeltaInput, Epilogue, ExpertRouting, HeadColumns, HeadScales, Heads,
    HostMatrix, InputRounding, KvLayer, KvScales, Load, Ops,
};
use crate::ops::{ALL_COLUMNS, ColumnOrder, GroupedFormat, MatrixUse, WeightFormat};
use crate::ops::{KvShape, Matrix, MatrixGroup, Norm, Rope, Routing, RowSelection, ScanInput, State, Table, Vector};
use crate::sample::{SampleParams, SampleRow, Sampled, SlotMask, Ticket};
use gemm::{Product, Rows};
use layers::head_matmul::HeadView;
use runtime::activations::ActivationBuffers;
use runtime::pool::Pool;

/// How to build a [`CpuBackend`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads, the caller's included; 0 counts as 1.
    pub threads: usize,
    /// Instruction set; absent: the best this machine has.
    pub isa: Option<Isa>,
}

/// The machine's own processors as a device. Results depend on the instruction set, never on the number of threads.
pub struct CpuBackend {
    isa: Isa,
    pool: Pool,
    acts: ActivationBuffers,
    matrices: Vec<gemm::pack::Packed>,
    groups: Vec<Vec<Matrix>>,
    choices: Vec<moe::route::Choices>,
    tables: Vec<layers::embed::Lookup>,
    vectors: Vec<Vec<f32>>,
    caches: Vec<attention::kv::Kv>,
    states: Vec<recurrent::state::States>,
    batch: runtime::batch::Batch,
    slots: sample::Slots,
    angles: attention::rope_and_cache::Angles,
    matmul: gemm::Scratch,
    attention: attention::Scratch,
    lora: lora::Adapters,
    /// Rounded inputs of products.
    rounded: runtime::memory::Reserve,
    /// Inputs whose columns are in the order of a matrix.
    ordered: runtime::memory::Reserve,
}

impl CpuBackend {
    /// A backend without weights. Panics when this machine lacks the instruction set asked for (see
    /// [`Isa::available`]).
    pub fn new(options: CpuOptions) -> Self {
        let isa = options.isa.unwrap_or_else(Isa::detect);
        assert!(isa.is_available(), "this machine has no {}, but {:?}", isa.name(), Isa::available());
        Self {
            isa,
            pool: Pool::new(options.threads),
            acts: ActivationBuffers::default(),
            matrices: Vec::new(),
            groups: Vec::new(),
            choices: Vec::new(),
            tables: Vec::new(),
            vectors: Vec::new(),
            caches: Vec::new(),
            states: Vec::new(),
            batch: runtime::batch::Batch::default(),
            slots: sample::Slots::default(),
            angles: attention::rope_and_cache::Angles::default(),
            matmul: gemm::Scratch::default(),
            attention: attention::Scratch::default(),
            lora: lora::Adapters::default(),
            rounded: runtime::memory::Reserve::default(),
            ordered: runtime::memory::Reserve::default(),
        }
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Threads in use, the caller's included.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// A linear layer's product.
    fn multiply(&mut self, x: Act, w: Matrix, bias: Option<Vector>, finish: Finish, out: Act) {
        assert_ne!(x, out, "a product cannot overwrite its input");
        let x = self.acts.view(x);
        let w = &self.matrices[w.0 as usize];
        let bias = lookup(&self.vectors, bias);
        ops::check_product(x.width, [w.n, w.k], bias.map(<[f32]>::len));
        finish.epilogue.check_rows(x.rows, || self.acts.view(out).rows);
        let out = self.acts.target(out, x.rows, w.n);
        let x = gemm::round_input::order_columns(&mut self.pool, x, w.columns(), &mut self.ordered);
        let x = gemm::round_input::round_input(&mut self.pool, x, w.input, &mut self.rounded);
        let (from, to) = (Rows::dense(x.data, x.width), Rows::dense(out.data, out.width));
        let Finish { epilogue, activation } = finish;
        let product = Product { x: from, rows: x.rows, w, bias, epilogue, activation, out: to };
        // SAFETY: the two buffers differ (checked) and hold these rows; `&mut self` keeps everybody else away.
        unsafe { gemm::matmul(self.isa, &mut self.pool, &mut self.matmul, std::iter::once(product)) };
    }
}

/// What happens to a product's sums.
struct Finish {
    epilogue: Epilogue,
    activation: Option<Activation>,
}

/// The handle of the element just pushed.
fn newest<T>(list: &[T]) -> u32 {
    u32::try_from(list.len() - 1).expect("far fewer handles")
}

/// A norm with its vectors looked up.
fn norm_params(vectors: &[Vec<f32>], norm: Norm) -> layers::norm::Params<'_> {
    let Norm { kind, weight, bias, eps } = norm;
    layers::norm::Params { kind, weight: lookup(vectors, weight), bias: lookup(vectors, bias), eps }
}

/// What keys and values of a layer are divided by.
fn cache_scales(vectors: &[Vec<f32>], kv: KvLayer) -> attention::kv::CacheScales<'_> {
    let scales = |vector: Vector| vectors[vector.0 as usize].as_slice();
    let heads = kv.head_scales.map(|HeadScales { key, value }| [scales(key), scales(value)]);
    attention::kv::CacheScales { layer: kv.scales, heads }
}

fn lookup(vectors: &[Vec<f32>], vector: Option<Vector>) -> Option<&[f32]> {
    vector.map(|vector| vectors[vector.0 as usize].as_slice())
}

impl ops::Device for CpuBackend {
    fn describe(&self) -> String {
        let threads = self.pool.threads();
        format!("cpu ({}, {threads} thread{})", self.isa.name(), if threads == 1 { "" } else { "s" })
    }
}

impl Load for CpuBackend {
    fn multiplies(&self, format: WeightFormat, by: MatrixUse) -> bool {
        match format {
            WeightFormat::Plain(_) => true,
            WeightFormat::ScaledE4m3 { .. } if matches!(by, MatrixUse::Table | MatrixUse::Heads) => false,
            WeightFormat::Grouped(_) | WeightFormat::Blocks(_) if by == MatrixUse::Heads => false,
            // A tied head is a table too, and experts read the same rows: neither has columns in an order of its own.
            WeightFormat::Grouped(GroupedFormat { order: ColumnOrder::Permuted, .. }) if by != MatrixUse::Linear => {
                false
            }
            WeightFormat::Grouped(GroupedFormat { group, .. }) => {
                IntegerFormat::of(format).is_some() && (group == ALL_COLUMNS || group.is_multiple_of(2))
            }
            WeightFormat::Blocks(_) => true,
            // Packed codes lie in pairs.
            WeightFormat::ScaledE4m3 { scale_cols, .. } => scale_cols == ALL_COLUMNS || scale_cols.is_multiple_of(2),
        }
    }

    fn held_bytes(&self, matrix: Matrix) -> usize {
        self.matrices[matrix.0 as usize].bytes()
    }

    fn load_stack(&mut self, pieces: &[HostMatrix<'_>], compute: DType) -> Matrix {
        self.matrices.push(gemm::pack::Packed::new(pieces, compute, &mut self.pool));
        Matrix(newest(&self.matrices))
    }

    fn load_table(&mut self, source: HostMatrix<'_>) -> Table {
        self.tables.push(layers::embed::Lookup::new(source));
        Table(newest(&self.tables))
    }

    fn table_of(&mut self, matrix: Matrix) -> Table {
        self.tables.push(layers::embed::Lookup::of(&self.matrices[matrix.0 as usize]));
        Table(newest(&self.tables))
    }

    fn load_vector(&mut self, values: &[f32]) -> Vector {
        self.vectors.push(values.to_vec());
        Vector(newest(&self.vectors))
    }

    fn group_matrices(&mut self, members: &[Matrix], _: MatrixUse) -> MatrixGroup {
        let shape = |matrix: &Matrix| {
            let packed = &self.matrices[matrix.0 as usize];
            (packed.n, packed.k, packed.format, packed.rounds, packed.input)
        };
        assert!(!members.is_empty(), "a group of no matrices");
        assert!(
            members.iter().all(|matrix| shape(matrix) == shape(&members[0])),
            "matrices of a group differ in shape"
        );
        self.groups.push(members.to_vec());
        MatrixGroup(newest(&self.groups))
    }

    fn new_expert_routing(&mut self, max_rows: usize, top_k: usize) -> ExpertRouting {
        self.choices.push(moe::route::Choices::new(max_rows, top_k));
        ExpertRouting(newest(&self.choices))
    }

    fn new_act(&mut self, max_rows: usize, width: usize) -> Act {
        self.acts.add(max_rows, width)
    }

    fn new_kv(&mut self, shape: KvShape) -> KvLayer {
        self.caches.push(attention::kv::Kv::new(shape, self.isa));
        KvLayer { memory: newest(&self.caches), table: 0, scales: KvScales::default(), head_scales: None }
    }

    fn new_state(&mut self, slots: usize, len: usize, dtype: DType) -> State {
        self.states.push(recurrent::state::States::new(slots, len, dtype));
        State(newest(&self.states))
    }
}

impl Ops for CpuBackend {
    fn copy_blocks(&mut self, kv: KvLayer, from: &[u32], to: &[u32]) {
        self.caches[kv.memory as usize].copy_blocks(&mut self.pool, from, to);
    }

    fn begin(&mut self, batch: ops::Batch<'_>) {
        self.batch.set(batch);
        self.slots.resolve(&mut self.batch.tokens);
        self.angles.begin();
        self.acts.begin(self.batch.rows());
        self.lora.rows.begin(&self.batch);
        self.pool.set_in_pass(true);
    }

    fn embed(&mut self, table: Table, first_entry: u32, scale: f32, out: Act) {
        let table = &self.tables[table.0 as usize];
        let out = self.acts.target(out, self.batch.rows(), table.width);
        layers::embed::embed(&mut self.pool, table, &self.batch.tokens, first_entry, scale, out);
    }

    fn add_positions(&mut self, table: Table, offset: usize, x: Act) {
        let table = &self.tables[table.0 as usize];
        layers::embed::add_positions(&mut self.pool, table, &self.batch.positions, offset, self.acts.view(x));
    }

    fn add_entries(&mut self, table: Table, entries: &[u32], x: Act) {
        let table = &self.tables[table.0 as usize];
        layers::embed::add_positions(&mut self.pool, table, entries, 0, self.acts.view(x));
    }

    fn norm(&mut self, x: Act, norm: Norm, out: Act) {
        let x = self.acts.view(x);
        let out = self.acts.target(out, x.rows, x.width);
        layers::norm::norm(self.isa, &mut self.pool, x, norm_params(&self.vectors, norm), out);
    }

    fn add_norm(&mut self, residual: Act, delta: Act, norm: Norm, out: Act) {
        assert!(residual != delta && residual != out, "a residual that is also addend or output");
        let (residual, delta) = (self.acts.view(residual), self.acts.view(delta));
        let out = self.acts.target(out, residual.rows, residual.width);
        layers::norm::add_norm(self.isa, &mut self.pool, residual, delta, norm_params(&self.vectors, norm), out);
    }

    fn add_norm_in_place(&mut self, x: Act, delta: Act, norm: Norm) {
        assert_ne!(x, delta, "a buffer added to itself");
        let (x, delta) = (self.acts.view(x), self.acts.view(delta));
        layers::norm::add_norm(self.isa, &mut self.pool, x, delta, norm_params(&self.vectors, norm), x);
    }

    fn head_norm(&mut self, x: Act, first_col: usize, heads: usize, dim: usize, norm: Norm) {
        let x = self.acts.view(x);
        let cols = first_col..first_col + heads * dim;
        layers::norm::head_norm(self.isa, &mut self.pool, x, cols, norm_params(&self.vectors, norm), dim);
    }

    fn matmul(&mut self, x: Act, w: Matrix, bias: Option<Vector>, epilogue: Epilogue, out: Act) {
        self.multiply(x, w, bias, Finish { epilogue, activation: None }, out);
    }

    fn matmul_activated(&mut self, x: Act, w: Matrix, bias: Option<Vector>, activation: Activation, out: Act) {
        self.multiply(x, w, bias, Finish { epilogue: Epilogue::Store, activation: Some(activation) }, out);
    }

    fn gated(&mut self, gate_up: Act, activation: Activation, out: Act) {
        assert_ne!(gate_up, out, "a gate cannot overwrite its input");
        let gate_up = self.acts.view(gate_up);
        let out = self.acts.target(out, gate_up.rows, gate_up.width / 2);
        layers::gated::gated(self.isa, &mut self.pool, gate_up, activation, out);
    }

    fn activate(&mut self, x: Act, activation: Activation) {
        layers::activate::activate(self.isa, &mut self.pool, self.acts.view(x), activation);
    }

    fn gate(&mut self, x: Act, gate: Cols, activation: Activation) {
        assert_ne!(x, gate.act, "a gate cannot gate itself");
        let (x, view) = (self.acts.view(x), self.acts.view(gate.act));
        layers::gated::gate(self.isa, &mut self.pool, x, view, gate.first, activation);
    }

    fn causal_conv(&mut self, x: Cols, conv: ops::Conv, out: Act) {
        assert_ne!(x.act, out, "a convolution cannot overwrite its input");
        let call = recurrent::causal_conv::Call {
            x: self.acts.columns(x),
            conv,
            taps: &self.vectors[conv.taps.0 as usize],
            bias: lookup(&self.vectors, conv.bias),
            states: &self.states[conv.state.0 as usize],
            batch: &self.batch,
            out: self.acts.target(out, self.batch.rows(), conv.channels),
        };
        recurrent::causal_conv::causal_conv(self.isa, &mut self.pool, call);
    }

    fn selective_scan(&mut self, input: ScanInput, scan: ops::Scan, out: Act) {
        let ScanInput { x, dt, b, c } = input;
        assert!([x, dt, b, c].iter().all(|cols| cols.act != out), "a scan cannot overwrite its input");
        let target = self.acts.target(out, self.batch.rows(), scan.heads * scan.head_dim);
        let call = recurrent::selective_scan::Call {
            scan,
            x: self.acts.columns(x),
            dt: self.acts.columns(dt),
            b: self.acts.columns(b),
            c: self.acts.columns(c),
            decay: &self.vectors[scan.decay.0 as usize],
            skip: &self.vectors[scan.skip.0 as usize],
            dt_bias: lookup(&self.vectors, scan.dt_bias),
            states: &self.states[scan.state.0 as usize],
            batch: &self.batch,
            out: target,
        };
        recurrent::selective_scan::selective_scan(self.isa, &mut self.pool, call);
    }

    fn delta_rule(&mut self, input: DeltaInput, rule: ops::DeltaRule, out: Act) {
        let DeltaInput { qkv, beta, dt } = input;
        assert!([qkv, beta.act, dt.act].iter().all(|act| *act != out), "the delta rule cannot overwrite its input");
        let target = self.acts.target(out, self.batch.rows(), rule.value_heads * rule.value_dim);
        let call = recurrent::delta_rule::Call {
            rule,
            qkv: self.acts.view(qkv),
            beta: self.acts.columns(beta),
            dt: self.acts.columns(dt),
            rate: &self.vectors[rule.rate.0 as usize],
            dt_bias: &self.vectors[rule.dt_bias.0 as usize],
            states: &self.states[rule.state.0 as usize],
            batch: &self.batch,
            out: target,
        };
        recurrent::delta_rule::delta_rule(self.isa, &mut self.pool, call);
    }

    fn rope_and_cache(&mut self, qkv: Act, heads: Heads, rope: Option<Rope>, kv: KvLayer) {
        let qkv = self.acts.view(qkv);
        let rotation = rope.map(|rope| {
            let inv_freq = &self.vectors[rope.inv_freq.0 as usize];
            rope.check(inv_freq.len(), heads);
            let table = self.angles.get(&rope, inv_freq, &self.batch.positions);
            attention::rope_and_cache::Rotation { table, dim: rope.rotary_dim, style: rope.style }
        });
        let to = attention::rope_and_cache::Target {
            kv: &self.caches[kv.memory as usize],
            table: kv.table,
            scales: cache_scales(&self.vectors, kv),
        };
        attention::rope_and_cache::rope_and_cache(self.isa, &mut self.pool, qkv, heads, rotation, &self.batch, to);
    }

    fn attention(
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
        let params = attention::Params {
            layer: attention,
            scales: cache_scales(&self.vectors, kv),
            sinks: lookup(&self.vectors, attention.sinks),
            alibi: lookup(&self.vectors, attention.alibi),
            relative: lookup(&self.vectors, attention.relative.map(|bias| bias.table)),
        };
        let (kv, table) = (&self.caches[kv.memory as usize], kv.table);
        let only = only.map(|only| only.rows);
        let call = attention::Call { qkv, params, batch: &self.batch, only, kv, table, out };
        attention::attention(self.isa, &mut self.pool, &mut self.attention, call);
    }

    fn route(&mut self, logits: Act, routing: Routing, out: ExpertRouting) {
        let (logits, choices) = (self.acts.view(logits), &mut self.choices[out.0 as usize]);
        let correction = lookup(&self.vectors, routing.correction);
        moe::route::route(self.isa, &mut self.pool, logits, routing, correction, choices);
    }

    fn expert_matmul(&mut self, x: Act, w: MatrixGroup, bias: Option<Vector>, choice: ExpertRouting, out: Act) {
        assert_ne!(x, out, "a product cannot overwrite its input");
        let (x, choices, group) = (self.acts.view(x), &self.choices[choice.0 as usize], &self.groups[w.0 as usize]);
        let experts = group.iter().map(|matrix| &self.matrices[matrix.0 as usize]);
        let first = &self.matrices[group[0].0 as usize];
        let bias = lookup(&self.vectors, bias);
        let (shape, chosen) = ([group.len(), first.n, first.k], [choices.rows, choices.top_k]);
        ops::check_experts([x.rows, x.width], shape, bias.map(<[f32]>::len), chosen);
        let out = self.acts.target(out, choices.rows * choices.top_k, first.n);
        let x = gemm::round_input::round_input(&mut self.pool, x, first.input, &mut self.rounded);
        let products = moe::expert_matmul::products(experts, moe::expert_matmul::Call { x, bias, choices, out });
        // SAFETY: the two buffers differ (checked) and hold these rows, each pair is one expert's; `&mut self` keeps
        // others away.
        unsafe { gemm::matmul(self.isa, &mut self.pool, &mut self.matmul, products) };
    }

    fn combine(&mut self, x: Act, choice: ExpertRouting, epilogue: Epilogue, out: Act) {
        assert_ne!(x, out, "a sum cannot overwrite what it sums");
        let (x, choices) = (self.acts.view(x), &self.choices[choice.0 as usize]);
        epilogue.check_rows(choices.rows, || self.acts.view(out).rows);
        let out = self.acts.target(out, choices.rows, x.width);
        moe::combine::combine(self.isa, &mut self.pool, x, choices, epilogue, out);
    }

    fn gate_rows(&mut self, x: Act, gate: Act) {
        assert_ne!(x, gate, "rows that gate themselves");
        layers::gate_rows::gate_rows(&mut self.pool, self.acts.view(x), self.acts.view(gate));
    }

    fn head_matmul(&mut self, x: Act, from: HeadColumns, w: MatrixGroup, out: Act, to: HeadColumns) {
        assert_ne!(x, out, "a product cannot overwrite its input");
        let (x, group) = (self.acts.view(x), &self.groups[w.0 as usize]);
        let heads = group.iter().map(|matrix| &self.matrices[matrix.0 as usize]);
        let (first, width) = (&self.matrices[group[0].0 as usize], self.acts.width(out));
        assert_eq!(first.input, InputRounding::None, "heads whose inputs are rounded");
        let out = self.acts.target(out, x.rows, width);
        let products = layers::head_matmul::products(
            heads,
            [first.n, first.k],
            HeadView { view: x, columns: from },
            HeadView { view: out, columns: to },
        );
        // SAFETY: the two buffers differ (checked) and hold these rows, heads do not overlap (checked); `&mut self`
        // keeps others away.
        unsafe { gemm::matmul(self.isa, &mut self.pool, &mut self.matmul, products) };
    }

    fn copy_columns(&mut self, x: Act, from: HeadColumns, out: Act, to: HeadColumns, heads: usize, width: usize) {
        assert_ne!(x, out, "columns copied within a buffer");
        let x = self.acts.view(x);
        let out = self.acts.target(out, x.rows, self.acts.width(out));
        layers::copy_columns::copy_columns(
            &mut self.pool,
            x,
            out,
            layers::copy_columns::Pieces { from, to, heads, width },
        );
    }

    fn add(&mut self, x: Act, y: Act) {
        assert_ne!(x, y, "a buffer added to itself");
        layers::add::add(&mut self.pool, self.acts.view(x), self.acts.view(y));
    }

    fn clamp(&mut self, x: Act, limit: f32) {
        assert!(limit >= 0.0, "a limit of {limit}");
        layers::clamp::clamp(&mut self.pool, self.acts.view(x), limit);
    }

    fn scale(&mut self, x: Act, factor: f32) {
        layers::scale::scale(&mut self.pool, self.acts.view(x), factor);
    }

    fn soft_cap(&mut self, x: Act, cap: f32) {
        layers::soft_cap::soft_cap(&mut self.pool, self.acts.view(x), cap);
    }

    fn gather(&mut self, x: Act, selection: RowSelection<'_>, out: Act) {
        assert_ne!(x, out, "rows gathered into their own buffer");
        let x = self.acts.view(x);
        let out = self.acts.target(out, selection.rows.len(), x.width);
        layers::gather::gather(&mut self.pool, x, selection.rows, out);
    }

    fn read(&mut self, x: Act) -> &[f32] {
        // What is read is the end of a pass; threads that wait for more work may sleep.
        self.pool.set_in_pass(false);
        self.acts.slice(x)
    }

    fn host_mut(&mut self, x: Act) -> &mut [f32] {
        self.acts.slice_mut(x)
    }
}

impl ops::Lora for CpuBackend {
    fn has_lora(&self) -> bool {
        true
    }

    fn new_lora_site(&mut self, shape: ops::LoraShape<'_>) -> ops::LoraSite {
        ops::LoraSite(self.lora.add_site(shape))
    }

    fn write_lora(
        &mut self,
        site: ops::LoraSite,
        slot: u32,
        parts: &[Option<ops::LoraWeights<'_>>],
        _taken: &mut usize,
    ) -> ops::Taken {
        self.lora.write(site.0, slot, parts);
        ops::Taken::All
    }

    fn set_adapters(&mut self, slots: &[Option<u32>]) {
        self.lora.rows.set(slots);
    }

    fn select_adapters(&mut self, selection: RowSelection<'_>) {
        self.lora.rows.select(selection.rows);
    }

    fn lora(&mut self, x: Act, site: ops::LoraSite, out: Act) {
        assert_ne!(x, out, "a delta cannot overwrite its input");
        let (x, out) = (self.acts.view(x), self.acts.view(out));
        self.lora.add_deltas(self.isa, &mut self.pool, x, site.0, out);
    }

    fn adds_deltas(&self) -> bool {
        !self.lora.rows.is_empty()
    }

    fn expert_lora(&mut self, x: Act, site: ops::LoraSite, routing: ExpertRouting, out: Act) {
        assert_ne!(x, out, "a delta cannot overwrite its input");
        let (x, out, choices) = (self.acts.view(x), self.acts.view(out), &self.choices[routing.0 as usize]);
        self.lora.add_expert_deltas(self.isa, &mut self.pool, lora::ExpertRows { site: site.0, choices, x, out });
    }

    fn lora_embed(&mut self, site: ops::LoraSite, entries: ops::Entries, out: Act) {
        let (tokens, out) = (lora::Tokens { rows: &self.batch.tokens, entries }, self.acts.view(out));
        self.lora.add_entries(self.isa, &mut self.pool, site.0, tokens, out);
    }

    fn new_saved_site(&mut self, shape: ops::SavedShape) -> ops::SavedSite {
        ops::SavedSite(self.lora.saved.add(shape))
    }

    fn write_saved(
        &mut self,
        site: ops::SavedSite,
        slot: u32,
        matrix: Option<ops::PlainElements<'_>>,
        _taken: &mut usize,
    ) -> ops::Taken {
        self.lora.saved.write(&mut self.pool, site.0, slot, matrix);
        ops::Taken::All
    }

    fn saved_matmul(&mut self, x: Act, site: ops::SavedSite, out: Act) {
        assert_ne!(x, out, "a product cannot overwrite its input");
        let (x, out) = (self.acts.view(x), self.acts.view(out));
        if self.lora.rows.is_empty() {
            return;
        }
        let products = self.lora.saved.products(&self.lora.rows, site.0, x, out);
        // SAFETY: the two buffers differ (checked) and hold these rows, each of one slot; `&mut self` keeps everybody
        // else away.
        unsafe { gemm::matmul(self.isa, &mut self.pool, &mut self.matmul, products) };
    }

    fn mask_saved(&mut self, site: ops::SavedSite, own: usize, out: Act) {
        let out = self.acts.view(out);
        self.lora.saved.mask(&mut self.pool, &self.lora.rows, site.0, own, out);
    }

    fn saved_embed(&mut self, site: ops::SavedSite, entries: ops::Entries, out: Act) {
        let (tokens, out) = (lora::Tokens { rows: &self.batch.tokens, entries }, self.acts.view(out));
        if !self.lora.rows.is_empty() {
            self.lora.saved.embed(&mut self.pool, &self.lora.rows, site.0, tokens, out);
        }
    }
}

impl ops::Sample for CpuBackend {
    fn set_slots(&mut self, count: usize, vocab: usize) {
        self.slots.set_count(count, vocab);
    }

    fn can_sample(&self, params: &SampleParams) -> bool {
        sample::is_greedy(params)
    }

    fn set_slot(&mut self, slot: u32, params: &SampleParams, _counts: &[(u32, u32)]) {
        assert!(sample::is_greedy(params), "parameters that were not agreed on: {params:?}");
        self.slots.set_masked(slot, params.masked);
    }

    fn set_masks(&mut self, masks: &[SlotMask<'_>]) {
        self.slots.set_masks(masks);
    }

    fn sample(&mut self, logits: Act, rows: &[SampleRow]) -> Ticket {
        let logits = (!rows.is_empty()).then(|| self.acts.view(logits));
        let ticket = self.slots.sample(&mut self.pool, logits, rows);
        // The end of a pass; threads that wait for more work may sleep.
        self.pool.set_in_pass(false);
        ticket
    }

    fn is_done(&mut self, _ticket: Ticket) -> bool {
        true
    }

    fn take(&mut self, ticket: Ticket, out: &mut Vec<Sampled>) {
        self.slots.take(ticket, out);
    }
}

// Nothing to capture, and no communicator: the host carries what ranks exchange.
impl ops::Capture for CpuBackend {}
impl ops::Comm for CpuBackend {}
