//! The ways of one kind of product beside each other: what races, and what the result is kept as.

use super::blas::{Algorithm, Candidates};
use super::device::Device;
use super::elementwise;
use super::matmul::{Matmul, run_own};
use super::measure::{self, Race};
use super::product::{Gate, MANY_ROWS, Product, rounds_once};
use super::special::Special;
use super::ways::{Kind, Way};
use super::{matmul_few, matmul_hopper, matmul_parts};

/// Algorithms of cuBLASLt that are tried.
const CANDIDATES: usize = 8;

/// A race under way.
pub(crate) struct Trial {
    kind: Kind,
    race: Race,
    ways: Vec<Way>,
    /// Where columns are gated: the product's own way, which the gate then follows. It is the first of the ways, as [`Way::Usual`].
    apart: Option<Way>,
    candidates: Option<Candidates>,
}

impl Matmul {
    /// Whether there is something to choose from.
    pub(crate) fn has_ways(&self, device: &Device, product: &Product<'_>, gate: Option<Gate>) -> bool {
        match gate {
            Some(gate) => matmul_hopper::may_gate(device, product) && gate.out.dtype == product.w.dtype,
            None => rounds_once(product) && !matmul_few::fits(device, product),
        }
    }

    /// The kernels compiled for a shape that would take part.
    pub(crate) fn specials(&self, device: &Device, product: &Product<'_>, gate: Option<Gate>) -> Vec<Special> {
        let (function, out) = (gate.map(|gate| gate.function()), gate.map_or(product.out, |gate| gate.out));
        let special = |way| match way {
            Way::Own => Some(matmul_hopper::special(device, product, function, out)),
            Way::Parts => matmul_parts::special(device, product, function),
            Way::Usual | Way::Library(_) => None,
        };
        own_ways(device, product, gate).filter_map(special).collect()
    }

    /// Begins to measure a product, which is stored, over as many rows as it is to be measured for. A gated one's own way is known.
    pub(crate) fn trial(&mut self, device: &mut Device, product: &mut Product<'_>, gate: Option<Gate>) -> Trial {
        let kind = product.kind(gate);
        let apart = gate.map(|_| self.ways.get(product.kind(None)).unwrap_or(Way::Usual));
        let candidates = self.blas.candidates(product.key(), if apart.is_some() { 1 } else { CANDIDATES });
        let ways: Vec<Way> = match (apart, &candidates) {
            (Some(_), _) => std::iter::once(Way::Usual).chain(own_ways(device, product, gate)).collect(),
            (None, candidates) => {
                let algorithms = candidates.iter().flat_map(|candidates| candidates.algorithms.iter());
                let library = algorithms.map(|algorithm| Way::Library(*algorithm));
                library.chain(own_ways(device, product, gate)).collect()
            }
        };
        let count = if measure::is_possible(device) { ways.len() } else { 0 };
        Trial { kind, race: Race::new(count), ways, apart, candidates }
    }

    /// Tries one way; false once there is none left to try.
    pub(crate) fn turn(
        &mut self,
        device: &mut Device,
        trial: &mut Trial,
        product: &mut Product<'_>,
        gate: Option<Gate>,
    ) -> bool {
        let Trial { race, ways, apart, candidates, .. } = trial;
        let (blas, operands) = (&self.blas, product.operands(device));
        let library = |device: &mut Device, algorithm: Option<&Algorithm>| {
            let (candidates, algorithm) = candidates.as_ref().zip(algorithm)?;
            blas.attempt(device, candidates, algorithm, operands).then_some(())
        };
        let first = || candidates.as_ref().and_then(|candidates| candidates.algorithms.first());
        let multiply = |device: &mut Device, way: Way| match way {
            Way::Own | Way::Parts => run_own(device, way, product, None, product.out),
            Way::Library(algorithm) => library(device, Some(&algorithm)).is_some(),
            Way::Usual => library(device, first()).is_some(),
        };
        let mut run = |device: &mut Device, way: usize| match (gate, *apart, ways[way]) {
            (Some(gate), _, way @ (Way::Own | Way::Parts)) => {
                run_own(device, way, product, Some(gate.function()), gate.out)
            }
            (Some(gate), Some(apart), _) => {
                let multiplied = multiply(device, apart);
                elementwise::gated(device, product.out, gate.activation, gate.out);
                multiplied
            }
            (_, _, way) => multiply(device, way),
        };
        measure::turn(device, blas.workspace(), race, &mut run)
    }

    /// Keeps what a race came to; whether such products are done otherwise from now on.
    pub(crate) fn settle(&mut self, trial: Trial) -> bool {
        let Trial { kind, race, ways, .. } = trial;
        let measured = race.measured();
        let way = measured.as_ref().map_or(Way::Usual, |measured| ways[measured.best]);
        self.ways.settle(kind, way, measured.map(|measured| measured.text()).as_deref());
        self.blas.forget(|key| Kind::of(key, None) == kind);
        way != Way::Usual
    }
}

/// Our own kernels that are ways of a product: for any number of rows where a gate follows, or there are very many.
fn own_ways(device: &Device, product: &Product<'_>, gate: Option<Gate>) -> impl Iterator<Item = Way> {
    let many = gate.is_some() || (product.x.rows > MANY_ROWS && matmul_hopper::fits(device, product));
    let ways = [(Way::Own, many), (Way::Parts, matmul_parts::fits(device, product))];
    ways.into_iter().filter_map(|(way, fits)| fits.then_some(way))
}
