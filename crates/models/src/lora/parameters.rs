//! Adapters of all experts of a layer at once. Where a model of PEFT's holds its experts in parameters, one for gate
//! and up and one for down, an adapter of such a parameter (`target_parameters`) is two matrices: A has the rows of one
//! expert after the other, and each of B's columns is one rank's of one expert, expert by expert.

use super::config::Config;
use super::error::{misshapen, tensor_error};
use super::places::{MIXTRAL, is_end, module_of};
use super::source::{Names, Source};
use super::{AdapterError, AdapterLayout, Delta, LoraLayer, Numbers, Projection};
use crate::weights::{FusedShard, Role, Slice, TensorLocation};

/// How PEFT wraps a module again, to adapt another of its parameters.
const WRAPPED: &str = ".base_layer";

/// A parameter that has a projection of all experts of a layer, or two.
#[derive(Clone, Debug)]
pub(crate) struct ExpertParameter {
    /// What the module with it may be called.
    pub modules: Vec<String>,
    name: String,
    /// Names of the module's parameters, this among them, in their order.
    siblings: Vec<String>,
    experts: usize,
    /// Which of its output features each projection has.
    rows: Vec<FusedShard>,
}

impl ExpertParameter {
    /// The two parameters of a layer whose first expert has these projections; absent where the experts' matrices lie
    /// in another way.
    pub(crate) fn of_layer([up, down]: [&[Projection]; 2], experts: usize) -> Option<[Self; 2]> {
        let ([gate, other], [lower]) = (up, down) else { return None };
        match lower.location.stack {
            None => Self::of_modules(gate, lower, experts),
            Some(_) if gate.location.tensor == other.location.tensor => Some(Self::of_tensors([up, down], experts)),
            Some(_) => None,
        }
    }

    /// The files have a tensor for each expert; since its version 5, `transformers` fuses those when it loads them.
    fn of_modules(gate: &Projection, lower: &Projection, experts: usize) -> Option<[Self; 2]> {
        let (expert, _) = module_of(&lower.location.tensor)?.rsplit_once('.')?;
        let (module, _) = expert.rsplit_once('.')?;
        let renamed = module.replace(MIXTRAL, ".mlp.");
        let renamed = Some(renamed).filter(|renamed| renamed != module);
        let modules: Vec<String> = std::iter::once(module.to_owned()).chain(renamed).collect();
        let siblings = ["gate_up_proj", "down_proj"].map(str::to_owned);
        let rows = [FusedShard::split([gate.shape[0]; 2]).to_vec(), vec![FusedShard::ALL]];
        let [up, down] = siblings.clone().into_iter().zip(rows).collect::<Vec<_>>().try_into().ok()?;
        let siblings = siblings.to_vec();
        let one = |(name, rows)| Self { modules: modules.clone(), name, siblings: siblings.clone(), experts, rows };
        Some([one(up), one(down)])
    }

    /// The files have a tensor for all experts.
    fn of_tensors(both: [&[Projection]; 2], experts: usize) -> [Self; 2] {
        let name = |projections: &[Projection]| {
            let tensor = projections[0].location.tensor.as_str();
            let (module, name) = tensor.rsplit_once('.').unwrap_or(("", tensor));
            (module.to_owned(), name.to_owned())
        };
        let names = both.map(name);
        both.map(|projections| {
            let (module, name) = name(projections);
            let beside = names.iter().filter(|(other, _)| *other == module);
            let siblings = beside.map(|(_, name)| name.clone()).collect();
            let rows = projections.iter().map(|projection| projection.location.rows).collect();
            Self { modules: vec![module], name, siblings, experts, rows }
        })
    }

    /// The module and the parameter as the places of matrices, for other stages to know their names.
    pub(crate) fn locations(self) -> impl Iterator<Item = TensorLocation> {
        let both = move |module: String| [format!("{module}.weight"), format!("{module}.{}.weight", self.name)];
        self.modules.into_iter().flat_map(both).map(TensorLocation::from)
    }

    /// Whether an end of a name, as `target_parameters` has it, is this one's.
    pub(super) fn has_end(&self, end: &str) -> bool {
        self.modules.iter().any(|module| is_end(&format!("{module}.{}", self.name), end))
    }

    /// The module's parameters that an adapter has, in the order of their wrapping.
    fn adapted<'a>(&'a self, module: &str, config: &Config) -> Vec<&'a str> {
        let is_adapted = |name: &&String| {
            let whole = format!("{module}.{name}");
            config.parameters.iter().any(|end| is_end(&whole, end))
        };
        self.siblings.iter().filter(is_adapted).map(String::as_str).collect()
    }
}

