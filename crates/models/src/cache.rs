//! How a model's layers share KV memory: KV cache groups.
//!
//! Layers that keep the same tokens form groups with a block table each: all tokens, or those of a window. The tables
//! of all groups take blocks from one pool, so that what windows do not need is there for whoever needs it. For that, a
//! block must be of use to any group: it is a block of *every* memory, and the groups' layers use the same memories in
//! turn.
//!
//! ```text
//!            memory 0   memory 1
//! group 0    layer 5    layer 11     keeps everything
//! group 1    layer 0    layer 1      window
//! group 2    layer 2    layer 3      window                 (Gemma 3; the idea is that of vLLM's hybrid cache)
//! ```

use std::ops::Range;

use kernels::ops::{Backend, DType, KvShape};

/// Most block tables of a sequence.
const MOST_GROUPS: usize = 8;

/// The cache that one layer needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheSpec {
    /// Keys and values.
    pub tokens: Option<TokenCache>,
    /// Recurrent states of a sequence.
    pub states: Vec<StateSpec>,
}

/// What a layer keeps of a sequence whatever its length, on this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateSpec {
    pub kind: StateKind,
    /// How many.
    pub values: usize,
}

/// What it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateKind {
    /// The last inputs of a convolution.
    Conv,
    /// What rows add to, and what decays.
    Recurrent,
}

/// What states are asked to be kept in; absent: [`StateTypes::new`] says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateOptions {
    /// The last inputs of convolutions.
    pub conv: Option<DType>,
    /// What rows add to.
    pub recurrent: Option<DType>,
}

/// What states are kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateTypes {
    conv: DType,
    recurrent: DType,
}

impl StateTypes {
    /// A convolution's inputs are kept as the device has rows, so that nothing is lost. Where rows have 16 bits,
    /// recurrent states have those of f16, whose 11 bits of mantissa lose less than rows do. (bf16 has 8: a state that
    /// loses a thousandth of itself in a step is rounded to what it was, and never decays.)
    pub(crate) fn new(asked: StateOptions, compute: DType, backend: &dyn Backend) -> Self {
        let rows = backend.rounded_type(compute);
        let recurrent = if rows == DType::F32 { DType::F32 } else { DType::F16 };
        Self { conv: asked.conv.unwrap_or(rows), recurrent: asked.recurrent.unwrap_or(recurrent) }
    }

    pub(crate) fn of(self, kind: StateKind) -> DType {
        match kind {
            StateKind::Conv => self.conv,
            StateKind::Recurrent => self.recurrent,
        }
    }
}

/// The states of a layer with a convolution of `channels` channels and `kernel` rows.
pub(crate) fn states(kernel: usize, channels: usize, recurrent: usize) -> Vec<StateSpec> {
    vec![
        StateSpec { kind: StateKind::Conv, values: (kernel - 1) * channels },
        StateSpec { kind: StateKind::Recurrent, values: recurrent },
    ]
}

/// Paged keys and values of one layer, on this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenCache {
    pub kv_heads: usize,
    pub head_dim: usize,
    pub v_head_dim: usize,
    /// Values are a part of keys.
    pub shared: bool,
    /// A token sees itself and `window - 1` before it; absent: all.
    pub window: Option<usize>,
    /// Nothing is read after the step that wrote it, so that all layers may use one memory.
    pub scratch: bool,
}

impl TokenCache {
    /// Elements of a token.
    fn elements(&self) -> usize {
        self.kv_heads * (self.head_dim + if self.shared { 0 } else { self.v_head_dim })
    }

    /// Layers of one shape can use one memory.
    fn shape(self) -> Self {
        Self { window: None, ..self }
    }

    pub(crate) fn kv_shape(self, pool: Pool) -> KvShape {
        let Self { kv_heads, head_dim, v_head_dim, shared, .. } = self;
        let Pool { num_blocks, block_size, dtype } = pool;
        KvShape { num_blocks, block_size, kv_heads, head_dim, v_head_dim, shared, dtype }
    }
}

/// Blocks of every memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool {
    pub num_blocks: usize,
    /// Tokens a block.
    pub block_size: usize,
    pub dtype: kernels::ops::KvDType,
}

/// The cache of a model, on this rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheLayout {
    /// At least one; each has a block table in every sequence.
    pub groups: Vec<CacheGroup>,
    /// Bytes that a token's place takes in a block: that of all memories.
    pub place_bytes: u64,
    /// Bytes of recurrent state of one sequence.
    pub state_bytes: u64,
}

