//! When each request of a run is sent.

use std::time::Duration;

use rand::{Rng, SeedableRng, rngs::StdRng};

/// Start times of `count` requests at `rate` per second with gamma-distributed gaps; all zero for an infinite rate.
///
/// As in `vllm bench serve`, the times are scaled so that the last one falls where the rate says, whatever was drawn.
pub fn start_times(count: usize, rate: f64, burstiness: f64, seed: u64) -> Vec<Duration> {
    if rate.is_infinite() {
        return vec![Duration::ZERO; count];
    }
    let mut rng = StdRng::seed_from_u64(seed);
    let mut at = 0.0;
    let drawn: Vec<f64> = (0..count)
        .map(|_| {
            at += gamma(&mut rng, burstiness);
            at
        })
        .collect();
    let scale = if at > 0.0 { count as f64 / rate / at } else { 0.0 };
    drawn.into_iter().map(|at| Duration::from_secs_f64(at * scale)).collect()
}

/// A gamma variate of scale 1, after Marsaglia and Tsang (2000), "A simple method for generating gamma variables".
fn gamma(rng: &mut StdRng, shape: f64) -> f64 {
    if shape < 1.0 {
        let boost = rng.random_range(f64::MIN_POSITIVE..1.0).powf(1.0 / shape);
        return gamma(rng, shape + 1.0) * boost;
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = normal(rng);
        let v = (1.0 + c * x).powi(3);
        let u: f64 = rng.random_range(f64::MIN_POSITIVE..1.0);
        if v > 0.0 && u.ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return d * v;
        }
    }
}

/// A normal variate, after Box and Muller.
fn normal(rng: &mut StdRng) -> f64 {
    let (u, v): (f64, f64) = (rng.random_range(f64::MIN_POSITIVE..1.0), rng.random());
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_kept_and_runs_repeat() {
        for burstiness in [0.3, 1.0, 10.0] {
            let times = start_times(1000, 50.0, burstiness, 7);
            assert_eq!(times, start_times(1000, 50.0, burstiness, 7));
            assert!(times.is_sorted());
            assert!((times[999].as_secs_f64() - 20.0).abs() < 1e-6);
        }
        assert!(start_times(3, f64::INFINITY, 1.0, 0).iter().all(Duration::is_zero));
    }

    #[test]
    fn gamma_has_its_mean_and_variance() {
        for shape in [0.5, 1.0, 4.0] {
            let mut rng = StdRng::seed_from_u64(1);
            let values: Vec<f64> = (0..20_000).map(|_| gamma(&mut rng, shape)).collect();
            let mean = values.iter().sum::<f64>() / 20_000.0;
            let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / 20_000.0;
            assert!((mean / shape - 1.0).abs() < 0.05, "mean {mean} for shape {shape}");
            assert!((variance / shape - 1.0).abs() < 0.1, "variance {variance} for shape {shape}");
        }
    }
}
