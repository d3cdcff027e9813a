//! Activation buffers of a device, made once at load and shared by its networks.

use std::collections::HashMap;

use kernels::ops::{Act, Backend, DType, ExpertRouting};
use model_spec::ModelSpec;

use crate::linear::OwnColumns;
use crate::network::{Head, Layer, Modules, Output, ProjectedLinear, WideLogits};

/// Activation buffers of a network outside its layers.
pub(crate) struct Activations {
    /// The residual stream.
    pub(crate) x: Act,
    /// Its norm.
    pub(crate) normed: Act,
    /// Its norm for a second branch, where layers have parallel branches with a norm each.
    pub(crate) other_normed: Option<Act>,
    /// What is to be added to it.
    pub(crate) delta: Act,
    /// Rows of the embedding, where they are not as wide as the residual stream.
    pub(crate) embedded: Option<Act>,
    /// Where the network has a head.
    pub(crate) output: Option<OutputActivations>,
}

/// Those for the rows that a head is asked for.
pub(crate) struct OutputActivations {
    /// These rows of `x`, and their norm; the same rows of what the last layer mixed.
    pub(crate) picked: Act,
    pub(crate) picked_normed: Act,
    pub(crate) picked_mixed: Act,
    /// Rows for the head, where those are not as wide as the residual stream.
    pub(crate) projected: Option<Act>,
    /// What each linear layer of a head that embeds gives.
    pub(crate) projections: Vec<Act>,
    /// What the head gives: this rank's part of the logits, or whole rows of anything else.
    pub(crate) out: Act,
    /// This rank's part as the model's own head gives it, where adapters have tokens behind it.
    pub(crate) own_logits: Option<OwnColumns>,
    /// Logits of all ranks, where their devices are connected.
    pub(crate) all_logits: Option<Act>,
}

/// Makes activation buffers and counts their bytes (as if all were f32). Whoever asks for the same role and shape is
/// given the same buffer: layers run one after the other, and so do networks.
#[derive(Default)]
pub(crate) struct ActivationPool {
    shared: HashMap<Key, Act>,
    /// By rows and experts a row.
    choices: HashMap<(usize, usize), ExpertRouting>,
    bytes: u64,
}

#[derive(PartialEq, Eq, Hash)]
struct Key {
    role: &'static str,
    rows: usize,
    width: usize,
    dtype: DType,
}

impl ActivationPool {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn get(&mut self, key: Key, backend: &mut dyn Backend) -> Act {
        let Key { rows, width, dtype, .. } = key;
        let bytes = &mut self.bytes;
        *self.shared.entry(key).or_insert_with(|| {
            *bytes += (rows * width * size_of::<f32>()) as u64;
            match dtype {
                DType::F32 => backend.new_act(rows, width),
                _ => backend.new_rounded_act(rows, width, dtype),
            }
        })
    }
}

/// A network's way to a device's buffers.
pub(crate) struct Buffers<'a> {
    pub pool: &'a mut ActivationPool,
    /// Rows of a step at most.
    pub max_rows: usize,
    /// What values that only feed products and attention may be rounded to.
    pub compute: DType,
}

impl Buffers<'_> {
    /// For what goes on inside a layer, with `times` rows for each of a step: the device may round it to the computing
    /// type.
    pub(crate) fn shared(&mut self, role: &'static str, times: usize, width: usize, backend: &mut dyn Backend) -> Act {
        self.pool.get(Key { role, rows: self.max_rows * times, width, dtype: self.compute }, backend)
    }

    /// The same in f32.
    pub(crate) fn exact(&mut self, role: &'static str, times: usize, width: usize, backend: &mut dyn Backend) -> Act {
        self.pool.get(Key { role, rows: self.max_rows * times, width, dtype: DType::F32 }, backend)
    }

    /// Room for the experts of every row.
    pub(crate) fn choice(&mut self, top_k: usize, backend: &mut dyn Backend) -> ExpertRouting {
        let rows = self.max_rows;
        *self.pool.choices.entry((rows, top_k)).or_insert_with(|| backend.new_expert_routing(rows, top_k))
    }
}