impl CacheLayout {
    /// Of a model without a cache: its blocks are numbers without memory.
    pub(crate) fn nothing() -> Self {
        let group = CacheGroup { layers: 0, window: None, bytes_per_token: 0 };
        Self { groups: vec![group], place_bytes: 0, state_bytes: 0 }
    }
}

/// Layers that keep the same tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheGroup {
    /// How many.
    pub layers: usize,
    /// A token sees itself and `window - 1` before it; absent: all before it.
    pub window: Option<usize>,
    /// Bytes that a kept token takes in them.
    pub bytes_per_token: u64,
}

/// Which block table and which memory each layer uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrangement {
    /// By layer; absent for layers without keys and values.
    pub layers: Vec<Option<LayerCache>>,
    pub memories: Vec<TokenCache>,
    pub groups: Vec<Vec<usize>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LayerCache {
    pub group: usize,
    pub memory: usize,
}

/// Arranges layers in groups over as few memories as go.
pub(crate) fn arrange(layers: &[CacheSpec]) -> Arrangement {
    let groups = group(layers);
    let mut caches = vec![None; layers.len()];
    let mut memories: Vec<TokenCache> = Vec::new();
    for (group, members) in groups.iter().enumerate() {
        let mut taken = vec![false; memories.len()];
        for &layer in members {
            let Some(shape) = layers[layer].tokens.map(TokenCache::shape) else { continue };
            let fits = |&memory: &usize| memories[memory] == shape && (shape.scratch || !taken[memory]);
            let free = (0..memories.len()).find(fits);
            let memory = free.unwrap_or_else(|| {
                memories.push(shape);
                taken.push(false);
                memories.len() - 1
            });
            taken[memory] = true;
            caches[layer] = Some(LayerCache { group, memory });
        }
    }
    Arrangement { layers: caches, memories, groups }
}

/// Layers by window, those without one first, each kind cut into groups of about the same size.
fn group(layers: &[CacheSpec]) -> Vec<Vec<usize>> {
    let mut kinds: Vec<(Option<usize>, Vec<usize>)> = Vec::new();
    for (layer, tokens) in layers.iter().enumerate().filter_map(|(layer, spec)| Some((layer, spec.tokens?))) {
        match kinds.iter_mut().find(|(window, _)| *window == tokens.window) {
            Some((_, members)) => members.push(layer),
            None => kinds.push((tokens.window, vec![layer])),
        }
    }
    if kinds.is_empty() {
        return vec![Vec::new()];
    }
    kinds.sort_by_key(|(window, _)| *window);
    let size = group_size(&kinds);
    kinds.iter().flat_map(|(_, members)| members.chunks(size).map(<[usize]>::to_vec)).collect()
}

/// Layers a group: as many as waste the fewest places, first in groups that keep everything, then in those with a
/// window.
fn group_size(kinds: &[(Option<usize>, Vec<usize>)]) -> usize {
    let largest = kinds.iter().map(|(_, members)| members.len()).max().unwrap_or(1);
    let count = |size: usize| kinds.iter().map(|(_, members)| members.len().div_ceil(size)).sum::<usize>();
    let waste = |size: usize, windows: bool| -> usize {
        let kinds = kinds.iter().filter(|(window, _)| window.is_some() == windows);
        kinds.map(|(_, members)| members.len().next_multiple_of(size) - members.len()).sum()
    };
    let possible = (1..=largest).filter(|&size| count(size) <= MOST_GROUPS.max(kinds.len()));
    possible.min_by_key(|&size| (waste(size, false), waste(size, true), count(size))).unwrap_or(largest)
}

impl Arrangement {
    /// Which memories these layers use, by number.
    pub(crate) fn memories_of(&self, layers: Range<usize>) -> Vec<bool> {
        let mut used = vec![false; self.memories.len()];
        self.layers[layers].iter().flatten().for_each(|cache| used[cache.memory] = true);
        used
    }