/// A module without its wrappings, and how many these are.
pub(super) fn unwrapped(mut module: &str) -> (&str, usize) {
    let mut depth = 0;
    while let Some(inner) = module.strip_suffix(WRAPPED) {
        (module, depth) = (inner, depth + 1);
    }
    (module, depth)
}

impl AdapterLayout {
    /// The adapters of all experts of a layer, where a module's matrices are of its parameter; absent where they are of
    /// another parameter of the module.
    pub(super) fn of_parameter(
        &self,
        layer: &LoraLayer,
        names: &Names<'_>,
        source: Source<'_>,
    ) -> Result<Option<Vec<Option<Delta>>>, AdapterError> {
        let Some(parameter) = &layer.parameter else { return Ok(None) };
        let (module, depth) = unwrapped(names.module);
        let adapted = parameter.adapted(module, source.config);
        // The first parameter is wrapped first: it lies deepest.
        let Some(index) = adapted.len().checked_sub(depth + 1) else {
            let reason = format!(
                "this adapts parameters of experts in {module:?}, of which target_parameters in adapter_config.json \
                 names {adapted:?}"
            );
            return Err(tensor_error(names.a, reason));
        };
        let missing = (0..adapted.len())
            .find(|depth| !source.modules.contains_key(&format!("{module}{}", WRAPPED.repeat(*depth))));
        if let Some(depth) = missing {
            let other = adapted[adapted.len() - 1 - depth];
            let reason = format!("target_parameters names {other:?} beside its parameter, of which there is no tensor");
            return Err(tensor_error(names.a, reason));
        }
        if adapted[index] != parameter.name {
            return Ok(None);
        }
        let whole = format!("{module}.{}", parameter.name);
        self.experts_of(layer, parameter, &Names { module: &whole, ..*names }, source).map(Some)
    }

    fn experts_of(
        &self,
        layer: &LoraLayer,
        ExpertParameter { experts, rows, .. }: &ExpertParameter,
        names: &Names<'_>,
        source: Source<'_>,
    ) -> Result<Vec<Option<Delta>>, AdapterError> {
        let Source { tensors, config, .. } = source;
        let [a, b] = [names.a, names.b].map(|name| tensors.find(name).map_err(Box::new));
        let (a, b, first) = (a?, b?, &layer.projections[0]);
        let ranks = a.shape.first().copied().unwrap_or(0);
        if !ranks.is_multiple_of(*experts) || ranks == 0 {
            let expected = experts.saturating_mul(config.rank(names.module) as usize);
            return Err(misshapen(layer.form, &a, &[expected, first.shape[1]], self.vocab));
        }
        let rank = self.check_rank(ranks / experts, &a, names, config)?;
        let whole = |tensor: &str, shape: [usize; 2], rows| Slice {
            location: TensorLocation { rows, ..TensorLocation::from(tensor.to_owned()) },
            shape: shape.to_vec(),
            rows: 0..shape[0],
            cols: 0..shape[1],
            role: Role::Matrix,
        };
        let of_a = Slice { cols: first.cols.clone(), ..whole(&a.name, [ranks, first.shape[1]], FusedShard::ALL) };
        let all_a = self.numbers(layer.form, tensors, &a, &of_a)?;
        let of_b = |(projection, rows): (&Projection, &FusedShard)| {
            let slice = whole(&b.name, [projection.shape[0], ranks], *rows);
            self.numbers(layer.form, tensors, &b, &Slice { rows: projection.rows.clone(), ..slice })
        };
        let all_b = layer.projections.iter().zip(rows).map(of_b).collect::<Result<Vec<_>, _>>()?;
        let (scale, width) = (config.scale(names.module), rank * first.cols.len());
        let delta = |expert: usize, b: &[f32]| {
            let b = b.chunks_exact(ranks).flat_map(|row| row.iter().skip(expert).step_by(*experts));
            let b = b.map(|value| value * scale).collect();
            let [a, b] = [all_a[expert * width..][..width].to_vec(), b].map(|values| Numbers::new(values, self.dtype));
            Some(Delta { rank, a, b })
        };
        let delta = &delta;
        Ok((0..*experts).flat_map(|expert| all_b.iter().map(move |b| delta(expert, b))).collect())
    }
}
