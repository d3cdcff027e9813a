//! Products that wait for a gate to follow them, so that one kernel does both. Whatever else comes next first does what waits.

use super::CudaBackend;
use super::acts::View;
use super::matmul::Product;
use super::matmul_few;
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
}
