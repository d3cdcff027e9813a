//! Elementary functions on vectors.

use super::Simd;

/// `e^x` with a relative error near 1e-7; 0 below -104, saturating at e^88.3. (Below -87.3 no better than zero is.)
#[inline(always)]
pub(crate) fn exp<S: Simd>(x: S) -> S {
    const LOWEST: f32 = -110.0;
    const HIGHEST: f32 = 88.376_26;
    // ln 2 in two parts (Cody and Waite), and the minimax polynomial of Cephes' expf.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const POLYNOMIAL: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
    let clamped = S::splat(LOWEST).max(S::splat(HIGHEST).min(x));
    let n = clamped.mul(S::splat(std::f32::consts::LOG2_E)).round();
    let r = n.fma(S::splat(-LN2_HIGH), clamped);
    let r = n.fma(S::splat(-LN2_LOW), r);
    let mut p = S::splat(POLYNOMIAL[0]);
    for &coefficient in &POLYNOMIAL[1..] {
        p = p.fma(r, S::splat(coefficient));
    }
    let y = p.fma(r.mul(r), r).add(S::splat(1.0));
    y.mul_exp2(n)
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(x: S) -> S {
    S::splat(1.0).div(S::splat(1.0).add(exp(S::splat(0.0).sub(x))))
}

/// `ln(1 + e^x)`, absolute error near 1e-7: `max(x, 0) + ln(1 + e^-|x|)`, the logarithm by its series in `u / (2 + u)`.
#[inline(always)]
pub(crate) fn softplus<S: Simd>(x: S) -> S {
    let zero = S::splat(0.0);
    let u = exp(zero.sub(zero.sub(x).max(x)));
    let s = u.div(u.add(S::splat(2.0)));
    let square = s.mul(s);
    let mut series = S::splat(2.0 / 17.0);
    for odd in [15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        series = series.fma(square, S::splat(2.0 / odd));
    }
    series.fma(s, zero.max(x))
}

/// Hyperbolic tangent: a series near zero, where the quotient would cancel.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(x: S) -> S {
    let square = x.mul(x);
    let e = exp(x.add(x));
    let far = S::splat(1.0).sub(S::splat(2.0).div(e.add(S::splat(1.0))));
    let mut series = S::splat(62.0 / 2835.0);
    for coefficient in [-17.0 / 315.0, 2.0 / 15.0, -1.0 / 3.0] {
        series = series.fma(square, S::splat(coefficient));
    }
    let near = series.mul(square).fma(x, x);
    far.replace_where_less(square, S::splat(0.04), near)
}

