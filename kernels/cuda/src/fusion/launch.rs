//! Appends operations to the list, and launches what leaves it.

use super::op::{AddNorm, Attention, Fits, Gated, Gemm, Norm, NormBy, Op, Rope, Stored};
use super::pass::Lookahead;
use super::prepared_rows::Maker;
use super::split_norm::{After, SplitNorm};
use crate::CudaBackend;
use crate::attention::Alone;
use crate::attention::rope_and_cache::{self, Target};
use crate::autotune::background::CallSite;
use crate::comm::ranks::Ranks;
use crate::gemm::matmul::Matmul;
use crate::gemm::prepared::{InputForm, PreparedRows, gate_writes};
use crate::gemm::product::{Activated, Gate, Product};
use crate::gemm::table::Facts;
use crate::layers::lora::Lora;
use crate::layers::{elementwise, gated_norm, norm, norm_prepared};
use crate::runtime::activations::View;
use crate::runtime::device::{Device, Name, Shape, args};
use crate::weights::{Vector, Weights};
use kernels::ops::{Act, Activation, DType, Epilogue, Mask};

/// A GEMM with its operands looked up.
fn product<'a>(gemm: &Gemm, matrices: &'a [Weights], vectors: &'a mut [Vector]) -> Product<'a> {
    let Gemm { x, epilogue, out, prepared, .. } = *gemm;
    let bias = gemm.bias.map(|bias| &mut vectors[bias.0 as usize]);
    Product { x, w: &matrices[gemm.w.0 as usize], bias, epilogue, out, prepared }
}

/// What kernels for a GEMM could do beside it.
pub(crate) fn fits(matmul: &Matmul, device: &Device, product: &Product<'_>, ranks: Option<&Ranks>) -> Fits {
    let stored = product.epilogue == Epilogue::Store && product.out.dtype == DType::F32;
    Fits {
        gate: Matmul::may_gate(device, product),
        activate: Matmul::may_activate(device, product),
        add: Matmul::may_add(device, product),
        split_norm: matmul.may_precede_norm(device, product),
        end_norm: matmul.may_follow_norm(device, product),
        all_reduce: stored && ranks.is_some_and(Ranks::have_met),
        prepare: gate_writes(Facts::of(device), product),
        reads: InputForm::of(Facts::of(device), product),
    }
}

impl CudaBackend {
    /// Appends an operation to the step's list, and launches what need not wait for others.
    pub(crate) fn append(&mut self, op: Op) {
        // What the host wrote to an activation goes to the device first.
        self.acts.settle(&mut self.device);
        self.pass.push(op);
        self.launch_list(Lookahead::Open);
    }

    /// Ends what came before a step or a capture: nothing of it is left to be sent or launched.
    pub(crate) fn end_operations(&mut self) {
        self.acts.settle(&mut self.device);
        self.flush();
    }

    /// Launches all of the list: the host is about to read or write activations.
    pub(crate) fn flush(&mut self) {
        self.launch_list(Lookahead::Closed);
        self.end_split(None);
    }

    /// The same for somebody who reads one buffer: a split norm that it is no part of stays split.
    pub(crate) fn flush_for(&mut self, read: Act) {
        self.acts.settle(&mut self.device);
        self.launch_list(Lookahead::Closed);
        self.end_split(Some(read));
    }

    fn end_split(&mut self, read: Option<Act>) {
        let read = read.map(|read| self.acts.address(read));
        if let Some(norm) = self.pass.end_split(read) {
            self.launch(norm);
        }
    }

    fn launch_list(&mut self, lookahead: Lookahead) {
        while let Some(op) = self.pass.next(lookahead) {
            self.launch(op);
        }
    }

    fn launch(&mut self, op: Op) {
        match op {
            Op::Embed { table, first_entry, scale, out } => self.launch_embed(table, first_entry, scale, out),
            Op::Norm(Norm { x, params, out }) => norm::norm(&mut self.device, x, params, out),
            Op::AddNorm(AddNorm { residual, delta, params, out }) => {
                norm::add_norm(&mut self.device, residual, delta, params, out);
            }
            Op::HeadNorm(norm) => norm::head_norm(&mut self.device, norm),
            Op::Gate(gate) => gated_norm::gate(&mut self.device, gate),
            Op::GatedNorm(gate, norm) => gated_norm::gated_norm(&mut self.device, gate, norm),
            Op::Gemm(gemm) => {
                self.note_late(&gemm);
                self.launch_gemm(&gemm);
            }
            Op::Gated(gated) => elementwise::gated(&mut self.device, gated.gate_up, gated.activation, gated.out),
            Op::Activate(x, activation) => elementwise::activate(&mut self.device, x, activation),
            Op::Rope(rope) => self.launch_rope(&rope),
            Op::Attention(attention) => self.launch_attention(&attention),
            // By its own code, once this returns.
            Op::Opaque(_) => {}
            Op::Lora(lora) => {
                let splits = self.lora.shrink(&mut self.device, lora);
                self.lora.expand(&mut self.device, lora.site, splits, lora.out);
            }
            Op::GatedGemm(gemm, gated) => self.launch_gated(&gemm, gated),
            Op::ActivatedGemm(gemm, activation) => self.launch_activated(&gemm, activation),
            Op::AdaptedGemm(gemm, lora) => self.launch_adapted(&gemm, lora, None),
            Op::AdaptedGatedGemm(gemm, lora, gated) => self.launch_adapted(&gemm, lora, Some(gated)),
            Op::AddNormGemm(gemm, norm, by) => {
                self.note_late(&gemm);
                self.launch_added(&gemm, &norm, by);
            }
            Op::AllReduce(x, wire) => self.launch_all_reduce(x, wire),
            Op::AllReduceAddNorm(norm, wire) => self.launch_all_reduce_add_norm(norm, wire),
            Op::NormAddNorm(first, sum) => norm::norm_add_norm(&mut self.device, first.params, sum),
            Op::TwoNorms(first, second) => norm::two_norms(&mut self.device, first, second),
            Op::Prepared(maker, reader) => self.launch_prepared(maker, &reader),
        }
    }

