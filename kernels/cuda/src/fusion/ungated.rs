//! What waits for what follows it, so that one kernel does both: products for gates or for what they are added to, norms of heads for
//! rotations. Whatever else comes next first does what waits.

use crate::CudaBackend;
use crate::autotune::background::Site;
use crate::fusion::head_norms::HeadNorm;
use crate::fusion::split_norm::{After, Before, SplitNorms};
use crate::gemm::matmul::Matmul;
use crate::gemm::matmul_few;
use crate::gemm::matmul_hopper;
use crate::gemm::product::{Gate, Product};
use crate::layers::elementwise;
use crate::layers::norm;
use crate::runtime::activations::View;
use crate::runtime::device::Device;
use crate::whole_step::Op;
use kernels::ops::{Act, Activation, DType, Epilogue, Matrix, Vector};

/// A product, checked, that nothing was launched for yet.
#[derive(Clone, Copy)]
pub(crate) struct Ungated {
    pub(crate) x: View,
    /// What is left to do of a norm of `x`.
    pub(crate) before: Option<Before>,
    pub(crate) w: Matrix,
    pub(crate) bias: Option<Vector>,
    pub(crate) out: (Act, View),
}

/// Whether a product should wait.
pub(crate) fn waits(matmul: &Matmul, device: &Device, product: &Product<'_>) -> bool {
    matmul_few::may_gate(device, product)
        || matmul.may_precede_norm(device, product)
        || matmul_hopper::may_gate(device, product)
        || Matmul::may_add(device, product)
}

/// Queues a product of rows of which a norm may not be done yet.
pub(crate) fn run_after(
    norms: &mut SplitNorms,
    matmul: &mut Matmul,
    device: &mut Device,
    product: Product<'_>,
    before: Option<Before>,
) {
    if let Some(before) = before {
        if matmul.run_between(device, &product, before, After::default()) {
            return;
        }
        norms.finish(device);
    }
    matmul.run(device, product);
}

impl CudaBackend {
    /// Before each operation: what the host wrote to an activation goes to the device.
    pub(crate) fn settle(&mut self) {
        self.collector.begin();
        self.acts.settle(&mut self.device);
        self.catch_up();
    }

    /// Does what waits for what follows it.
    pub(crate) fn catch_up(&mut self) {
        self.multiply();
        self.norm_heads();
        self.norms.finish(&mut self.device);
    }

    /// Does the product that waits.
    pub(crate) fn multiply(&mut self) {
        let Some(Ungated { x, before, w, bias, out: (_, out) }) = self.ungated.take() else { return };
        let w = &self.matrices[w.0 as usize];
        let bias = bias.map(|bias| &mut self.vectors[bias.0 as usize]);
        let product = Product { x, w, bias, epilogue: Epilogue::Store, out };
        run_after(&mut self.norms, &mut self.matmul, &mut self.device, product, before);
    }

    /// Does it together with a gate; whether it could be.
    pub(crate) fn multiply_gated(&mut self, ungated: Ungated, activation: Activation, out: View) -> bool {
        let Ungated { x, before, w, bias, out: (_, own) } = ungated;
        let site = Site { x, w, bias, out: own, gate: Some((activation, out)) };
        let w = &self.matrices[w.0 as usize];
        let bias = bias.map(|bias| &mut self.vectors[bias.0 as usize]);
        let mut product = Product { x, w, bias, epilogue: Epilogue::Store, out: own };
        let gate = Some(Gate { activation, out });
        if self.ahead.note(product.kind(gate), site) {
            Self::order(&self.matmul, &self.device, &mut product, gate);
        }
        if let Some(before) = before {
            return self.matmul.run_gated_after(&mut self.device, &product, before, (activation, out));
        }
        self.matmul.run_gated(&mut self.device, &mut product, activation, out)
    }

    /// Adds the product that waits for it to a residual, and norms that, or begins to; false, and nothing happens, where none does.
    pub(crate) fn add_product(&mut self, residual: View, delta: Act, params: norm::Params, out: (Act, View)) -> bool {
        let fits = |product: &mut Ungated| {
            product.out.0 == delta && product.out.1.dtype == DType::F32 && product.x.ptr != residual.ptr
        };
        let Some(Ungated { x, before, w, bias, out: (_, own) }) = self.ungated.take_if(fits) else { return false };
        let w = &self.matrices[w.0 as usize];
        let bias = bias.map(|bias| &mut self.vectors[bias.0 as usize]);
        let mut product = Product { x, w, bias, epilogue: Epilogue::Store, out: own };
        if Matmul::may_add(&self.device, &product) {
            self.matmul.run_added(&mut self.device, product, residual);
            norm::norm(&mut self.device, residual, params, out.1);
            return true;
        }
        let may = x.ptr != out.1.ptr && self.matmul.may_precede_norm(&self.device, &product);
        let split = may.then(|| self.norms.split(&mut self.device, residual, params, out)).flatten();
        (product.epilogue, product.out) = (Epilogue::Accumulate, residual);
        if let Some((split, after)) = split
            && self.matmul.run_between(&mut self.device, &product, before.unwrap_or_default(), after)
        {
            self.norms.current = Some(split);
            return true;
        }
        run_after(&mut self.norms, &mut self.matmul, &mut self.device, product, before);
        self.norms.current = None;
        norm::norm(&mut self.device, residual, params, out.1);
        true
    }

    /// Does the norms of heads that wait.
    pub(crate) fn norm_heads(&mut self) {
        for HeadNorm { x, first_col, heads, dim, params } in self.waiting.take() {
            norm::head_norm(&mut self.device, self.acts.view(x), first_col, heads, dim, params);
        }
    }

    /// Gates what a product gave, or will give.
    pub(crate) fn gate_product(&mut self, gate_up: Act, activation: Activation, out: Act) {
        assert_ne!(gate_up, out, "a gate cannot overwrite its input");
        let touches = self.norms.is_touched_by(self.acts.address(out));
        let ungated = self.ungated.take_if(|product| product.out.0 == gate_up && !touches);
        self.settle_for(gate_up, out);
        let gate_up = self.acts.view(gate_up);
        let out = self.acts.target(out, gate_up.rows, gate_up.width / 2);
        self.collector.note(Op::Gated { gate_up, activation, out });
        if let Some(ungated) = ungated {
            if ungated.x.ptr != out.ptr && self.multiply_gated(ungated, activation, out) {
                return;
            }
            self.ungated = Some(ungated);
            self.multiply();
        }
        elementwise::gated(&mut self.device, gate_up, activation, out);
    }
}
