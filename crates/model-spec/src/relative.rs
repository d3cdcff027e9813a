//! Learned biases by the distance between query and key, which share buckets (Raffel and others 2020: T5).

/// Which distances share a bias, when attention sees both ways: half of the buckets are for keys before the query and
/// its own, the others for those after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelativeBias {
    /// Buckets; each has a learned number a query head.
    pub buckets: usize,
    /// From this distance on, all share the last bucket of their side.
    pub max_distance: usize,
}

impl RelativeBias {
    /// The bucket of a key that is `distance` tokens after the query (before it, where that is negative).
    pub fn bucket(self, distance: i64) -> usize {
        let (side, exact) = (self.buckets / 2, self.buckets / 4);
        let (base, far) = (if distance > 0 { side } else { 0 }, distance.unsigned_abs() as usize);
        if far < exact {
            return base + far;
        }
        // In f32, as the libraries compute it that trained with it: buckets begin where they round.
        let octaves = (far as f32 / exact as f32).ln() / (self.max_distance as f64 / exact as f64).ln() as f32;
        base + (exact + (octaves * (side - exact) as f32) as usize).min(side - 1)
    }

    /// `table`, `[buckets, heads]`, by distance: `[heads, 2 * max_distance + 1]`, the key farthest before the query
    /// first.
    pub fn by_distance(self, table: &[f32], heads: usize) -> Vec<f32> {
        let reach = self.max_distance as i64;
        let biases = |head: usize| (-reach..=reach).map(move |distance| table[self.bucket(distance) * heads + head]);
        (0..heads).flat_map(biases).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_distances_have_a_bucket_each() {
        let bias = RelativeBias { buckets: 32, max_distance: 128 };
        let of = |distances: &[i64]| distances.iter().map(|distance| bias.bucket(*distance)).collect::<Vec<_>>();
        assert_eq!(of(&[0, -1, -7, -8, 1, 7, 8]), [0, 1, 7, 8, 17, 23, 24]);
        assert_eq!(of(&[-11, -12, -16, -32, -64, -90, -91, -128, -5000]), [8, 9, 10, 12, 14, 14, 15, 15, 15]);
        assert_eq!(of(&[12, 64, 128, 5000]), [25, 30, 31, 31]);
    }

    #[test]
    fn biases_by_distance() {
        let bias = RelativeBias { buckets: 4, max_distance: 2 };
        let table: Vec<f32> = (0..8).map(|value| value as f32).collect();
        assert_eq!(bias.by_distance(&table, 2), [2.0, 2.0, 0.0, 6.0, 6.0, 3.0, 3.0, 1.0, 7.0, 7.0]);
    }
}
