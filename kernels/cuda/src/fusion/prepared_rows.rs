//! Rule: rows that the next product reads as codes or in another order are written like that by the kernel that makes
//! them: a norm, or a product whose outputs are gated. The rows themselves are written, too: adapters, or operations
//! that come later, may read them.

use super::op::{AddNorm, Gated, Gemm, Norm, Op};
use super::pass::{Verdict, rewrite};
use super::split_norm::SplitNorm;
use crate::gemm::prepared::{Buffer, Prepared};
use crate::layers::norm_prepared;
use crate::runtime::activations::View;

/// What makes rows.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Maker {
    Norm(Norm),
    AddNorm(AddNorm),
    NormAddNorm(Norm, AddNorm),
    GatedGemm(Gemm, Gated),
}

impl Maker {
    /// The operation, if it is one that may write its rows in a second way.
    fn of(op: &Op) -> Option<Self> {
        let maker = match *op {
            Op::Norm(norm) => Self::Norm(norm),
            Op::AddNorm(sum) => Self::AddNorm(sum),
            Op::NormAddNorm(first, sum) => Self::NormAddNorm(first, sum),
            Op::GatedGemm(gemm, gated) => Self::GatedGemm(gemm, gated),
            _ => return None,
        };
        maker.fits().then_some(maker)
    }

    fn fits(&self) -> bool {
        match self {
            Self::Norm(norm) => norm_prepared::fits(norm.x, norm.out),
            Self::AddNorm(sum) | Self::NormAddNorm(_, sum) => norm_prepared::fits(sum.delta, sum.out),
            Self::GatedGemm(gemm, gated) => gemm.fits.prepare && gated.out.dtype == gemm.out.dtype,
        }
    }

    /// The rows.
    fn out(&self) -> View {
        match self {
            Self::Norm(norm) => norm.out,
            Self::AddNorm(sum) | Self::NormAddNorm(_, sum) => sum.out,
            Self::GatedGemm(_, gated) => gated.out,
        }
    }

    /// The rows as the product reads them, if these can be written.
    fn prepared(&self, reader: &Gemm) -> Option<Prepared> {
        let form = reader.fits.reads.filter(|_| reader.x == self.out())?;
        match self {
            // Its blocks know parts of rows, while others still read its own input.
            Self::GatedGemm(..) => form.is_piecewise().then_some(Prepared { form, buffer: Buffer::Gated }),
            _ => Some(Prepared { form, buffer: Buffer::Usual }),
        }
    }

    /// The operation that writes the rows alone.
    pub(super) fn plain(self) -> Op {
        match self {
            Self::Norm(norm) => Op::Norm(norm),
            Self::AddNorm(sum) => Op::AddNorm(sum),
            Self::NormAddNorm(first, sum) => Op::NormAddNorm(first, sum),
            // What it reads may be lost by now, but for its rows.
            Self::GatedGemm(gemm, gated) => Op::GatedGemm(Gemm { prepared: None, ..gemm }, gated),
        }
    }
}

