//! The one decoder: runs any [`ModelSpec`] over any [`Backend`].
//!
//! A layer's output is not added to the residual stream `x` at once: it waits in `delta`, so that the add and the next norm are one
//! operation, and so that with several ranks it can be summed over them first.

use std::collections::HashMap;

use collectives::Collective;
use kernels::ops::{Act, Backend, Batch, DType, Epilogue, KvLayer, KvShape, Norm, RowSelection};
use model_spec::{MlpKind, ModelSpec, Residual};

use crate::batch;
use crate::error::ForwardError;
use crate::network::{Layer, Network};
use crate::tp::Shard;
use crate::{Limits, Logits};

/// Called with the residual stream after the embedding (0) and after each layer (1, 2, …), `[rows, hidden]`; the last is normalised.
pub type Observer<'a> = &'a mut dyn FnMut(usize, &[f32]);

pub(crate) struct Decoder {
    spec: ModelSpec,
    shard: Shard,
    limits: Limits,
    compute: DType,
    backend: Box<dyn Backend>,
    network: Network,
    acts: Acts,
    kv: Vec<KvLayer>,
    blocks: batch::Blocks,
    /// Logits of all ranks `[ranks, rows, head_width]`, and then `[rows, vocab]`; unused with one rank.
    gathered: Vec<f32>,
    logits: Vec<f32>,
}

/// Activation buffers. Layers of equal widths share theirs.
struct Acts {
    /// The residual stream.
    x: Act,
    /// Its norm.
    normed: Act,
    /// What is to be added to it.
    delta: Act,
    /// By layer.
    layers: Vec<LayerActs>,
    /// Rows of `x` whose logits are wanted, and their norm.
    picked: Act,
    picked_normed: Act,
    logits: Act,
    bytes: u64,
}

#[derive(Clone, Copy)]
struct LayerActs {
    qkv: Act,
    attended: Act,
    up: Act,
    inner: Act,
}

/// Makes activation buffers and counts their bytes.
struct Allocator<'a> {
    backend: &'a mut dyn Backend,
    shared: HashMap<(&'static str, usize), Act>,
    bytes: u64,
}

impl Allocator<'_> {
    fn new_act(&mut self, rows: usize, width: usize) -> Act {
        self.bytes += (rows * width * size_of::<f32>()) as u64;
        self.backend.new_act(rows, width)
    }

    fn shared(&mut self, role: &'static str, rows: usize, width: usize) -> Act {
        if let Some(act) = self.shared.get(&(role, width)) {
            return *act;
        }
        let act = self.new_act(rows, width);
        self.shared.insert((role, width), act);
        act
    }
}

impl Acts {
    fn new(spec: &ModelSpec, network: &Network, limits: Limits, backend: &mut dyn Backend) -> Self {
        let mut allocator = Allocator { backend, shared: HashMap::new(), bytes: 0 };
        let (rows, hidden) = (limits.max_rows, spec.hidden_size);
        let layers = (network.layers.iter())
            .map(|layer| LayerActs {
                qkv: allocator.shared("qkv", rows, layer.qkv_width()),
                attended: allocator.shared("attended", rows, layer.attention_width()),
                up: match layer.mlp.kind {
                    MlpKind::Gated => allocator.shared("gate_up", rows, 2 * layer.mlp.width),
                    MlpKind::Plain => allocator.shared("inner", rows, layer.mlp.width),
                },
                inner: allocator.shared("inner", rows, layer.mlp.width),
            })
            .collect();
        Self {
            x: allocator.new_act(rows, hidden),
            normed: allocator.new_act(rows, hidden),
            delta: allocator.new_act(rows, hidden),
            layers,
            picked: allocator.new_act(limits.max_logit_rows, hidden),
            picked_normed: allocator.new_act(limits.max_logit_rows, hidden),
            logits: allocator.new_act(limits.max_logit_rows, network.head_width),
            bytes: allocator.bytes,
        }
    }
}

/// Parts of a decoder.
pub(crate) struct Parts {
    pub spec: ModelSpec,
    pub shard: Shard,
    pub limits: Limits,
    pub compute: DType,
    pub backend: Box<dyn Backend>,
    pub network: Network,
}

