//! MoE: a router, the chosen experts of each row, and the shared experts.
//!
//! Experts are split over ranks like any MLP, by their inner width: every rank routes all rows and computes its part of
//! every expert.

use std::ops::Range;

use kernels::ops::{self, Act, Backend, Epilogue, ExpertRouting, LoraSite, MatrixUse, Vector};
use model_spec::{Activation, MlpKind, MoeSpec, RoutingSpec, SharedExpertSpec};

use super::FeedForward;
use super::mlp::{self, Mlp};
use crate::builder::{Builder, LinearPart};
use crate::error::LoadError;
use crate::linear::{ExpertGate, ExpertLinear, Linear};
use crate::lora::{ExpertParameter, Projection};
use crate::weights::{LayerParam, MlpParam, ParamId, ParamKind, Role, Slice};

/// Weights and buffers of an MoE layer.
pub(super) struct Moe {
    /// `[experts, hidden]`.
    router: Linear,
    routing: ops::Routing,
    kind: MlpKind,
    activation: Activation,
    /// Gated: `[gate | up]` in each row.
    up: ExpertLinear,
    down: ExpertLinear,
    shared: Option<Shared>,
    /// `[rows, experts]`.
    logits: Act,
    choice: ExpertRouting,
    /// One row for each choice: what `up` gives, what goes into `down`, and what that gives.
    raised: Act,
    inner: Act,
    given: Act,
}

/// What all rows share.
struct Shared {
    mlp: Mlp,
    gate: Option<Gate>,
}

/// Where what rows share is gated.
struct Gate {
    /// `[1, hidden]`.
    linear: Linear,
    /// `[rows, 1]`.
    opening: Act,
    /// `[rows, hidden]`: what the gate lets through.
    out: Act,
}

impl FeedForward for Moe {
    fn run(&self, input: Act, epilogue: Epilogue, out: Act, backend: &mut dyn Backend) {
        self.router.run(input, Epilogue::Store, self.logits, backend);
        backend.route(self.logits, self.routing, self.choice);
        match self.kind {
            MlpKind::Gated => {
                let (activation, raised) = (self.activation, self.raised);
                let gate = ExpertGate { activation, raised, out: self.inner, reader: self.down };
                self.up.run_gated(input, gate, self.choice, backend);
            }
            MlpKind::Plain => {
                self.up.run(input, self.choice, self.inner, backend);
                backend.activate(self.inner, self.activation);
            }
        }
        self.down.run(self.inner, self.choice, self.given, backend);
        match &self.shared {
            None => backend.combine(self.given, self.choice, epilogue, out),
            Some(Shared { mlp, gate: None }) => {
                mlp.run(input, epilogue, out, backend);
                backend.combine(self.given, self.choice, Epilogue::Accumulate, out);
            }
            Some(Shared { mlp, gate: Some(gate) }) => {
                mlp.run(input, Epilogue::Store, gate.out, backend);
                gate.linear.run(input, Epilogue::Store, gate.opening, backend);
                backend.gate_rows(gate.out, gate.opening);
                backend.combine(self.given, self.choice, epilogue, out);
                backend.add(out, gate.out);
            }
        }
    }
}

pub(super) fn build(builder: &mut Builder<'_>, index: usize, spec: &MoeSpec) -> Result<Moe, LoadError> {
    let MoeSpec { experts, expert, routing, shared } = *spec;
    let router = builder.by_rows(index, &[LayerParam::Router.of(experts, 0..experts)], routing.bias)?;
    let correction = if routing.correction { Some(correction(builder, index, experts)?) } else { None };
    let (inner, mine) = (expert.intermediate_size, builder.shard.part(expert.intermediate_size));
    let raising: &[MlpParam] = match expert.kind {
        MlpKind::Gated => &[MlpParam::Gate, MlpParam::Up],
        MlpKind::Plain => &[MlpParam::Up],
    };
    let (mut up_parts, mut down_parts) = (Vec::new(), Vec::new());
    for number in 0..experts {
        let part = |piece: &MlpParam| LayerParam::Expert(number, *piece).of(inner, mine.clone());
        let stack: Vec<_> = raising.iter().map(part).collect();
        up_parts.push(builder.row_parts(index, &stack));
        down_parts.push(vec![builder.col_part(index, part(&MlpParam::Down))]);
    }
    let ups = builder.matrices(&up_parts, MatrixUse::Experts)?;
    let downs = builder.matrices(&down_parts, MatrixUse::Experts)?;
    let up_bias = match expert.bias.up {
        true => Some(up_bias(builder, index, experts, UpBias { pieces: raising, inner, mine: mine.clone() })?),
        false => None,
    };
    let down_bias = if expert.bias.down { down_bias(builder, index, experts)? } else { None };
    let [up_lora, down_lora] = lora_sites(builder, [&up_parts, &down_parts]);
    let up = ExpertLinear::new(builder.store.group(&ups, MatrixUse::Experts), up_bias).with_adapters(up_lora);
    let down = ExpertLinear::new(builder.store.group(&downs, MatrixUse::Experts), down_bias).with_adapters(down_lora);
    let shared = shared.map(|spec| build_shared(builder, index, spec)).transpose()?;
    let (k, width) = (routing.top_k, mine.len());
    let inner = builder.store.rows_buffer("expert inner", k, width);
    let raised = match expert.kind {
        MlpKind::Gated => builder.store.rows_buffer("expert gate_up", k, 2 * width),
        MlpKind::Plain => inner,
    };
    Ok(Moe {
        router,
        routing: ops_routing(routing, correction),
        kind: expert.kind,
        activation: expert.activation,
        up,
        down,
        shared,
        logits: builder.store.exact_buffer("router logits", 1, experts),
        choice: builder.store.choice(k),
        raised,
        inner,
        given: builder.store.rows_buffer("expert output", k, builder.hidden()),
    })
}

