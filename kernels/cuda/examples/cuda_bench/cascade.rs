//! Decode attention of sequences over one shared prefix. Beside `no-cascade`, in a call of its own, this shows what it
//! gains to read the prefix once.

use kernels::ops::*;

use crate::{BLOCK, Bench, LEADS, MOST_ROWS, Model, Work};

impl Bench {
    /// The share is that of reading the prefix once and each sequence's own tokens.
    pub(crate) fn prefix(&mut self, model: &Model, cache: KvDType) {
        let heads = model.heads;
        let qkv = self.act(MOST_ROWS, (heads.q + 2 * heads.kv) * heads.dim);
        let out = self.backend.new_rounded_act(MOST_ROWS, heads.q * heads.dim, DType::Bf16);
        let attention = self.attention(model);
        for (rows, shared, own) in [
            (64, 16384, 256),
            (8, 16384, 256),
            (256, 16384, 256),
            (64, 2048, 256),
            (64, 512, 256),
            (8, 2048, 256),
            (4, 2048, 256),
        ] {
            let tokens = shared + rows * own;
            let caches = self.caches(heads, qkv, tokens, cache);
            self.begin_sharing((shared / BLOCK) as u32, &vec![(shared + own - 1, 1); rows]);
            let seconds =
                self.time(LEADS, |backend, i| backend.attention(qkv, attention, caches[i % caches.len()], None, out));
            let bytes = (tokens * heads.kv * heads.dim * 2 * cache.size()) as f64;
            let flops = (4 * rows * (shared + own) * heads.q * heads.dim) as f64;
            let what = format!("prefix, {rows} x {own} after {shared}, {}", cache.name());
            self.report(model.name, &what, seconds, Work { bytes, flops });
        }
    }
}