impl Decoder {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { spec, shard, limits, compute, mut backend, network } = parts;
        let acts = Acts::new(&spec, &network, limits, &mut *backend);
        let (gathered, logits) = match shard.size {
            1 => (0, 0),
            size => (size * limits.max_logit_rows * network.head_width, limits.max_logit_rows * spec.vocab_size),
        };
        Self {
            spec,
            shard,
            limits,
            compute,
            backend,
            network,
            acts,
            kv: Vec::new(),
            blocks: batch::Blocks { count: 0, size: 0 },
            gathered: vec![0.0; gathered],
            logits: vec![0.0; logits],
        }
    }

    pub(crate) fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    pub(crate) fn describe(&self) -> String {
        self.backend.describe()
    }

    pub(crate) fn activation_bytes(&self) -> u64 {
        self.acts.bytes + ((self.gathered.len() + self.logits.len()) * size_of::<f32>()) as u64
    }

    pub(crate) fn kv_bytes_per_token(&self) -> u64 {
        let heads = self.network.layers.iter().map(|layer| layer.attention.heads);
        heads.map(|heads| (heads.kv * (heads.dim + heads.v_dim) * self.compute.size()) as u64).sum()
    }

    pub(crate) fn allocate_kv(&mut self, num_blocks: usize, block_size: usize) {
        assert!(self.kv.is_empty(), "key/value memory is allocated once");
        let shape = |layer: &Layer| {
            let heads = layer.attention.heads;
            KvShape {
                num_blocks,
                block_size,
                kv_heads: heads.kv,
                head_dim: heads.dim,
                v_head_dim: heads.v_dim,
                dtype: self.compute,
            }
        };
        let shapes: Vec<KvShape> = self.network.layers.iter().map(shape).collect();
        self.kv = shapes.into_iter().map(|shape| self.backend.new_kv(shape)).collect();
        self.blocks = batch::Blocks { count: num_blocks, size: block_size };
    }

    pub(crate) fn copy_blocks(&mut self, from: &[u32], to: &[u32]) {
        for kv in &self.kv {
            self.backend.copy_blocks(*kv, from, to);
        }
    }

    pub(crate) fn forward(
        &mut self,
        batch: Batch<'_>,
        logit_rows: &[u32],
        group: &mut dyn Collective,
        mut observer: Option<Observer<'_>>,
    ) -> Result<Logits<'_>, ForwardError> {
        self.check(batch, logit_rows, group)?;
        self.backend.begin(batch);
        self.embed(group)?;
        self.observe(&mut observer, 0);
        let mut pending = false;
        for index in 0..self.network.layers.len() {
            self.layer(index, pending, &mut observer, group)?;
            pending = true;
        }
        if pending {
            self.backend.add(self.acts.x, self.acts.delta);
        }
        if let Some(observer) = observer {
            self.finish_observed(observer);
        }
        self.head(logit_rows, group)
    }

    fn check(&self, batch: Batch<'_>, logit_rows: &[u32], group: &dyn Collective) -> Result<(), ForwardError> {
        let Shard { rank, size } = self.shard;
        if (group.rank(), group.world_size()) != (rank, size) {
            return Err(ForwardError::Group { rank, size, group_rank: group.rank(), group_size: group.world_size() });
        }
        if self.kv.is_empty() && !self.network.layers.is_empty() {
            return Err(ForwardError::NoKv);
        }
        batch::check(batch, self.blocks, self.spec.vocab_size, self.limits.max_rows)?;
        batch::check_logit_rows(logit_rows, batch.tokens.len(), self.limits.max_logit_rows)
    }

    fn embed(&mut self, group: &mut dyn Collective) -> Result<(), ForwardError> {
        let Self { backend, network, acts, .. } = self;
        backend.embed(network.embedding, network.first_entry, self.spec.embedding.scale, acts.x);
        self.sum_over_ranks(self.acts.x, group)?;
        if let Some(norm) = self.network.embedding_norm {
            self.backend.norm(self.acts.x, norm, self.acts.normed);
            std::mem::swap(&mut self.acts.x, &mut self.acts.normed);
        }
        Ok(())
    }

    /// Runs a layer up to its `delta`. `pending`: the layer before left one.
    fn layer(
        &mut self,
        index: usize,
        pending: bool,
        observer: &mut Option<Observer<'_>>,
        group: &mut dyn Collective,
    ) -> Result<(), ForwardError> {
        let layer = &self.network.layers[index];
        let (residual, scale) = (layer.residual, layer.residual_scale);
        let (before_attention, before_mlp) = (layer.before_attention, layer.before_mlp);
        let (after_attention, after_mlp) = (layer.after_attention, layer.after_mlp);
        let input = self.enter(pending, before_attention);
        if pending {
            self.observe(observer, index);
        }
        self.attention(index, input);
        match residual {
            Residual::Sequential => {
                self.leave(after_attention, scale, group)?;
                let input = self.enter(true, before_mlp);
                self.mlp(index, input, Epilogue::Store);
            }
            Residual::Parallel => {
                let input = if before_mlp.is_some() { self.enter(false, before_mlp) } else { input };
                self.mlp(index, input, Epilogue::Accumulate);
            }
        }
        self.leave(after_mlp, scale, group)
    }

    /// `x += delta` if one is pending; then the input of the next part: the norm of `x`, or `x` itself.
    fn enter(&mut self, pending: bool, norm: Option<Norm>) -> Act {
        let Acts { x, normed, delta, .. } = self.acts;
        match (pending, norm) {
            (true, Some(norm)) => self.backend.add_norm(x, delta, norm, normed),
            (false, Some(norm)) => self.backend.norm(x, norm, normed),
            (true, None) => self.backend.add(x, delta),
            (false, None) => {}
        }
        if norm.is_some() { normed } else { x }
    }

    /// Makes `delta` what is to be added to `x`.
    fn leave(&mut self, norm: Option<Norm>, scale: f32, group: &mut dyn Collective) -> Result<(), ForwardError> {
        self.sum_over_ranks(self.acts.delta, group)?;
        if let Some(norm) = norm {
            self.backend.norm(self.acts.delta, norm, self.acts.normed);
            std::mem::swap(&mut self.acts.delta, &mut self.acts.normed);
        }
        if scale != 1.0 {
            self.backend.scale(self.acts.delta, scale);
        }
        Ok(())
    }

    fn attention(&mut self, index: usize, input: Act) {
        let Self { backend, network, acts, kv, .. } = self;
        let (layer, kv, buffers) = (&network.layers[index], kv[index], acts.layers[index]);
        let heads = layer.attention.heads;
        backend.matmul(input, layer.qkv.matrix, layer.qkv.bias, Epilogue::Store, buffers.qkv);
        if let Some(norm) = layer.query_norm {
            backend.head_norm(buffers.qkv, 0, heads.q, heads.dim, norm);
        }
        if let Some(norm) = layer.key_norm {
            backend.head_norm(buffers.qkv, heads.q * heads.dim, heads.kv, heads.dim, norm);
        }
        backend.rope_and_cache(buffers.qkv, heads, layer.rope, kv);
        backend.attention(buffers.qkv, layer.attention, kv, buffers.attended);
        backend.matmul(buffers.attended, layer.output.matrix, layer.output.bias, Epilogue::Store, acts.delta);
    }

    fn mlp(&mut self, index: usize, input: Act, epilogue: Epilogue) {
        let Self { backend, network, acts, .. } = self;
        let (mlp, buffers) = (&network.layers[index].mlp, acts.layers[index]);
        backend.matmul(input, mlp.up.matrix, mlp.up.bias, Epilogue::Store, buffers.up);
        match mlp.kind {
            MlpKind::Gated => backend.gated(buffers.up, mlp.activation, buffers.inner),
            MlpKind::Plain => backend.activate(buffers.inner, mlp.activation),
        }
        backend.matmul(buffers.inner, mlp.down.matrix, mlp.down.bias, epilogue, acts.delta);
    }

    fn head(&mut self, logit_rows: &[u32], group: &mut dyn Collective) -> Result<Logits<'_>, ForwardError> {
        let vocab = self.spec.vocab_size;
        if logit_rows.is_empty() {
            return Ok(Logits { rows: 0, vocab, data: &[] });
        }
        let Self { backend, network, acts, .. } = self;
        backend.gather(acts.x, RowSelection { rows: logit_rows }, acts.picked);
        let input = match network.final_norm {
            Some(norm) => {
                backend.norm(acts.picked, norm, acts.picked_normed);
                acts.picked_normed
            }
            None => acts.picked,
        };
        backend.matmul(input, network.head.matrix, network.head.bias, Epilogue::Store, acts.logits);
        if self.spec.head.scale != 1.0 {
            backend.scale(acts.logits, self.spec.head.scale);
        }
        if let Some(cap) = self.spec.head.soft_cap {
            backend.host_mut(acts.logits).iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
        }
        let rows = logit_rows.len();
        if self.shard.size > 1 {
            self.gather_logits(rows, group)?;
            return Ok(Logits { rows, vocab, data: &self.logits[..rows * vocab] });
        }
        Ok(Logits { rows, vocab, data: self.backend.read(self.acts.logits) })
    }

    /// Puts the ranks' parts of each row side by side, without the padding at the end.
    fn gather_logits(&mut self, rows: usize, group: &mut dyn Collective) -> Result<(), ForwardError> {
        let (vocab, width) = (self.spec.vocab_size, self.network.head_width);
        let all = &mut self.gathered[..self.shard.size * rows * width];
        group.all_gather(self.backend.read(self.acts.logits), all)?;
        for (rank, part) in all.chunks_exact(rows * width).enumerate() {
            let columns = rank * width..vocab.min((rank + 1) * width);
            for (row, source) in part.chunks_exact(width).enumerate() {
                let target = &mut self.logits[row * vocab..(row + 1) * vocab];
                if let Some(target) = target.get_mut(columns.clone()) {
                    target.copy_from_slice(&source[..target.len()]);
                }
            }
        }
        Ok(())
    }

    fn sum_over_ranks(&mut self, act: Act, group: &mut dyn Collective) -> Result<(), ForwardError> {
        if self.shard.size > 1 {
            group.all_reduce_sum(self.backend.host_mut(act))?;
        }
        Ok(())
    }

    fn observe(&mut self, observer: &mut Option<Observer<'_>>, index: usize) {
        if let Some(observer) = observer {
            observer(index, self.backend.read(self.acts.x));
        }
    }

    /// The last observation is of the normalised rows, as the reference library reports them.
    fn finish_observed(&mut self, observer: Observer<'_>) {
        let act = match self.network.final_norm {
            Some(norm) => {
                self.backend.norm(self.acts.x, norm, self.acts.normed);
                self.acts.normed
            }
            None => self.acts.x,
        };
        observer(self.network.layers.len(), self.backend.read(act));
    }
}
