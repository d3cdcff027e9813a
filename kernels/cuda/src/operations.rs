//! What the GPU does for each part of [`kernels::ops::Backend`]: handles become addresses here, and the launchers do
//! the rest.

mod adapters;

use crate::CudaBackend;
use crate::ExpertWeights;
use crate::attention;
use crate::attention::backend;
use crate::attention::kv::Kv;
use crate::attention::layer::AttentionTypes;
use crate::attention::rope_and_cache::takes_norms;
use crate::fusion::launch::fits;
use crate::fusion::op::{self, AddNorm, Gated, Gemm, HeadNorm, Op, Stored};
use crate::gemm::codes;
use crate::gemm::product::Product;
use crate::gemm::table::Facts;
use crate::jit::prefetch;
use crate::jit::sources::Need;
use crate::jit::specialization::HOPPER;
use crate::layers::elementwise;
use crate::layers::groups::{self, Group, HeadView};
use crate::moe::experts;
use crate::moe::experts_codes;
use crate::moe::experts_packed::PackedExperts;
use crate::moe::routing::{self, Choices, ExpertStorage, Router};
use crate::options::LinearAttention;
use crate::recurrent;
use crate::runtime::context;
use crate::runtime::device::{Name, Shape, args};
use crate::runtime::limits::LIMITS;
use crate::runtime::step_preference;
use crate::weights::Weights;
use crate::weights::packed::Kind;
use kernels::ops::{
    self, Act, Activation, AttentionKernels, CaptureOwner, Cols, Comm, CommError, DType, DeltaInput, DeviceMemory,
    Epilogue, Exchange, ExpectedAttention, ExpectedDeltaRule, ExpertRouting, GatedExperts, HeadColumns, Heads,
    StageLink, check_product,
};
use kernels::ops::{
    HostMatrix, InputRounding, KvLayer, KvScales, KvShape, LatentAttention, Load, Matrix, MatrixGroup, MatrixUse, Norm,
    Ops, RankPlacement, Rope, Routing, RowSelection, WeightFormat,
};
use kernels::ops::{Noise, ScanInput, ShapeLimits, State, StepPreference, Table, Timing, Vector, Wait};
use kernels::sample::{SampleParams, SampleRow, Sampled, SlotMask, Ticket};

/// The handle of the element just pushed.
fn newest<T>(list: &[T]) -> u32 {
    u32::try_from(list.len() - 1).expect("far fewer handles")
}

impl ops::Device for CudaBackend {
    fn describe(&self) -> String {
        format!("cuda ({}, {})", self.device.context.name, self.device.context.arch)
    }

    fn fault(&self) -> Option<&str> {
        self.device.fault()
    }

    fn memory(&self) -> Option<DeviceMemory> {
        self.device.context.bind().ok()?;
        let (free, total) = context::free_and_total().ok()?;
        Some(DeviceMemory { free: free as u64, total: total as u64 })
    }

    fn limits(&self) -> ShapeLimits {
        LIMITS
    }

    fn step_preference(&self, query_heads: Option<usize>) -> StepPreference {
        step_preference::of(self.device.context.multiprocessors, query_heads)
    }

    fn await_first_kernels(&mut self) {
        self.await_first();
    }

    fn has_cold_steps(&self) -> bool {
        true
    }

    fn load_ahead(&mut self, most: std::time::Duration) -> bool {
        self.load_products(most)
    }

    fn take_waits(&mut self) -> Vec<Wait> {
        self.device.take_waits()
    }

    fn warm_up(&mut self) -> bool {
        self.prepare_some()
    }

    fn start_profile(&mut self) {
        self.device.bind();
        self.device.start_profile();
    }

    fn end_profile(&mut self) -> Vec<Timing> {
        self.device.bind();
        self.device.end_profile()
    }
}

impl Load for CudaBackend {
    fn expect_attention(&mut self, expected: ExpectedAttention) -> Result<Option<AttentionKernels>, String> {
        let selected = backend::select(self.attention.backend(), (&*self.device.context).into(), expected)?;
        self.order_for_attention(expected, selected);
        Ok(Some(selected.into()))
    }

    fn expect_delta_rule(&mut self, expected: ExpectedDeltaRule) {
        self.device.bind();
        if self.linear_attention == LinearAttention::Chunks {
            self.chunks.prepare(&mut self.device, expected);
            recurrent::delta_steps::prepare(&self.device, expected);
        }
    }