pub(super) fn rule(list: &mut Vec<Op>, _: Option<&SplitNorm>) -> Verdict {
    let Some(maker) = list.first().and_then(Maker::of) else { return Verdict::No };
    let reader = match list.get_mut(1) {
        None => return Verdict::Wait,
        Some(Op::Gemm(reader)) => reader,
        Some(_) => return Verdict::No,
    };
    let Some(prepared) = maker.prepared(reader) else { return Verdict::No };
    reader.prepared = Some(prepared);
    let prepared = Op::Prepared(maker, *reader);
    rewrite(list, 1, prepared)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fusion::op::Fits;
    use crate::fusion::pass::tests::{fused, unfused};
    use crate::fusion::samples::*;
    use crate::gemm::prepared::{InputForm, Scales};
    use kernels::ops::DType;

    const CODES: InputForm = InputForm::Codes(Scales::Dynamic);
    const STATIC: InputForm = InputForm::Codes(Scales::Static);

    fn gemm_of(op: Op) -> Gemm {
        let Op::Gemm(gemm) = op else { unreachable!("a GEMM") };
        gemm
    }

    /// A product with quantized weights, which reads such an input.
    fn quantized(op: Op, reads: InputForm) -> Gemm {
        let gemm = gemm_of(op);
        let fits = Fits { gate: gemm.fits.gate, prepare: gemm.fits.gate, reads: Some(reads), ..Fits::default() };
        Gemm { fits, ..gemm }
    }

    fn reads(gemm: Gemm, buffer: Buffer) -> Gemm {
        let form = gemm.fits.reads.expect("a form");
        Gemm { prepared: Some(Prepared { form, buffer }), ..gemm }
    }

    fn sum() -> AddNorm {
        let Op::AddNorm(sum) = ADD_NORM else { unreachable!("a norm of a sum") };
        sum
    }

    /// What is launched of a maker and the product that reads its rows.
    fn together(maker: Maker, reader: Gemm, buffer: Buffer) -> [Op; 2] {
        let reader = reads(reader, buffer);
        [Op::Prepared(maker, reader), Op::Gemm(reader)]
    }

    #[test]
    fn every_norm_writes_what_the_product_after_it_reads() {
        for form in [CODES, STATIC, InputForm::Reordered] {
            let qkv = quantized(QKV_GEMM, form);
            let qkv = Gemm { fits: Fits { gate: false, ..qkv.fits }, ..qkv };
            let norm = Norm { x: X, params: NORM, out: NORMED };
            let first = Norm { x: DELTA, params: NORM, out: DELTA };
            let makers = [Maker::Norm(norm), Maker::AddNorm(sum()), Maker::NormAddNorm(first, sum())];
            let ops = [vec![Op::Norm(norm)], vec![ADD_NORM], vec![Op::Norm(first), ADD_NORM]];
            for (maker, mut ops) in makers.into_iter().zip(ops) {
                ops.push(Op::Gemm(qkv));
                assert_eq!(fused(&ops), together(maker, qkv, Buffer::Usual));
            }
        }
    }

    #[test]
    fn a_layer_of_quantized_products_is_prepared_where_rows_are_made() {
        let layer = |form| {
            let [qkv, gate_up, down] = [QKV_GEMM, GATE_UP_GEMM, DOWN_GEMM].map(|op| quantized(op, form));
            let ops = [Op::Gemm(qkv), ADD_NORM, Op::Gemm(gate_up), GATE, Op::Gemm(down), ADD_NORM];
            (fused(&ops), gate_up, down)
        };
        let Op::Gated(gate) = GATE else { unreachable!("a gate") };
        let (launched, gate_up, down) = layer(STATIC);
        let gate_up = reads(gate_up, Buffer::Usual);
        let after = together(Maker::GatedGemm(gate_up, gate), down, Buffer::Gated);
        let before = Op::Prepared(Maker::AddNorm(sum()), gate_up);
        assert_eq!(launched[1..], [before, after[0], after[1], ADD_NORM]);
        // A row's largest element is known when all of it is there.
        let (launched, gate_up, down) = layer(CODES);
        let gate_up = reads(gate_up, Buffer::Usual);
        let before = Op::Prepared(Maker::AddNorm(sum()), gate_up);
        assert_eq!(launched[1..], [before, Op::GatedGemm(gate_up, gate), Op::Gemm(down), ADD_NORM]);
    }

    #[test]
    fn a_gate_whose_kernel_cannot_prepare_its_outputs_is_followed_by_a_pass() {
        let gate_up = quantized(GATE_UP_GEMM, STATIC);
        let gate_up = Gemm { fits: Fits { prepare: false, ..gate_up.fits }, ..gate_up };
        let down = Op::Gemm(quantized(DOWN_GEMM, STATIC));
        let Op::Gated(gate) = GATE else { unreachable!("a gate") };
        assert_eq!(fused(&[Op::Gemm(gate_up), GATE, down]), [Op::GatedGemm(gate_up, gate), down]);
    }

    #[test]
    fn adapters_read_the_rows_themselves() {
        let qkv = Gemm { adapted: true, ..quantized(QKV_GEMM, CODES) };
        let launched = fused(&[ADD_NORM, Op::Gemm(qkv)]);
        assert_eq!(launched, together(Maker::AddNorm(sum()), qkv, Buffer::Usual));
    }

    #[test]
    fn norms_of_other_rows_and_for_other_products_write_these_alone() {
        let qkv = quantized(QKV_GEMM, CODES);
        unfused(&[ADD_NORM, Op::Gemm(Gemm { x: ATTENDED, ..qkv })]);
        unfused(&[ADD_NORM, Op::Gemm(Gemm { x: View { rows: 2, ..NORMED }, ..qkv })]);
        unfused(&[ADD_NORM, Op::Gemm(Gemm { fits: Fits::default(), ..qkv })]);
        unfused(&[ADD_NORM, Op::Opaque("all_reduce"), Op::Gemm(qkv)]);
        let wide = View { dtype: DType::F32, ..NORMED };
        unfused(&[Op::AddNorm(AddNorm { out: wide, ..sum() }), Op::Gemm(Gemm { x: wide, ..qkv })]);
    }

    #[test]
    fn a_split_norm_that_is_done_in_full_writes_what_a_quantized_product_reads() {
        let qkv = quantized(QKV_GEMM, CODES);
        let launched = fused(&[O_GEMM, ADD_NORM, Op::Gemm(qkv)]);
        assert_eq!(launched[0], add_norm_gemm(O_GEMM));
        assert_eq!(launched[1..], together(Maker::Norm(SPLIT.whole()), qkv, Buffer::Usual));
    }
}
