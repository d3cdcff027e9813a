//! What adapters add to a layer of a decode step.

use super::{Bench, LEADS, Model, Work, layer::Layer};
use kernels::ops::*;

const SLOTS: usize = 64;
const RANK: usize = 16;

impl Bench {
    /// Adapters of all linear projections of a layer, in every slot.
    pub(super) fn adapters(&mut self, model: &Model) -> [LoraSite; 4] {
        let Model { hidden, heads, inner, .. } = *model;
        let [q, kv] = [heads.q, heads.kv].map(|count| count * heads.dim);
        let layers: [(usize, &[usize]); 4] =
            [(hidden, &[q, kv, kv]), (q, &[hidden]), (hidden, &[inner, inner]), (inner, &[hidden])];
        layers.map(|(inputs, outputs)| {
            let shape = LoraShape { slots: SLOTS, max_rank: RANK, inputs, outputs, dtype: DType::Bf16, experts: None };
            let site = self.backend.new_lora_site(shape);
            for slot in 0..SLOTS {
                let numbers =
                    |count: usize| PlainElements { dtype: DType::Bf16, bytes: &self.noise[slot * 4096..][..2 * count] };
                let part = |outputs: &usize| {
                    Some(LoraWeights { rank: RANK, a: numbers(RANK * inputs), b: numbers(outputs * RANK) })
                };
                let parts: Vec<_> = outputs.iter().map(part).collect();
                write_and_wait(&mut self.backend, |to, taken| to.write_lora(site, slot as u32, &parts, taken));
            }
            site
        })
    }

    /// A layer of a decode step whose rows have no adapters, or take some in turn.
    pub(crate) fn adapted_layer(&mut self, model: &Model) {
        const ROWS: usize = 256;
        let layer = Layer::new(self, model, ROWS, 256 * ROWS).with_adapters(self, model);
        self.backend.set_slots(ROWS, 8);
        for rows in [1, 16, 64, ROWS] {
            for adapters in [0, 1, 8, 32, SLOTS] {
                if adapters > rows {
                    continue;
                }
                let slot = |row: usize| (adapters > 0).then(|| (row % adapters.max(1)) as u32);
                self.backend.set_adapters(&(0..rows).map(slot).collect::<Vec<_>>());
                self.begin(&vec![(255, 1); rows]);
                let seconds = self.time(2 * LEADS, |backend, i| layer.run(backend, i));
                let what = format!("layer, {rows} rows of 256, {adapters} adapters");
                self.report(model.name, &what, seconds, Work { bytes: layer.weight_bytes(), flops: 0.0 });
                for (index, name) in ["qkv", "o", "gate_up", "down"].iter().enumerate() {
                    if adapters > 0 {
                        let seconds = self.time(LEADS, |backend, i| layer.adapt(backend, i, index));
                        let what = format!("{name}, {rows} rows, {adapters} adapters");
                        self.report(model.name, &what, seconds, Work { bytes: 0.0, flops: 0.0 });
                    }
                }
            }
        }
    }
}
