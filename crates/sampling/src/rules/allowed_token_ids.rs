//! `allowed_token_ids`: nothing but these tokens may be chosen.

use kernels::sample::SampleParams;

use super::{Request, Rewrite, forbid};
use crate::History;

struct AllowedTokenIds {
    /// As they came: the first is what is left when everything is masked.
    requested: Vec<u32>,
    /// Ascending, each once.
    allowed: Vec<u32>,
}

pub(super) fn compile(request: &Request<'_>) -> Option<Box<dyn Rewrite>> {
    let requested = request.sampling.allowed_token_ids.clone();
    let mut allowed = requested.clone();
    allowed.sort_unstable();
    allowed.dedup();
    (!allowed.is_empty()).then(|| Box::new(AllowedTokenIds { requested, allowed }) as Box<dyn Rewrite>)
}

impl Rewrite for AllowedTokenIds {
    fn apply(&self, row: &mut [f32], _history: &History) {
        let mut next = 0;
        for &token in &self.allowed {
            (next..token.min(row.len() as u32)).for_each(|between| forbid(row, between));
            next = token.saturating_add(1);
        }
        (next..row.len() as u32).for_each(|after| forbid(row, after));
    }

    fn describe(&self, params: &mut SampleParams) -> bool {
        params.allowed.clone_from(&self.requested);
        true
    }
}

#[cfg(test)]
mod tests {
    use proto::Sampling;

    use crate::rules::check::{MASKED, rewritten};

    #[test]
    fn masks_all_others() {
        let check = |allowed: &[u32], want: &[f32]| {
            let sampling = Sampling { allowed_token_ids: allowed.to_vec(), ..Default::default() };
            assert_eq!(rewritten(&sampling, &[1], &[], &[1.0, 2.0, 3.0, 4.0]), want);
        };
        check(&[], &[1.0, 2.0, 3.0, 4.0]);
        check(&[2], &[MASKED, MASKED, 3.0, MASKED]);
        check(&[3, 0, 3], &[1.0, MASKED, MASKED, 4.0]);
        check(&[1, 99, u32::MAX], &[MASKED, 2.0, MASKED, MASKED]);
    }
}
