//! What waits for what follows it, so that one kernel does both: products for gates, norms of heads for rotations. Whatever else comes next
//! first does what waits.

use super::CudaBackend;
use super::acts::View;
use super::head_norms::HeadNorm;
use super::matmul::Product;
use super::{elementwise, matmul_few, norm};
use kernels::ops::{Act, Activation, Epilogue, Matrix, Vector};

/// A product, checked, that nothing was launched for yet.
#[derive(Clone, Copy)]
pub(crate) struct Ungated {
    pub(crate) x: View,
    pub(crate) w: Matrix,
    pub(crate) bias: Option<Vector>,
    pub(crate) out: (Act, View),
}

impl CudaBackend {
    /// Before each operation: what the host wrote to an activation goes to the device.
    pub(crate) fn settle(&mut self) {
        self.acts.settle(&mut self.device);
        self.catch_up();
    }

    /// Does what waits for what follows it.
    pub(crate) fn catch_up(&mut self) {
        self.multiply();
        self.norm_heads();
    }

    /// Does the product that waits.
    pub(crate) fn multiply(&mut self) {
        let Some(Ungated { x, w, bias, out: (_, out) }) = self.ungated.take() else { return };
        let w = &self.matrices[w.0 as usize];
        let bias = bias.map(|bias| &mut self.vectors[bias.0 as usize]);
        self.matmul.run(&mut self.device, Product { x, w, bias, epilogue: Epilogue::Store, out });
    }

    /// Does it together with a gate; whether it could be.
    pub(crate) fn multiply_gated(&mut self, ungated: Ungated, activation: Activation, out: View) -> bool {
        let w = &self.matrices[ungated.w.0 as usize];
        let bias = ungated.bias.map(|bias| &mut self.vectors[bias.0 as usize]);
        let product = Product { x: ungated.x, w, bias, epilogue: Epilogue::Store, out: ungated.out.1 };
        matmul_few::run_gated(&mut self.device, &product, activation, out)
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
        let ungated = self.ungated.take_if(|product| product.out.0 == gate_up);
        self.settle();
        let gate_up = self.acts.view(gate_up);
        let out = self.acts.target(out, gate_up.rows, gate_up.width / 2);
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
