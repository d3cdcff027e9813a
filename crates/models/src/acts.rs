//! Activation buffers of a decoder, made once at load.

use std::collections::HashMap;

use kernels::ops::{Act, Backend};
use model_spec::ModelSpec;

use crate::Limits;
use crate::network::Network;

/// Activation buffers outside the layers.
pub(crate) struct Acts {
    /// The residual stream.
    pub(crate) x: Act,
    /// Its norm.
    pub(crate) normed: Act,
    /// What is to be added to it.
    pub(crate) delta: Act,
    /// Rows of `x` whose logits are wanted, and their norm; the same rows of what the last layer mixed.
    pub(crate) picked: Act,
    pub(crate) picked_normed: Act,
    pub(crate) picked_mixed: Option<Act>,
    pub(crate) logits: Act,
    pub(crate) bytes: u64,
}

/// Makes activation buffers and counts their bytes. One with room for all rows of a step is shared by whoever asks for the same role and
/// width: layers run one after the other.
pub(crate) struct Buffers {
    max_rows: usize,
    shared: HashMap<(&'static str, usize), Act>,
    bytes: u64,
}

impl Buffers {
    pub(crate) fn new(max_rows: usize) -> Self {
        Self { max_rows, shared: HashMap::new(), bytes: 0 }
    }

    fn own(&mut self, rows: usize, width: usize, backend: &mut dyn Backend) -> Act {
        self.bytes += (rows * width * size_of::<f32>()) as u64;
        backend.new_act(rows, width)
    }

    pub(crate) fn shared(&mut self, role: &'static str, width: usize, backend: &mut dyn Backend) -> Act {
        if let Some(act) = self.shared.get(&(role, width)) {
            return *act;
        }
        let act = self.own(self.max_rows, width, backend);
        self.shared.insert((role, width), act);
        act
    }
}

impl Acts {
    /// `buffers` holds what the layers took.
    pub(crate) fn new(
        spec: &ModelSpec,
        network: &Network,
        limits: Limits,
        mut buffers: Buffers,
        backend: &mut dyn Backend,
    ) -> Self {
        let (rows, hidden) = (limits.max_rows, spec.hidden_size);
        let mixed = network.layers.last().map(|layer| layer.mixer.width());
        let mut own = |rows, width| buffers.own(rows, width, backend);
        Self {
            x: own(rows, hidden),
            normed: own(rows, hidden),
            delta: own(rows, hidden),
            picked: own(limits.max_logit_rows, hidden),
            picked_normed: own(limits.max_logit_rows, hidden),
            picked_mixed: mixed.map(|width| own(limits.max_logit_rows, width)),
            logits: own(limits.max_logit_rows, network.head_width),
            bytes: buffers.bytes,
        }
    }
}
