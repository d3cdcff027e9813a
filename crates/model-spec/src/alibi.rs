//! ALiBi: a bias linear in the distance between query and key (Press, Smith, Lewis 2021).

/// The slope of each head: the series `2^(-bias_max * i / n)`, `i` from 1, for `n` heads; where `n` is no power of two,
/// that of the power below, then every other one of the power above. `bias_max` is 8 in the paper.
pub fn alibi_slopes(heads: usize, bias_max: f64) -> Vec<f32> {
    let series = |n: usize| (1..=n).map(move |i| (-bias_max * i as f64 / n as f64).exp2() as f32);
    let above = heads.next_power_of_two();
    if above == heads {
        return series(heads).collect();
    }
    series(above / 2).chain(series(above).step_by(2)).take(heads).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes() {
        assert_eq!(alibi_slopes(4, 8.0), [0.25, 0.0625, 0.015625, 0.00390625]);
        assert_eq!(alibi_slopes(2, 4.0), [0.25, 0.0625]);
        assert_eq!(alibi_slopes(3, 8.0), [0.0625, 0.00390625, 0.25]);
        assert_eq!(alibi_slopes(1, 8.0), [0.00390625]);
    }
}