    /// What some of the layers take, in bytes, for elements of `element` bytes and such states. The groups are those of
    /// all layers.
    pub(crate) fn layout(
        &self,
        specs: &[CacheSpec],
        layers: Range<usize>,
        element: usize,
        kept: StateTypes,
    ) -> CacheLayout {
        let bytes = |tokens: &TokenCache| (tokens.elements() * element) as u64;
        let group = |members: &Vec<usize>| {
            let here = || members.iter().filter(|layer| layers.contains(layer));
            CacheGroup {
                layers: here().count(),
                window: members.first().and_then(|&layer| specs[layer].tokens?.window),
                bytes_per_token: here().filter_map(|&layer| specs[layer].tokens).map(|tokens| bytes(&tokens)).sum(),
            }
        };
        let used = self.memories.iter().zip(self.memories_of(layers.clone())).filter(|(_, used)| *used);
        let states = specs[layers.clone()].iter().flat_map(|spec| &spec.states);
        CacheLayout {
            groups: self.groups.iter().map(group).collect(),
            place_bytes: used.map(|(memory, _)| bytes(memory)).sum(),
            state_bytes: states.map(|state| (state.values * kept.of(state.kind).size()) as u64).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXACT: StateTypes = StateTypes { conv: DType::F32, recurrent: DType::F32 };

    fn specs(windows: &[Option<usize>]) -> Vec<CacheSpec> {
        let tokens =
            |window| TokenCache { kv_heads: 2, head_dim: 8, v_head_dim: 8, shared: false, window, scratch: false };
        windows.iter().map(|&window| CacheSpec { tokens: Some(tokens(window)), states: Vec::new() }).collect()
    }

    fn check(windows: &[Option<usize>], groups: &[&[usize]], memories: usize) {
        let layers = specs(windows);
        let arrangement = arrange(&layers);
        assert_eq!(arrangement.groups, groups, "{windows:?}");
        assert_eq!(arrangement.memories.len(), memories, "{windows:?}");
        let mut used: Vec<_> = arrangement.layers.iter().flatten().map(|layer| (layer.group, layer.memory)).collect();
        used.sort_unstable();
        used.dedup();
        assert_eq!(used.len(), windows.len(), "no two layers of a group share a memory");
    }

    #[test]
    fn layers_of_a_kind_are_one_group() {
        check(&[None; 4], &[&[0, 1, 2, 3]], 4);
        check(&[Some(16); 3], &[&[0, 1, 2]], 3);
    }

    #[test]
    fn kinds_share_memories() {
        check(&[Some(16), None, Some(16), None], &[&[1, 3], &[0, 2]], 2);
        check(&[Some(16), Some(16), None, Some(16)], &[&[2], &[0], &[1], &[3]], 1);
        // As many layers of each as Gemma 3 27B: 10 keep everything, 52 a window.
        let layers: Vec<Option<usize>> = (0..62).map(|layer| (layer % 6 != 5).then_some(1024)).collect();
        let arrangement = arrange(&specs(&layers));
        assert_eq!((arrangement.groups.len(), arrangement.memories.len()), (7, 10));
        assert_eq!(arrangement.groups[0].len(), 10);
    }

    #[test]
    fn shapes_have_memories_of_their_own() {
        let mut layers = specs(&[None, Some(16)]);
        layers[1].tokens.as_mut().unwrap().head_dim = 4;
        let arrangement = arrange(&layers);
        assert_eq!(arrangement.memories.len(), 2);
        assert_eq!(arrangement.layout(&layers, 0..2, 2, EXACT).place_bytes, (2 * 16 + 2 * 12) * 2);
    }

    #[test]
    fn a_model_without_tokens_has_a_group_of_nothing() {
        let layers = vec![CacheSpec { tokens: None, states: states(4, 10, 12) }; 2];
        let layout = arrange(&layers).layout(&layers, 0..2, 2, EXACT);
        assert_eq!(layout.groups, [CacheGroup { layers: 0, window: None, bytes_per_token: 0 }]);
        assert_eq!((layout.place_bytes, layout.state_bytes), (0, 2 * 42 * 4));
        let kept = StateTypes { conv: DType::F32, recurrent: DType::F16 };
        assert_eq!(arrange(&layers).layout(&layers, 0..1, 2, kept).state_bytes, 30 * 4 + 12 * 2);
    }

    #[test]
    fn stages_have_the_groups_of_the_whole() {
        // Layers 0, 1, 3 and 4 slide: three groups of two over two memories.
        let layers = specs(&[Some(16), Some(16), None, Some(16), Some(16), None]);
        let arrangement = arrange(&layers);
        let layout = |range| arrangement.layout(&layers, range, 2, EXACT);
        let (whole, first, second) = (layout(0..6), layout(0..2), layout(2..6));
        assert_eq!(whole.groups.len(), 3);
        for stage in [&first, &second] {
            let windows = |layout: &CacheLayout| layout.groups.iter().map(|group| group.window).collect::<Vec<_>>();
            assert_eq!(windows(stage), windows(&whole));
        }
        let of = |layout: &CacheLayout| layout.groups.iter().map(|group| group.layers).collect::<Vec<_>>();
        assert_eq!((of(&first), of(&second)), (vec![0, 2, 0], vec![2, 0, 2]));
        assert_eq!((first.place_bytes, second.place_bytes), (whole.place_bytes, whole.place_bytes));
        assert_eq!(arrangement.memories_of(1..2).iter().filter(|used| **used).count(), 1);
    }
}