    fn launch_embed(&mut self, table: Stored, first_entry: u32, scale: f32, out: View) {
        let [entries, width] = [table.rows, table.cols].map(|number| number as u32);
        self.device.launch(
            Name::of("embed", &[table.dtype, out.dtype]),
            Shape::rows(out.rows, out.width),
            args![table.ptr, self.batch.pointers.tokens, out.ptr, first_entry, entries, width, scale],
        );
    }

    fn launch_rope(&mut self, rope: &Rope) {
        self.batch.turn_to(rope.kv.table);
        let head_scales = self.head_scales(rope.kv);
        let to = Target { kv: &self.caches[rope.kv.memory as usize], factors: rope.kv.scales.inverse(), head_scales };
        let Rope { qkv, heads, norms, .. } = *rope;
        rope_and_cache::rope_and_cache(&mut self.device, qkv, heads, rope.rope, norms, &self.batch, to);
    }

    fn launch_attention(&mut self, attention: &Attention) {
        let Attention { qkv, params, kv, only, out, .. } = *attention;
        self.batch.turn_to(kv.table);
        let kv = &self.caches[kv.memory as usize];
        // Alone, a row does not know of those after it.
        if let Some(only) = only.filter(|_| params.layer.mask == Mask::Causal) {
            let alone = Alone { batch: &mut self.batch, rows: self.pass.rows(only) };
            if self.attention.run_alone(&mut self.device, [qkv, out], params, alone, kv) {
                return;
            }
        }
        self.attention.run(&mut self.device, qkv, params, &self.batch, kv, out);
    }

    /// A GEMM, which ends the norm of its input if that is split: where it cannot, the norm is done in full.
    fn launch_gemm(&mut self, gemm: &Gemm) {
        if let Some(split) = gemm.before {
            let mut product = product(gemm, &self.matrices, &mut self.vectors);
            let before = self.squares.before(&split);
            if self.matmul.run_between(&mut self.device, &mut product, before, After::default()) {
                return;
            }
            self.launch_whole(&split);
        }
        let product = product(gemm, &self.matrices, &mut self.vectors);
        self.matmul.run(&mut self.device, product);
    }

    /// A split norm in full.
    fn launch_whole(&mut self, split: &SplitNorm) {
        self.launch(Op::Norm(split.whole()));
        self.pass.norm_is_whole();
    }

    /// A GEMM and a gate: together where that is possible, and the fastest.
    fn launch_gated(&mut self, gemm: &Gemm, gated: Gated) {
        if !self.run_gated(gemm, gated, None) {
            // What its input was prepared in may be overwritten.
            self.launch_gemm(&Gemm { prepared: None, ..*gemm });
            self.launch(Op::Gated(gated));
        }
    }

    /// A GEMM and an activation of its outputs: the same.
    fn launch_activated(&mut self, gemm: &Gemm, activation: Activation) {
        let gate = Gate { of: Activated::Each, activation, out: gemm.out, prepared: None };
        if !self.run_with(gemm, gate) {
            self.launch_gemm(gemm);
            self.launch(Op::Activate(gemm.out, activation));
        }
    }

    /// Both in one kernel, which may write what it gates in a second way; false where none does all that.
    fn run_gated(&mut self, gemm: &Gemm, gated: Gated, prepared: Option<PreparedRows>) -> bool {
        let gate = Gate { of: Activated::Gates, activation: gated.activation, out: gated.out, prepared };
        self.run_with(gemm, gate)
    }

    fn run_with(&mut self, gemm: &Gemm, gate: Gate) -> bool {
        self.note_gemm(gemm, Some(gate));
        let mut product = product(gemm, &self.matrices, &mut self.vectors);
        match gemm.before {
            Some(before) => {
                let before = self.squares.before(&before);
                self.matmul.run_gated_after(&mut self.device, &mut product, before, gate)
            }
            None => self.matmul.run_gated(&mut self.device, &mut product, gate),
        }
    }

