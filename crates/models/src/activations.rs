//! Activation buffers of a decoder, made once at load.

use std::collections::HashMap;

use kernels::ops::{Act, Backend, DType, ExpertRouting};
use model_spec::ModelSpec;

use crate::Limits;
use crate::network::Network;

/// Activation buffers outside the layers.
pub(crate) struct Activations {
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
    /// Rows of the embedding, and rows for the head, where those are not as wide as the residual stream.
    pub(crate) embedded: Option<Act>,
    pub(crate) projected: Option<Act>,
    /// This rank's part of them, and where devices of several ranks meet, whole rows.
    pub(crate) logits: Act,
    pub(crate) all_logits: Option<Act>,
    pub(crate) bytes: u64,
}

/// Makes activation buffers and counts their bytes (as if all were f32). One with room for all rows of a step is shared by whoever asks for
/// the same role and width: layers run one after the other.
pub(crate) struct ActivationPool {
    max_rows: usize,
    /// What values that only feed products and attention may be rounded to.
    compute: DType,
    shared: HashMap<(&'static str, usize, usize), Act>,
    choices: HashMap<usize, ExpertRouting>,
    bytes: u64,
}

impl ActivationPool {
    pub(crate) fn new(max_rows: usize, compute: DType) -> Self {
        Self { max_rows, compute, shared: HashMap::new(), choices: HashMap::new(), bytes: 0 }
    }

    /// In f32.
    fn own(&mut self, rows: usize, width: usize, backend: &mut dyn Backend) -> Act {
        self.bytes += (rows * width * size_of::<f32>()) as u64;
        backend.new_act(rows, width)
    }

    fn rounded(&mut self, rows: usize, width: usize, backend: &mut dyn Backend) -> Act {
        self.bytes += (rows * width * size_of::<f32>()) as u64;
        backend.new_rounded_act(rows, width, self.compute)
    }

    /// For what goes on inside a layer, with `times` rows for each of a step: the device may round it to the computing type.
    pub(crate) fn shared(&mut self, role: &'static str, times: usize, width: usize, backend: &mut dyn Backend) -> Act {
        self.shared_by(role, times, width, |buffers, rows| buffers.rounded(rows, width, backend))
    }

    /// The same in f32.
    pub(crate) fn exact(&mut self, role: &'static str, times: usize, width: usize, backend: &mut dyn Backend) -> Act {
        self.shared_by(role, times, width, |buffers, rows| buffers.own(rows, width, backend))
    }

    fn shared_by(
        &mut self,
        role: &'static str,
        times: usize,
        width: usize,
        make: impl FnOnce(&mut Self, usize) -> Act,
    ) -> Act {
        if let Some(act) = self.shared.get(&(role, times, width)) {
            return *act;
        }
        let act = make(self, self.max_rows * times);
        self.shared.insert((role, times, width), act);
        act
    }

    /// Room for the experts of every row.
    pub(crate) fn choice(&mut self, top_k: usize, backend: &mut dyn Backend) -> ExpertRouting {
        let rows = self.max_rows;
        *self.choices.entry(top_k).or_insert_with(|| backend.new_expert_routing(rows, top_k))
    }
}

impl Activations {
    /// `buffers` holds what the layers took.
    pub(crate) fn new(
        spec: &ModelSpec,
        network: &Network,
        limits: Limits,
        mut buffers: ActivationPool,
        backend: &mut dyn Backend,
    ) -> Self {
        let (rows, hidden) = (limits.max_rows, spec.hidden_size);
        let mixed = network.layers.last().map(|layer| layer.mixer.width());
        let picked_rows = limits.max_logit_rows;
        // Each of several ranks has a part of the head.
        let meets = network.head_width < spec.vocab_size && backend.can_init_comm();
        Self {
            x: buffers.own(rows, hidden, backend),
            normed: buffers.rounded(rows, hidden, backend),
            delta: buffers.own(rows, hidden, backend),
            picked: buffers.own(picked_rows, hidden, backend),
            picked_normed: buffers.rounded(picked_rows, hidden, backend),
            picked_mixed: mixed.map(|width| buffers.rounded(picked_rows, width, backend)),
            embedded: (network.project_in).map(|_| buffers.own(rows, spec.embedding.width, backend)),
            projected: (network.project_out).map(|_| buffers.rounded(picked_rows, spec.embedding.width, backend)),
            logits: buffers.own(picked_rows, network.head_width, backend),
            all_logits: meets.then(|| buffers.own(picked_rows, spec.vocab_size, backend)),
            bytes: buffers.bytes,
        }
    }
}