/// `x` times the normal distribution function of `x`: `max(x, 0)` less `|x|` times the distribution's tail past `|x|`,
/// absolute error near 2.5e-7, and near 5e-8 where `x < -2.5`.
#[inline(always)]
pub(crate) fn gelu<S: Simd>(x: S) -> S {
    /// The tail counts as nothing from here on, 1e-9.
    const END: f32 = 6.0;
    // The tail on [0, END], which is [-1, 1] to the polynomial, divided by the fourth power of the distance from END.
    const TAIL: [f32; 14] = [
        -0.049_879_972,
        -0.001_265_796_8,
        0.217_526_63,
        -0.064_860_26,
        -0.367_310_17,
        0.319_990_72,
        0.192_950_83,
        -0.517_353_06,
        0.303_897_86,
        0.171_569_12,
        -0.418_841_5,
        0.322_330_27,
        -0.126_337_08,
        0.021_598_44,
    ];
    let zero = S::splat(0.0);
    let magnitude = S::splat(END).min(zero.sub(x).max(x));
    let s = magnitude.fma(S::splat(2.0 / END), S::splat(-1.0));
    let distance = s.fma(S::splat(-0.5), S::splat(0.5));
    let square = distance.mul(distance);
    let mut tail = S::splat(TAIL[0]);
    for &coefficient in &TAIL[1..] {
        tail = tail.fma(s, S::splat(coefficient));
    }
    zero.sub(magnitude).fma(tail.mul(square.mul(square)), zero.max(x))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::runtime::isa::Isa;
    use crate::cpu::simd::{Kernel, vectorize};

    struct Map<'a, F: Function> {
        values: &'a mut [f32],
        function: F,
    }
    trait Function {
        fn apply<S: Simd>(&self, x: S) -> S;
    }
    impl<F: Function> Kernel for Map<'_, F> {
        #[inline(always)]
        fn run<S: Simd>(self) {
            for chunk in self.values.chunks_exact_mut(S::N) {
                // SAFETY: the chunk has N elements.
                unsafe { self.function.apply(S::load(chunk.as_ptr())).store(chunk.as_mut_ptr()) };
            }
        }
    }
    macro_rules! function {
        ($name:ident, $f:ident) => {
            #[derive(Clone, Copy)]
            struct $name;
            impl Function for $name {
                #[inline(always)]
                fn apply<S: Simd>(&self, x: S) -> S {
                    $f(x)
                }
            }
        };
    }
    function!(Exp, exp);
    function!(Tanh, tanh);
    function!(Gelu, gelu);
    function!(Softplus, softplus);

    fn check(function: impl Function + Copy, reference: fn(f64) -> f64, range: (f32, f32), relative: f64) {
        for isa in Isa::available() {
            let steps = 1 << 16;
            let inputs: Vec<f32> =
                (0..steps).map(|i| range.0 + (range.1 - range.0) * i as f32 / steps as f32).collect();
            let mut values = inputs.clone();
            vectorize(isa, Map { values: &mut values, function });
            for (&x, &y) in inputs.iter().zip(&values) {
                let want = reference(f64::from(x));
                let error = (f64::from(y) - want).abs();
                assert!(error <= relative * want.abs() + 1e-37, "{isa:?} f({x}) = {y}, want {want}");
            }
        }
    }

    #[test]
    fn exp_is_accurate() {
        check(Exp, f64::exp, (-87.0, 88.0), 2.5e-7);
    }

    #[test]
    fn softplus_is_accurate() {
        check(Softplus, |x| x.exp().ln_1p(), (-30.0, 80.0), 1e-6);
    }

    #[test]
    fn tanh_is_accurate() {
        check(Tanh, f64::tanh, (-12.0, 12.0), 8e-7);
    }

    #[test]
    fn gelu_is_accurate() {
        // By the continued fraction of the tail where x is large, by the series of erf elsewhere.
        fn tail(x: f64) -> f64 {
            let z = x / std::f64::consts::SQRT_2;
            if z > 2.0 {
                let fraction = (1..200).rev().fold(0.0, |acc, k| f64::from(k) / 2.0 / (z + acc));
                return 0.5 * (-z * z).exp() / (z + fraction) / std::f64::consts::PI.sqrt();
            }
            let (mut term, mut sum) = (z, z);
            for n in 1..100 {
                term *= -z * z / f64::from(n);
                sum += term / f64::from(2 * n + 1);
            }
            0.5 - sum / std::f64::consts::PI.sqrt()
        }
        let reference = |x: f64| x.max(0.0) - x.abs() * tail(x.abs());
        let inputs: Vec<f32> = (0..1 << 16).map(|i| (i - (1 << 15)) as f32 / 3000.0).collect();
        for isa in Isa::available() {
            let mut values = inputs.clone();
            vectorize(isa, Map { values: &mut values, function: Gelu });
            for (&x, &y) in inputs.iter().zip(&values) {
                let want = reference(f64::from(x));
                let error = (f64::from(y) - want).abs();
                let most = if x < -2.5 { 7e-8 } else { 3e-7 };
                assert!(error <= most + 6e-8 * want.abs(), "{isa:?} gelu({x}) = {y}, want {want}");
            }
        }
    }

    #[test]
    fn gelu_at_the_ends() {
        for isa in Isa::available() {
            let mut values = [f32::INFINITY, f32::NAN, 1e30, -1e30, 0.0, f32::NEG_INFINITY, 0.0, 0.0].repeat(2);
            vectorize(isa, Map { values: &mut values, function: Gelu });
            assert_eq!(values[0], f32::INFINITY);
            assert!(values[1].is_nan());
            assert_eq!(values[2], 1e30);
            assert!(values[3].abs() < 1e-7 && values[5].abs() < 1e-7, "{values:?}");
            assert_eq!(values[4], 0.0);
        }
    }

    #[test]
    fn exp_at_the_ends() {
        for isa in Isa::available() {
            let mut values = [f32::NEG_INFINITY, f32::NAN, 1000.0, -1000.0, 0.0, 0.0, 0.0, 0.0].repeat(2);
            vectorize(isa, Map { values: &mut values, function: Exp });
            assert_eq!(values[0], 0.0);
            assert!(values[1].is_nan());
            assert!(values[2] > 1e38);
            assert_eq!(values[3], 0.0);
            assert_eq!(values[4], 1.0);
        }
    }
}
