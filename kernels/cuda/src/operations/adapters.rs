//! What the GPU does for adapters: their low-rank updates, and the matrices they have in place of the model's.

use crate::CudaBackend;
use crate::fusion::op::Op;
use crate::jit::sources::Need;
use crate::layers::lora::{Lora, LoraTarget};
use kernels::ops::{self, Act, ExpertRouting, RowSelection};

impl ops::Lora for CudaBackend {
    fn has_lora(&self) -> bool {
        true
    }

    fn new_lora_site(&mut self, shape: ops::LoraShape<'_>) -> ops::LoraSite {
        self.device.bind();
        self.device.order_for(Need::Adapters);
        ops::LoraSite(self.lora.add_site(&mut self.device, &mut self.staging, shape))
    }

    fn writes_beside_steps(&self) -> bool {
        true
    }

    fn begin_writes(&mut self) {
        self.device.bind();
        self.end_operations();
        self.lora.writes.begin(&mut self.device);
    }

    fn write_lora(
        &mut self,
        site: ops::LoraSite,
        slot: u32,
        parts: &[Option<ops::LoraWeights<'_>>],
        taken: &mut usize,
    ) -> ops::Taken {
        self.device.bind();
        self.lora.write(&mut self.device, LoraTarget { site: site.0, slot }, parts, taken)
    }

    fn set_adapters(&mut self, slots: &[Option<u32>]) {
        self.lora.set(slots);
    }

    fn expect_adapters(&mut self) {
        self.lora.expect();
    }

    fn select_adapters(&mut self, selection: RowSelection<'_>) {
        self.lora.select(&mut self.device, selection.rows);
    }

    fn lora(&mut self, x: Act, site: ops::LoraSite, out: Act) {
        if !self.lora.is_active() {
            return;
        }
        assert_ne!(x, out, "a delta cannot overwrite its input");
        let (x, out) = (self.acts.view(x), self.acts.view(out));
        let gates = self.lora.gates(&self.device, site.0, x, out);
        self.append(Op::Lora(Lora { x, site: site.0, out, gates }));
    }

    fn adds_deltas(&self) -> bool {
        self.lora.is_active()
    }

    fn expert_lora(&mut self, x: Act, site: ops::LoraSite, choice: ExpertRouting, out: Act) {
        if !self.lora.is_active() {
            return;
        }
        assert_ne!(x, out, "a delta cannot overwrite its input");
        self.append(Op::Opaque("expert_lora"));
        let (rows, choices) = ([self.acts.view(x), self.acts.view(out)], &self.choices[choice.0 as usize]);
        self.lora.add_expert_deltas(&mut self.device, site.0, choices, rows);
    }

    fn lora_embed(&mut self, site: ops::LoraSite, entries: ops::Entries, out: Act) {
        if !self.lora.is_active() {
            return;
        }
        self.append(Op::Opaque("lora_embed"));
        let out = self.acts.view(out);
        self.lora.add_entries(&mut self.device, self.batch.pointers.tokens, site.0, entries, out);
    }

    fn new_saved_site(&mut self, shape: ops::SavedShape) -> ops::SavedSite {
        self.device.bind();
        self.lora.writes.prepare(&mut self.device);
        ops::SavedSite(self.lora.saved.add(&mut self.device, shape))
    }

    fn write_saved(
        &mut self,
        site: ops::SavedSite,
        slot: u32,
        matrix: Option<ops::PlainElements<'_>>,
        taken: &mut usize,
    ) -> ops::Taken {
        self.device.bind();
        self.lora.write_saved(&mut self.device, LoraTarget { site: site.0, slot }, matrix, taken)
    }

    fn has_written(&mut self) -> bool {
        self.device.bind();
        self.lora.writes.have_arrived()
    }

    fn saved_matmul(&mut self, x: Act, site: ops::SavedSite, out: Act) {
        if !self.lora.is_active() {
            return;
        }
        assert_ne!(x, out, "a product cannot overwrite its input");
        self.append(Op::Opaque("saved_matmul"));
        let rows = [self.acts.view(x), self.acts.view(out)];
        self.lora.saved.matmul(&mut self.device, self.lora.slots(), site.0, rows);
    }

    fn mask_saved(&mut self, site: ops::SavedSite, own: usize, out: Act) {
        self.append(Op::Opaque("mask_saved"));
        let slots = self.lora.is_active().then(|| self.lora.slots());
        let out = self.acts.view(out);
        self.lora.saved.mask(&mut self.device, slots, site.0, own, out);
    }

    fn saved_embed(&mut self, site: ops::SavedSite, entries: ops::Entries, out: Act) {
        if !self.lora.is_active() {
            return;
        }
        self.append(Op::Opaque("saved_embed"));
        let (out, of_rows) = (self.acts.view(out), [self.lora.slots(), self.batch.pointers.tokens]);
        self.lora.saved.embed(&mut self.device, of_rows, site.0, entries, out);
    }
}
