//! Activation buffers of a decoder, made once at load.

use std::collections::HashMap;

use kernels::ops::{Act, Backend};
use model_spec::{MlpKind, ModelSpec};

use crate::Limits;
use crate::network::Network;

/// Activation buffers. Layers of equal widths share theirs.
pub(crate) struct Acts {
    /// The residual stream.
    pub(crate) x: Act,
    /// Its norm.
    pub(crate) normed: Act,
    /// What is to be added to it.
    pub(crate) delta: Act,
    /// By layer.
    pub(crate) layers: Vec<LayerActs>,
    /// Rows of `x` whose logits are wanted, and their norm; the same rows of the last layer's attention.
    pub(crate) picked: Act,
    pub(crate) picked_normed: Act,
    pub(crate) picked_attended: Option<Act>,
    pub(crate) logits: Act,
    pub(crate) bytes: u64,
}

#[derive(Clone, Copy)]
pub(crate) struct LayerActs {
    pub(crate) qkv: Act,
    pub(crate) attended: Act,
    pub(crate) up: Act,
    pub(crate) inner: Act,
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
    pub(crate) fn new(spec: &ModelSpec, network: &Network, limits: Limits, backend: &mut dyn Backend) -> Self {
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
            picked_attended: (network.layers.last())
                .map(|layer| allocator.new_act(limits.max_logit_rows, layer.attention_width())),
            logits: allocator.new_act(limits.max_logit_rows, network.head_width),
            bytes: allocator.bytes,
        }
    }
}
