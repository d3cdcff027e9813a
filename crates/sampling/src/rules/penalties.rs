//! Repetition, frequency and presence penalties: tokens that occurred become less likely.
//!
//! As in vLLM the repetition penalty looks at prompt and output, the other two at the output only; they share one walk
//! over the counts.

use kernels::sample::{self, SampleParams};

use super::{Request, Rewrite};
use crate::History;

struct Penalties {
    repetition: f32,
    frequency: f32,
    presence: f32,
}

pub(super) fn compile(request: &Request<'_>) -> Option<Box<dyn Rewrite>> {
    let sampling = request.sampling;
    let usable = |value: f32, off: f32| if value.is_finite() { value } else { off };
    let repetition = usable(sampling.repetition_penalty, 1.0);
    let penalties = Penalties {
        repetition: if repetition > 0.0 { repetition } else { 1.0 },
        frequency: usable(sampling.frequency_penalty, 0.0),
        presence: usable(sampling.presence_penalty, 0.0),
    };
    let off = penalties.repetition == 1.0 && penalties.frequency == 0.0 && penalties.presence == 0.0;
    (!off).then(|| Box::new(penalties) as Box<dyn Rewrite>)
}

impl Rewrite for Penalties {
    fn needs_counts(&self) -> bool {
        true
    }

    fn apply(&self, row: &mut [f32], history: &History) {
        for (token, count) in history.counts() {
            let Some(logit) = row.get_mut(token as usize) else { continue };
            *logit = if *logit > 0.0 { *logit / self.repetition } else { *logit * self.repetition };
            if count > 0 {
                *logit -= self.frequency * count as f32;
                *logit -= self.presence;
            }
        }
    }

    fn describe(&self, params: &mut SampleParams) -> bool {
        let Self { repetition, frequency, presence } = *self;
        params.penalties = Some(sample::Penalties { repetition, frequency, presence });
        true
    }
}

#[cfg(test)]
mod tests {
    use proto::Sampling;

    use crate::rules::check::rewritten;

    #[test]
    fn each_penalty_by_hand() {
        let check = |(repetition_penalty, frequency_penalty, presence_penalty), want: &[f32]| {
            let sampling = Sampling { repetition_penalty, frequency_penalty, presence_penalty, ..Default::default() };
            // Token 1 is in the prompt, 2 in both, 3 in the output (twice), 0 and 4 nowhere; 80 is out of the
            // vocabulary.
            assert_eq!(rewritten(&sampling, &[1, 2, 80], &[3, 2, 3], &[1.0, 1.0, -1.0, 4.0, -2.0]), want);
        };
        check((1.0, 0.0, 0.0), &[1.0, 1.0, -1.0, 4.0, -2.0]);
        check((2.0, 0.0, 0.0), &[1.0, 0.5, -2.0, 2.0, -2.0]);
        check((1.0, 0.5, 0.0), &[1.0, 1.0, -1.5, 3.0, -2.0]);
        check((1.0, 0.0, 1.5), &[1.0, 1.0, -2.5, 2.5, -2.0]);
        check((2.0, 0.5, 1.5), &[1.0, 0.5, -4.0, -0.5, -2.0]);
        check((0.0, 0.0, 0.0), &[1.0, 1.0, -1.0, 4.0, -2.0]); // unset: off
    }
}