    /// Rows, also as the product reads them that comes next: in a pass of its own where no kernel writes both.
    fn launch_prepared(&mut self, maker: Maker, reader: &Gemm) {
        let Some(prepared) = reader.prepared else { return self.launch(maker.plain()) };
        let of_reader = product(reader, &self.matrices, &mut self.vectors);
        let rows = self.matmul.prepared_rows(&mut self.device, &of_reader, prepared);
        if rows.is_some_and(|rows| self.run_maker(maker, rows)) {
            return;
        }
        self.launch(maker.plain());
        let of_reader = product(reader, &self.matrices, &mut self.vectors);
        self.matmul.write_prepared(&mut self.device, &of_reader, prepared);
    }

    /// Both in one kernel; false where none writes both.
    fn run_maker(&mut self, maker: Maker, rows: PreparedRows) -> bool {
        let device = &mut self.device;
        match maker {
            Maker::Norm(norm) => norm_prepared::norm(device, norm, rows),
            Maker::AddNorm(sum) => norm_prepared::add_norm(device, None, sum, rows),
            Maker::NormAddNorm(first, sum) => norm_prepared::add_norm(device, Some(first.params), sum, rows),
            Maker::GatedGemm(gemm, gated) => self.run_gated(&gemm, gated, Some(rows)),
        }
    }

    /// A GEMM and what adapters add to it. Rows are shrunk before it, so that its weights come meanwhile.
    fn launch_adapted(&mut self, gemm: &Gemm, lora: Lora, gated: Option<Gated>) {
        gemm.before.iter().for_each(|split| self.launch_whole(split));
        let splits = self.lora.shrink(&mut self.device, lora);
        if gated.is_some_and(|gated| self.run_gated_adapted(gemm, lora, splits, gated)) {
            return;
        }
        self.launch_gemm(&Gemm { before: None, ..*gemm });
        if gated.is_some_and(|gated| self.lora.gate(&mut self.device, lora, splits, gated.out)) {
            return;
        }
        self.lora.expand(&mut self.device, lora.site, splits, lora.out);
        gated.into_iter().for_each(|gated| self.launch(Op::Gated(gated)));
    }

    /// A GEMM, what adapters add to it, and the gate of both, in one kernel; false where none does all that.
    fn run_gated_adapted(&mut self, gemm: &Gemm, lora: Lora, splits: usize, gated: Gated) -> bool {
        let Some(adapters) = self.lora.of_gate(&self.device, lora, splits) else { return false };
        let gate = Gate { of: Activated::Gates, activation: gated.activation, out: gated.out, prepared: None };
        let product = product(gemm, &self.matrices, &mut self.vectors);
        // Blocks write what others still read.
        gated.out.ptr != gemm.x.ptr && self.matmul.run_gated_adapted(&mut self.device, &product, gate, adapters)
    }

    /// A GEMM that is added to a residual, and the norm of the sum, or its first half.
    fn launch_added(&mut self, gemm: &Gemm, norm: &AddNorm, by: NormBy) {
        let sum = Gemm { epilogue: Epilogue::Accumulate, out: norm.residual, ..*gemm };
        let split = SplitNorm::of(norm);
        if by == NormBy::Gemms
            && let Some(after) = self.squares.after(&mut self.device, &split)
        {
            let mut product = product(&sum, &self.matrices, &mut self.vectors);
            let before = gemm.before.map(|before| self.squares.before(&before)).unwrap_or_default();
            if self.matmul.run_between(&mut self.device, &mut product, before, after) {
                return;
            }
        }
        if gemm.fits.add {
            let product = product(gemm, &self.matrices, &mut self.vectors);
            self.matmul.run_added(&mut self.device, product, norm.residual);
        } else {
            self.launch_gemm(&sum);
        }
        self.launch_whole(&split);
    }

    fn launch_all_reduce(&mut self, x: View, wire: DType) {
        self.ranks.as_mut().expect("a device that joined others").sum(&mut self.device, x, wire);
    }

    fn launch_all_reduce_add_norm(&mut self, norm: AddNorm, wire: DType) {
        let ranks = self.ranks.as_mut().expect("a device that joined others");
        if !ranks.sum_add_norm(&mut self.device, norm, wire) {
            ranks.sum(&mut self.device, norm.delta, wire);
            self.launch(Op::AddNorm(norm));
        }
    }

    /// What might have been a part in 16 bits is none: only now its kind is known.
    fn note_late(&mut self, gemm: &Gemm) {
        if gemm.fits.all_reduce {
            self.note_gemm(gemm, None);
        }
    }

    /// Tells the background autotuner of a GEMM, and orders what it may be done by when it comes for the first time.
    pub(crate) fn note_gemm(&mut self, gemm: &Gemm, gate: Option<Gate>) {
        let mut product = product(gemm, &self.matrices, &mut self.vectors);
        let Gemm { x, w, bias, out, .. } = *gemm;
        let site = CallSite { x, w, bias, out, gate: gate.map(|gate| (gate.of, gate.activation, gate.out)) };
        if product.is_short() && self.tuner.note(product.problem(gate), site) {
            Self::order(&self.matmul, &self.device, &mut product, gate);
        }
    }
}