    fn multiplies(&self, format: WeightFormat, by: MatrixUse) -> bool {
        match format {
            WeightFormat::Plain(_) => true,
            WeightFormat::ScaledE4m3 { .. } | WeightFormat::Grouped(_) | WeightFormat::Blocks(_) => match by {
                MatrixUse::Linear => Kind::takes(format),
                MatrixUse::Experts => {
                    // Others do not round inputs.
                    let is_left = format.input() == InputRounding::None;
                    Kind::takes_experts(format) && (is_left || self.device.context.arch == HOPPER)
                }
                MatrixUse::Table | MatrixUse::Heads => false,
            },
        }
    }

    fn gains_by_rounding(&self, format: WeightFormat, by: MatrixUse, cols: usize, compute: DType) -> bool {
        compute.size() == 2
            && match by {
                MatrixUse::Linear => codes::gains(Facts::of(&self.device), format, cols),
                MatrixUse::Experts => self.device.context.arch == HOPPER && experts_codes::takes(format, cols),
                MatrixUse::Table | MatrixUse::Heads => false,
            }
    }

    fn load_stack(&mut self, pieces: &[HostMatrix<'_>], compute: DType) -> Matrix {
        self.device.bind();
        self.check_type(compute);
        let matrix = self.staging.matrix(&mut self.device, pieces, compute);
        self.matmul.reserve(&mut self.device, &matrix);
        self.matrices.push(matrix);
        self.order_for_newest_matrix();
        Matrix(newest(&self.matrices))
    }

    fn load_stacks(&mut self, stacks: &[Vec<HostMatrix<'_>>], compute: DType) -> Vec<Matrix> {
        self.device.bind();
        self.load_reading_ahead(stacks, compute)
    }

    fn held_bytes(&self, matrix: Matrix) -> usize {
        self.matrices[matrix.0 as usize].bytes()
    }

    fn load_table(&mut self, source: HostMatrix<'_>) -> Table {
        self.device.bind();
        self.tables.push(self.staging.table(&mut self.device, source));
        Table(newest(&self.tables))
    }

    fn table_of(&mut self, matrix: Matrix) -> Table {
        self.tables.push(self.matrices[matrix.0 as usize].clone());
        Table(newest(&self.tables))
    }

    fn make_matrix(&mut self, noise: Noise<'_>, compute: DType) -> Option<Matrix> {
        self.device.bind();
        self.check_type(compute);
        self.matrices.push(self.levels.matrix(&mut self.device, &mut self.staging, noise, compute));
        self.order_for_newest_matrix();
        Some(Matrix(newest(&self.matrices)))
    }

    fn make_table(&mut self, noise: Noise<'_>) -> Option<Table> {
        self.device.bind();
        self.tables.push(self.levels.matrix(&mut self.device, &mut self.staging, noise, noise.dtype));
        Some(Table(newest(&self.tables)))
    }

    fn load_vector(&mut self, values: &[f32]) -> Vector {
        self.device.bind();
        self.vectors.push(self.staging.vector(&mut self.device, values));
        Vector(newest(&self.vectors))
    }

    fn group_matrices(&mut self, members: &[Matrix], by: MatrixUse) -> MatrixGroup {
        self.device.bind();
        let members: Vec<&Weights> = members.iter().map(|matrix| &self.matrices[matrix.0 as usize]).collect();
        let pointers: Vec<u8> = members.iter().flat_map(|matrix| matrix.ptr().to_ne_bytes()).collect();
        let pointers = self.staging.load(&mut self.device, &pointers);
        let maps = experts::maps(&mut self.device, &mut self.staging, &members);
        let packed = PackedExperts::load(&mut self.device, &mut self.staging, &members);
        if packed.is_some() {
            self.experts = ExpertStorage::Packed;
        }
        let group = Group::new(&members, pointers, maps, packed);
        if by == MatrixUse::Experts {
            prefetch::order_experts(&self.device, &group);
        }
        self.groups.push(group);
        MatrixGroup(newest(&self.groups))
    }

    fn join_heads(&mut self, absorb: MatrixGroup, restore: MatrixGroup) -> Option<Matrix> {
        self.join(absorb, restore)
    }

    fn new_expert_routing(&mut self, max_rows: usize, top_k: usize) -> ExpertRouting {
        self.device.bind();
        self.choices.push(Choices::new(&mut self.device, max_rows, top_k));
        ExpertRouting(newest(&self.choices))
    }

    fn new_act(&mut self, max_rows: usize, width: usize) -> Act {
        self.new_rounded_act(max_rows, width, DType::F32)
    }

    fn new_rounded_act(&mut self, max_rows: usize, width: usize, precision: DType) -> Act {
        self.device.bind();
        self.acts.add(&mut self.device, max_rows, width, precision)
    }

    fn new_kv(&mut self, shape: KvShape) -> KvLayer {
        self.device.bind();
        let mut kv = Kv::new(&mut self.device, shape);
        let mapped = attention::mapped_tokens(&self.device, shape);
        if let Some(tokens) = mapped.filter(|_| self.attention.backend().may_be_hopper()) {
            kv.map(&mut self.device, tokens);
        }
        self.caches.push(kv);
        KvLayer { memory: newest(&self.caches), table: 0, scales: KvScales::default(), head_scales: None }
    }

    fn rounded_type(&self, precision: DType) -> DType {
        precision
    }

    fn new_state(&mut self, slots: usize, len: usize, dtype: DType) -> State {
        self.device.bind();
        self.device.order_for(Need::RecurrentStates);
        self.states.push(recurrent::States::new(&mut self.device, slots, len, dtype));
        State(newest(&self.states))
    }
}

impl Ops for CudaBackend {
    fn copy_blocks(&mut self, kv: KvLayer, from: &[u32], to: &[u32]) {
        self.device.bind();
        self.caches[kv.memory as usize].copy_blocks(&mut self.device, from, to);
    }

    fn begin(&mut self, batch: ops::Batch<'_>) {
        self.start(batch, None);
    }

    fn begin_padded(&mut self, owner: CaptureOwner, batch: ops::Batch<'_>) {
        self.start(batch, Some(owner));
    }

    fn embed(&mut self, table: Table, first_entry: u32, scale: f32, out: Act) {
        let table = Stored::from(&self.tables[table.0 as usize]);
        let out = self.acts.target(out, self.batch.rows(), table.cols);
        self.append(Op::Embed { table, first_entry, scale, out });
    }

    fn add_positions(&mut self, table: Table, offset: usize, x: Act) {
        self.append(Op::Opaque("add_positions"));
        let (table, x) = (&self.tables[table.0 as usize], self.acts.view(x));
        assert_eq!((x.dtype, x.width), (DType::F32, table.cols), "what positions are added to");
        let [offset, entries, width] = [offset, table.rows, table.cols].map(|number| number as u32);
        self.device.launch(
            Name::of("add_positions", &[table.dtype]),
            Shape::rows(x.rows, x.width),
            args![table.ptr(), self.batch.pointers.positions, x.ptr, offset, entries, width],
        );
    }

    fn add_entries(&mut self, table: Table, entries: &[u32], x: Act) {
        self.append(Op::Opaque("add_entries"));
        let (table, x) = (&self.tables[table.0 as usize], self.acts.view(x));
        assert_eq!((x.dtype, x.width, x.rows), (DType::F32, table.cols, entries.len()), "what entries are added to");
        let [rows, width] = [table.rows, table.cols].map(|number| number as u32);
        let entries = self.batch.select(&mut self.device, entries);
        self.device.launch(
            Name::of("add_positions", &[table.dtype]),
            Shape::rows(x.rows, x.width),
            args![table.ptr(), entries, x.ptr, 0_u32, rows, width],
        );
    }

    fn norm(&mut self, x: Act, norm: Norm, out: Act) {
        let x = self.acts.view(x);
        let out = self.acts.target(out, x.rows, x.width);
        let params = self.norm_params(norm, x.width);
        self.append(Op::Norm(op::Norm { x, params, out }));
    }

    fn add_norm(&mut self, residual: Act, delta: Act, norm: Norm, out: Act) {
        assert!(residual != delta && residual != out, "a residual that is also addend or output");
        let (residual, delta) = (self.acts.view(residual), self.acts.view(delta));
        assert_eq!((residual.rows, residual.width), (delta.rows, delta.width), "shapes of a residual and its addend");
        assert_eq!(residual.dtype, DType::F32, "element type of a residual");
        let out = self.acts.target(out, residual.rows, residual.width);
        let params = self.norm_params(norm, residual.width);
        self.append(Op::AddNorm(AddNorm { residual, delta, params, out }));
    }

    fn head_norm(&mut self, x: Act, first_col: usize, heads: usize, dim: usize, norm: Norm) {
        let x = self.acts.view(x);
        let end = first_col + heads * dim;
        assert!(end <= x.width, "columns {first_col}..{end} of {}", x.width);
        let is_own = |vector: Vector| self.vectors[vector.0 as usize].len != dim;
        // Each head has its own parameters, or all share theirs.
        let own = norm.weight.is_some_and(is_own) || norm.bias.is_some_and(is_own);
        let (len, stride) = if own { (heads * dim, dim) } else { (dim, 0) };
        let params = self.norm_params(norm, len);
        self.append(Op::HeadNorm(HeadNorm { x, first_col, heads, dim, params, stride }));
    }

    fn matmul(&mut self, x: Act, w: Matrix, bias: Option<Vector>, epilogue: Epilogue, out: Act) {
        assert_ne!(x, out, "a product cannot overwrite its input");
        let (x, weights, bias_at) = (self.acts.view(x), &self.matrices[w.0 as usize], self.vector(bias));
        check_product(x.width, [weights.rows, weights.cols], bias.map(|bias| self.vectors[bias.0 as usize].len));
        epilogue.check_rows(x.rows, || self.acts.view(out).rows);
        let out = self.acts.target(out, x.rows, weights.rows);
        let product = Product { x, w: weights, bias: None, epilogue, out, prepared: None };
        let fits = fits(&self.matmul, &self.device, &product, self.ranks.as_ref());
        let weights = Stored::from(weights);
        let adapted = self.lora.is_active();
        let prepared = None;
        let gemm = Gemm { x, before: None, w, weights, bias, bias_at, epilogue, out, fits, adapted, prepared };
        if !gemm.fits.all_reduce {
            self.note_gemm(&gemm, None);
        }
        self.append(Op::Gemm(gemm));
    }

    fn gated(&mut self, gate_up: Act, activation: Activation, out: Act) {
        assert_ne!(gate_up, out, "a gate cannot overwrite its input");
        let gate_up = self.acts.view(gate_up);
        let out = self.acts.target(out, gate_up.rows, gate_up.width / 2);
        self.append(Op::Gated(Gated { gate_up, activation, out }));
    }

    fn activate(&mut self, x: Act, activation: Activation) {
        self.append(Op::Activate(self.acts.view(x), activation));
    }

    fn gate(&mut self, x: Act, gate: Cols, activation: Activation) {
        self.gate_columns(x, gate, activation);
    }

    fn causal_conv(&mut self, x: Cols, conv: ops::Conv, out: Act) {
        self.convolve(x, conv, out);
    }

    fn selective_scan(&mut self, input: ScanInput, scan: ops::Scan, out: Act) {
        self.scan(input, scan, out);
    }

    fn delta_rule(&mut self, input: DeltaInput, rule: ops::DeltaRule, out: Act) {
        self.attend_linearly(input, rule, out);
    }

    fn rope_and_cache(&mut self, qkv: Act, heads: Heads, rope: Option<Rope>, kv: KvLayer) {
        let rope = rope.map(|rope| {
            let frequencies = &self.vectors[rope.inv_freq.0 as usize];
            rope.check(frequencies.len, heads);
            (rope, frequencies.ptr())
        });
        let (qkv, cache) = (self.acts.view(qkv), self.cache(kv));
        let types = AttentionTypes { rows: qkv.dtype, cache: cache.shape.dtype };
        let takes_norms = rope.is_some_and(|(rope, _)| takes_norms(types, heads, rope.rotary_dim));
        self.append(Op::Rope(op::Rope { qkv, heads, rope, kv, cache, takes_norms, norms: None }));
    }

    fn attention(
        &mut self,
        qkv: Act,
        attention: ops::Attention,
        kv: KvLayer,
        only: Option<RowSelection<'_>>,
        out: Act,
    ) {
        self.attend(qkv, attention, kv, only, out);
    }

    fn latent_attention(&mut self, latent: LatentAttention, only: Option<RowSelection<'_>>, out: Act) {
        self.attend_latent(latent, only, out);
    }

    fn route(&mut self, logits: Act, routing: Routing, out: ExpertRouting) {
        self.append(Op::Opaque("route"));
        let logits = self.acts.view(logits);
        let length = |vector: Vector| self.vectors[vector.0 as usize].len;
        routing.check(logits.width, self.choices[out.0 as usize].top_k, routing.correction.map(length));
        let correction = self.vector(routing.correction);
        let live = self.batch.pointers.counts;
        let router = Router::of(routing, correction);
        let choices = &mut self.choices[out.0 as usize];
        choices.stored = self.experts;
        routing::route(&mut self.device, logits, router, live, choices);
    }

    fn expert_matmul(&mut self, x: Act, w: MatrixGroup, bias: Option<Vector>, choice: ExpertRouting, out: Act) {
        self.multiply_experts(x, ExpertWeights { w, bias, reader: None }, choice, experts::Keep::All, out);
    }

    fn gated_experts(&mut self, x: Act, gated: GatedExperts, choice: ExpertRouting, out: Act) {
        let GatedExperts { w, bias, activation, raised, reader } = gated;
        let keep = experts::Keep::Gated(activation.into());
        if !self.multiply_experts(x, ExpertWeights { w, bias, reader }, choice, keep, out) {
            self.expert_matmul(x, w, bias, choice, raised);
            self.gated(raised, activation, out);
        }
    }

    fn combine(&mut self, x: Act, choice: ExpertRouting, epilogue: Epilogue, out: Act) {
        assert_ne!(x, out, "a sum cannot overwrite what it sums");
        self.append(Op::Opaque("combine"));
        let (x, choices) = (self.acts.view(x), &self.choices[choice.0 as usize]);
        epilogue.check_rows(choices.rows, || self.acts.view(out).rows);
        let out = self.acts.target(out, choices.rows, x.width);
        experts::combine(&mut self.device, x, choices, epilogue, out);
    }

    fn gate_rows(&mut self, x: Act, gate: Act) {
        assert_ne!(x, gate, "rows that gate themselves");
        self.append(Op::Opaque("gate_rows"));
        groups::gate_rows(&mut self.device, self.acts.view(x), self.acts.view(gate));
    }

    fn head_matmul(&mut self, x: Act, from: HeadColumns, w: MatrixGroup, out: Act, to: HeadColumns) {
        assert_ne!(x, out, "a product cannot overwrite its input");
        self.append(Op::Opaque("head_matmul"));
        let (x, width) = (self.acts.view(x), self.acts.width(out));
        let out = self.acts.target(out, x.rows, width);
        let (from, to) = (HeadView { view: x, columns: from }, HeadView { view: out, columns: to });
        groups::head_matmul(&mut self.device, from, &self.groups[w.0 as usize], to);
    }

    fn copy_columns(&mut self, x: Act, from: HeadColumns, out: Act, to: HeadColumns, heads: usize, width: usize) {
        assert_ne!(x, out, "columns copied within a buffer");
        self.append(Op::Opaque("copy_columns"));
        let (x, out_width) = (self.acts.view(x), self.acts.width(out));
        let out = self.acts.target(out, x.rows, out_width);
        let (from, to) = (HeadView { view: x, columns: from }, HeadView { view: out, columns: to });
        groups::copy_columns(&mut self.device, from, to, heads, width);
    }

    fn add(&mut self, x: Act, y: Act) {
        assert_ne!(x, y, "a buffer added to itself");
        self.append(Op::Opaque("add"));
        let (x, y) = (self.acts.view(x), self.acts.view(y));
        assert_eq!((x.rows, x.width), (y.rows, y.width), "shapes of two addends");
        elementwise::add(&mut self.device, x, y);
    }

    fn clamp(&mut self, x: Act, limit: f32) {
        assert!(limit >= 0.0, "a limit of {limit}");
        self.append(Op::Opaque("clamp"));
        elementwise::clamp(&mut self.device, self.acts.view(x), limit);
    }

    fn scale(&mut self, x: Act, factor: f32) {
        self.append(Op::Opaque("scale"));
        elementwise::scale(&mut self.device, self.acts.view(x), factor);
    }

    fn soft_cap(&mut self, x: Act, cap: f32) {
        self.append(Op::Opaque("soft_cap"));
        elementwise::soft_cap(&mut self.device, self.acts.view(x), cap);
    }

    fn gather(&mut self, x: Act, selection: RowSelection<'_>, out: Act) {
        assert_ne!(x, out, "rows gathered into their own buffer");
        self.append(Op::Opaque("gather"));
        let x = self.acts.view(x);
        assert!(selection.rows.iter().all(|&row| (row as usize) < x.rows), "rows {:?} of {}", selection.rows, x.rows);
        let out = self.acts.target(out, selection.rows.len(), x.width);
        assert_eq!(x.dtype, out.dtype, "element types of a gather");
        let rows = self.batch.select(&mut self.device, selection.rows);
        self.device.launch(
            Name::of("gather", &[x.dtype]),
            Shape::rows(out.rows, x.width),
            args![x.ptr, rows, out.ptr, x.width as u32],
        );
    }

    fn read(&mut self, x: Act) -> &[f32] {
        self.device.bind();
        self.flush();
        self.acts.read(&mut self.device, x)
    }

    fn host_mut(&mut self, x: Act) -> &mut [f32] {
        self.device.bind();
        self.flush();
        self.acts.write(&mut self.device, x)
    }
}

impl ops::Sample for CudaBackend {
    fn set_slots(&mut self, count: usize, vocab: usize) {
        self.device.bind();
        self.slots.set_count(&mut self.device, count, vocab);
        self.batch.prepare(&mut self.device, self.acts.most_rows(), count);
        self.lora.prepare(&mut self.device, self.acts.most_rows());
    }

    fn can_sample(&self, params: &SampleParams) -> bool {
        self.slots.can_sample(params)
    }

    fn set_slot(&mut self, slot: u32, params: &SampleParams, counts: &[(u32, u32)]) {
        self.slots.set(slot, params, counts);
    }

    fn end_pass(&mut self, logits: Act) {
        self.device.bind();
        self.flush_for(logits);
    }

    fn set_masks(&mut self, masks: &[SlotMask<'_>]) {
        self.device.bind();
        self.slots.set_masks(&mut self.device, masks);
    }

    fn sample(&mut self, logits: Act, rows: &[SampleRow]) -> Ticket {
        self.sample_tokens(logits, rows)
    }

    fn end_step(&mut self, rows: Act) -> Ticket {
        self.device.bind();
        self.flush_for(rows);
        self.end_sampled(None, &[], 0)
    }

    fn is_done(&mut self, ticket: Ticket) -> bool {
        self.device.bind();
        self.slots.is_done(&self.device, ticket)
    }

    fn take(&mut self, ticket: Ticket, out: &mut Vec<Sampled>) {
        self.device.bind();
        self.slots.take(&mut self.device, ticket, out);
    }
}

impl Comm for CudaBackend {
    fn can_init_comm(&self) -> bool {
        self.ranks.is_some()
    }

    fn init_comm(&mut self, placement: RankPlacement, exchange: Exchange<'_>) -> Result<(), CommError> {
        self.device.bind();
        let ranks = self.ranks.as_mut().ok_or(CommError::OpenedAlone)?;
        ranks.init(&mut self.device, placement, exchange)
    }

    fn all_reduce(&mut self, x: Act, wire: DType) {
        let x = self.acts.view(x);
        self.append(Op::AllReduce(x, wire));
    }

    fn all_gather(&mut self, x: Act, out: Act) {
        assert_ne!(x, out, "rows gathered into their own buffer");
        self.append(Op::Opaque("all_gather"));
        let (x, width) = (self.acts.view(x), self.acts.width(out));
        let out = self.acts.target(out, x.rows, width);
        self.ranks.as_mut().expect("a device that joined others").gather(&mut self.device, x, out);
    }

    fn init_stage_link(&mut self, link: StageLink<'_>) -> Result<(), CommError> {
        self.device.bind();
        self.ranks.as_mut().ok_or(CommError::OpenedAlone)?.init_stage_link(link)
    }

    fn send(&mut self, x: Act, rows: usize) {
        self.device.bind();
        self.flush_for(x);
        let (from, count) = self.acts.first_rows(x, rows);
        self.ranks.as_ref().expect("a device with a stage after it").send(&mut self.device, from, count);
    }

    fn receive(&mut self, x: Act, rows: usize) {
        self.device.bind();
        self.end_operations();
        let (to, count) = self.acts.first_rows(x, rows);
        self.ranks.as_ref().expect("a device with a stage before it").receive(&mut self.device, to, count);
    }
}