impl Activations {
    pub(crate) fn new(
        spec: &ModelSpec,
        modules: &Modules,
        output_rows: usize,
        buffers: &mut Buffers<'_>,
        backend: &mut dyn Backend,
    ) -> Self {
        let hidden = spec.hidden_size;
        let mixed = modules.layers.last().map_or(hidden, |layer| layer.mixer.width());
        let two_norms = modules.layers.iter().any(Layer::has_two_norms);
        let projects = modules.input.as_ref().is_some_and(|input| input.project.is_some());
        Self {
            x: buffers.exact("residual stream", 1, hidden, backend),
            normed: buffers.shared("norm", 1, hidden, backend),
            other_normed: two_norms.then(|| buffers.shared("norm of a second branch", 1, hidden, backend)),
            delta: buffers.exact("delta", 1, hidden, backend),
            embedded: projects.then(|| buffers.exact("embedding", 1, spec.embedding.width, backend)),
            output: modules.output.as_ref().map(|output| {
                let mut buffers = Buffers { pool: &mut *buffers.pool, max_rows: output_rows, ..*buffers };
                OutputActivations::new(spec, output, mixed, &mut buffers, backend)
            }),
        }
    }

    /// What the network gives: of one without head, the residual stream.
    pub(crate) fn output(&self) -> Act {
        self.output.as_ref().map_or(self.x, |output| output.out)
    }

    pub(crate) fn all_logits(&self) -> Option<Act> {
        self.output.as_ref()?.all_logits
    }
}

impl OutputActivations {
    /// `mixed`: columns of what the last layer mixes. `buffers` are for as many rows as the head is asked for at most.
    fn new(
        spec: &ModelSpec,
        output: &Output,
        mixed: usize,
        buffers: &mut Buffers<'_>,
        backend: &mut dyn Backend,
    ) -> Self {
        let hidden = spec.hidden_size;
        let picked = buffers.exact("picked rows", 1, hidden, backend);
        let picked_normed = buffers.shared("norm of picked rows", 1, hidden, backend);
        let picked_mixed = buffers.shared("picked rows of the mixer", 1, mixed, backend);
        let (mut projected, mut all_logits, mut projections) = (None, None, Vec::new());
        let mut own_logits = None;
        let out = match &output.head {
            Head::Logits(head) => {
                let width = spec.embedding.width;
                projected = head.project.map(|_| buffers.shared("projected rows", 1, width, backend));
                // Each of several ranks has a part of the head.
                if head.width < output.vocab && backend.can_init_comm() {
                    all_logits = Some(buffers.exact("all logits", 1, output.vocab, backend));
                }
                if let Some(WideLogits { own: width, .. }) = head.wide.filter(|wide| wide.own < head.width) {
                    own_logits = Some(OwnColumns { act: buffers.exact("own logits", 1, width, backend), width });
                }
                buffers.exact("logits", 1, head.width, backend)
            }
            Head::Classes(classes) => {
                projected = classes.dense.as_ref().map(|_| buffers.exact("dense rows", 1, hidden, backend));
                buffers.exact("classes", 1, classes.count, backend)
            }
            Head::Projected(layers) => {
                let roles = ["projection", "projection of a projection"].into_iter().cycle();
                let buffer = |(layer, role): (&ProjectedLinear, _)| buffers.exact(role, 1, layer.width, backend);
                projections = layers.iter().zip(roles).map(buffer).collect();
                projections.last().copied().unwrap_or(picked)
            }
            Head::HiddenWith(layers) => {
                let buffer = |layer: &ProjectedLinear| buffers.exact("projection", 1, layer.width, backend);
                projections = layers.iter().map(buffer).collect();
                projected = output.norm.map(|_| buffers.exact("hidden states", 1, hidden, backend));
                let width = layers.iter().fold(hidden, |sum, layer| sum + layer.width);
                buffers.exact("hidden states and more", 1, width, backend)
            }
            Head::Hidden if output.norm.is_some() => buffers.exact("hidden states", 1, hidden, backend),
            Head::Hidden => picked,
        };
        Self { picked, picked_normed, picked_mixed, projected, projections, out, own_logits, all_logits }
    }
}