/// Room for the adapters of experts, where there are to be any: of what raises, and of what lowers.
fn lora_sites(builder: &mut Builder<'_>, parts: [&[Vec<LinearPart>]; 2]) -> [Option<LoraSite>; 2] {
    let firsts = parts.map(|experts| experts.first().into_iter().flatten().map(|part| builder.projection_of(part)));
    let firsts = firsts.map(Iterator::collect::<Vec<Projection>>);
    let parameters = ExpertParameter::of_layer([&firsts[0], &firsts[1]], parts[0].len());
    let [up, down] = parameters.map_or([None, None], |parameters| parameters.map(Some));
    [builder.expert_lora_site(parts[0], up), builder.expert_lora_site(parts[1], down)]
}

fn build_shared(builder: &mut Builder<'_>, index: usize, spec: SharedExpertSpec) -> Result<Shared, LoadError> {
    let mlp = mlp::build(builder, index, &spec.mlp, LayerParam::Shared)?;
    if !spec.gated {
        return Ok(Shared { mlp, gate: None });
    }
    let linear = builder.by_rows(index, &[LayerParam::SharedGate.of(1, 0..1)], false)?;
    let opening = builder.store.exact_buffer("shared gate", 1, 1);
    let out = builder.store.exact_buffer("shared output", 1, builder.hidden());
    Ok(Shared { mlp, gate: Some(Gate { linear, opening, out }) })
}

fn correction(builder: &mut Builder<'_>, index: usize, experts: usize) -> Result<Vector, LoadError> {
    let id = ParamId::Layer(index, LayerParam::RouterCorrection);
    let slice = builder.vector_slice(id, ParamKind::Weight, experts, 0..experts, Role::Shift);
    builder.store.vector(&[slice], 0.0)
}

/// Biases of one expert before the non-linearity.
struct UpBias<'a> {
    pieces: &'a [MlpParam],
    /// Inner width, and this rank's part of it.
    inner: usize,
    mine: Range<usize>,
}

/// This rank's biases before the non-linearity, expert after expert.
fn up_bias(
    builder: &mut Builder<'_>,
    index: usize,
    experts: usize,
    UpBias { pieces, inner, mine }: UpBias<'_>,
) -> Result<Vector, LoadError> {
    let numbers = (0..experts).flat_map(|number| pieces.iter().map(move |piece| LayerParam::Expert(number, *piece)));
    let slice =
        |part| builder.vector_slice(ParamId::Layer(index, part), ParamKind::Bias, inner, mine.clone(), Role::Shift);
    let slices: Vec<Slice> = numbers.map(slice).collect();
    builder.store.vector(&slices, 0.0)
}

/// Biases of what is summed over ranks: on one of them.
fn down_bias(builder: &mut Builder<'_>, index: usize, experts: usize) -> Result<Option<Vector>, LoadError> {
    if !builder.shard.adds_bias() {
        return Ok(None);
    }
    let hidden = builder.hidden();
    let id = |number| ParamId::Layer(index, LayerParam::Expert(number, MlpParam::Down));
    let slice = |number| builder.vector_slice(id(number), ParamKind::Bias, hidden, 0..hidden, Role::Shift);
    let slices: Vec<Slice> = (0..experts).map(slice).collect();
    builder.store.vector(&slices, 0.0).map(Some)
}

fn ops_routing(spec: RoutingSpec, correction: Option<Vector>) -> ops::Routing {
    let RoutingSpec { score, groups, top_k, renormalise, scale, .. } = spec;
    ops::Routing { score, correction, groups, top_k, renormalise, scale }
}
