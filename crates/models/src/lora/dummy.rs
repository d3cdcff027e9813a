//! Random adapters, for measuring without a download.

use kernels::ops::DType;

use super::{Adapter, AdapterLayout, Delta, LoraForm, LoraLayer, Numbers, Projection};
use crate::weights::{Dummy, Role, Slice, TensorLocation};

impl AdapterLayout {
    /// An adapter of the highest rank for every linear layer but the head, as PEFT's `all-linear`, of numbers that
    /// depend on `name` and `seed` alone: each rank makes its own slices of it.
    pub fn dummy(&self, name: &str, seed: u64) -> Adapter {
        let dummy = Dummy::new(seed, DType::F32, 1);
        let delta = |projection: &Projection| {
            let ([outputs, inputs], rank) = (projection.shape, self.max_rank);
            let numbers = |matrix: &str, shape: [usize; 2], rows, cols| {
                let location = TensorLocation::from(format!("{name}.{}.{matrix}", projection.location.tensor));
                let slice = Slice { location, shape: shape.to_vec(), rows, cols, role: Role::Matrix };
                Numbers::new(dummy.numbers(&slice), self.dtype)
            };
            Delta {
                rank,
                a: numbers("lora_A", [rank, inputs], 0..rank, projection.cols.clone()),
                b: numbers("lora_B", [outputs, rank], projection.rows.clone(), 0..rank),
            }
        };
        let layer = |LoraLayer { form, projections, .. }: &LoraLayer| match form {
            LoraForm::Linear => projections.iter().map(|one| Some(delta(one))).collect(),
            LoraForm::Head | LoraForm::Embedding => Vec::new(),
        };
        let layers = self.layers.iter().map(layer).collect();
        let saved = self.saved.iter().map(|_| None).collect();
        Adapter { layers, saved, vocab_size: None, fingerprint: format!("random {seed}") }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use kernels::ops::LoraSite;

    use super::super::Vocabulary;
    use super::*;

    /// The rows and columns of a `[6, 8]` projection that a rank has of the adapter `name`.
    fn of(name: &str, rows: Range<usize>, cols: Range<usize>) -> (Vec<f32>, Vec<f32>) {
        let location = TensorLocation::from("layer.weight".to_owned());
        let projections = vec![Projection { location, shape: [6, 8], rows, cols, pad_rows: 0 }];
        let layers = vec![LoraLayer {
            form: LoraForm::Linear,
            site: LoraSite(0),
            projections,
            of_experts: false,
            parameter: None,
        }];
        let (saved, elsewhere) = (Vec::new(), Vec::new());
        let (max_rank, dtype, vocab) = (4, DType::F32, Vocabulary { own: 16, extra: 0 });
        let layout = AdapterLayout { layers, saved, elsewhere, max_rank, dtype, experts: true, saves: false, vocab };
        let mut adapter = layout.dummy(name, 1);
        let Delta { rank, a, b } = adapter.layers.remove(0).remove(0).expect("every projection has one");
        assert_eq!(rank, 4);
        (a.elements().widened(), b.elements().widened())
    }

    #[test]
    fn ranks_make_their_slices_of_one_adapter() {
        let (a, b) = of("x", 0..6, 0..8);
        assert_eq!((a.len(), b.len()), (4 * 8, 6 * 4));
        assert!(a.iter().chain(&b).all(|x| x.is_finite() && x.abs() < 1.0));
        assert_eq!(of("x", 2..5, 0..8), (a.clone(), b[2 * 4..5 * 4].to_vec()));
        let (right, whole) = of("x", 0..6, 4..8);
        assert_eq!(whole, b);
        assert!(right.chunks(4).zip(a.chunks(8)).all(|(part, row)| part == &row[4..]));
    }

    #[test]
    fn another_name_is_another_adapter() {
        let whole = |name| of(name, 0..6, 0..8);
        assert_ne!(whole("x").0, whole("y").0);
        assert_eq!(whole("x").0, whole("x").0);
    }
}
