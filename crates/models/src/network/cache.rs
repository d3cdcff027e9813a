//! The cache of a network's layers: which memories it takes, and how layers are bound to them.

use std::ops::Range;

use kernels::ops::{Backend, HeadScales, KvDType, KvLayer};
use model_spec::ModelSpec;

use super::Layer;
use crate::batch::Blocks;
use crate::cache::{Arrangement, CacheLayout, CacheSpec, Pool, StateSpec, StateTypes, arrange};
use crate::mixer::{self, CacheBinding};
use crate::model::Memory;
use crate::tp::Shard;
use crate::weights::cache_scales::LayerScales;

/// What it keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheTypes {
    /// Keys and values.
    pub kv: KvDType,
    /// Recurrent states.
    pub states: StateTypes,
}

/// KV memory and recurrent states of some layers of a model. Layers are arranged in groups over the whole model, so
/// that all stages of a pipeline have the same block tables.
pub(super) struct Cache {
    types: CacheTypes,
    /// Of the whole model, as is the arrangement.
    specs: Vec<CacheSpec>,
    scales: Vec<LayerScales>,
    shard: Shard,
    arrangement: Arrangement,
    /// Which of the layers are here.
    layers: Range<usize>,
    /// By the arrangement's number; absent where no layer of these uses it.
    memories: Vec<Option<KvLayer>>,
    blocks: Option<Blocks>,
}

impl Cache {
    /// `scales`: of the whole model's layers.
    pub(super) fn new(
        spec: &ModelSpec,
        shard: Shard,
        layers: Range<usize>,
        types: CacheTypes,
        scales: Vec<LayerScales>,
    ) -> Self {
        let specs: Vec<CacheSpec> = spec.layers.iter().map(|layer| mixer::cache_spec(&layer.mixer, shard)).collect();
        let arrangement = arrange(&specs);
        Self { types, specs, scales, shard, arrangement, layers, memories: Vec::new(), blocks: None }
    }

    pub(super) fn layout(&self) -> CacheLayout {
        let CacheTypes { kv, states } = self.types;
        self.arrangement.layout(&self.specs, self.layers.clone(), kv.size(), states)
    }

    /// What steps may name, once there is memory.
    pub(super) fn blocks(&self) -> Option<Blocks> {
        self.blocks
    }

    pub(super) fn memories(&self) -> impl Iterator<Item = KvLayer> {
        self.memories.iter().flatten().copied()
    }

    /// Allocates it, and binds the layers to it.
    pub(super) fn allocate(&mut self, layers: &mut [Layer], backend: &mut dyn Backend, memory: Memory) {
        assert!(self.blocks.is_none(), "a network's cache is allocated once");
        let Memory { num_blocks, block_size, max_sequences } = memory;
        let pool = Pool { num_blocks, block_size, dtype: self.types.kv };
        let used = self.arrangement.memories_of(self.layers.clone());
        let memories = self.arrangement.memories.iter().zip(used);
        self.memories = memories.map(|(kv, used)| used.then(|| backend.new_kv(kv.kv_shape(pool)))).collect();
        for (layer, index) in layers.iter_mut().zip(self.layers.clone()) {
            let kv = self.arrangement.layers[index].and_then(|cache| {
                let memory = self.memories[cache.memory]?;
                let LayerScales { all, heads } = &self.scales[index];
                let head_scales = heads.as_ref().map(|scales| self.head_scales(scales, backend));
                Some(KvLayer { table: cache.group as u32, scales: *all, head_scales, ..memory })
            });
            let states = self.specs[index].states.iter();
            let states = states
                .map(|&StateSpec { kind, values }| backend.new_state(max_sequences, values, self.types.states.of(kind)))
                .collect();
            layer.mixer.bind_cache(CacheBinding { kv, states });
        }
        let tables = self.arrangement.groups.len();
        self.blocks = Some(Blocks { count: num_blocks, size: block_size, tables, slots: max_sequences });
    }

    /// Loads the scales of this rank's heads, of those of all ranks.
    fn head_scales(&self, [key, value]: &[Vec<f32>; 2], backend: &mut dyn Backend) -> HeadScales {
        let own = self.shard.kv_heads(key.len());
        HeadScales { key: backend.load_vector(&key[own.clone()]), value: backend.load_vector(&value[own]) }
    }
}
