//! Splits a plan into forward passes (micro-batches).
//!
//! Nearly every plan is one pass. Only prompts whose log-probabilities are wanted need the logits of every position;
//! they run in chunks of at most `max_logit_rows` tokens, so that a long prompt does not need `tokens * vocab` numbers
//! at once. Splitting changes no bit of any result (see `kernels::ops::Backend`).

use proto::{StepPlan, Want};

use super::slots::{Slot, Slots, malformed, no_slot};
use crate::error::StepError;

/// Which positions of a chunk need logits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wanted {
    /// None: more chunks of the prompt follow.
    Nothing,
    /// None: the token behind it is known by now, since a grammar forced it.
    Known,
    /// The last: a token is sampled there.
    Last,
    /// The last: candidates for a beam's next token are looked up there.
    Candidates,
    /// All, for log-probabilities of the prompt; with `sample`, a token is sampled at the last.
    All { sample: bool },
    /// The last known position and those of the `count` drafted tokens after it, which the plan has from `first` on.
    Drafted { first: u32, count: u32 },
}

/// Consecutive tokens of one sequence: a chunk of a prompt, or the token of a decode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Chunk {
    pub slot: u32,
    pub start: u32,
    pub len: u32,
    pub wanted: Wanted,
}

impl Chunk {
    /// Whether a token is sampled at the last position.
    pub(crate) fn samples(&self) -> bool {
        matches!(self.wanted, Wanted::Last | Wanted::All { sample: true })
    }

    pub(crate) fn logit_rows(&self) -> usize {
        match self.wanted {
            Wanted::Nothing | Wanted::Known => 0,
            Wanted::Last | Wanted::Candidates => 1,
            Wanted::All { .. } => self.len as usize,
            Wanted::Drafted { count, .. } => count as usize + 1,
        }
    }

    /// The drafted tokens that it verifies.
    pub(crate) fn draft<'p>(&self, plan: &'p StepPlan) -> &'p [u32] {
        match self.wanted {
            Wanted::Drafted { first, count } => &plan.draft[first as usize..(first + count) as usize],
            _ => &[],
        }
    }
}

/// Refuses rows that are incomplete, or want what this worker cannot do.
pub(crate) fn check_rows(plan: &StepPlan) -> Result<(), StepError> {
    let (step, rows) = (plan.step, plan.slot.len());
    if plan.start.len() != rows || plan.num_tokens.len() != rows || plan.want.len() != rows {
        return Err(malformed(step, "slot, start, num_tokens and want differ in length"));
    }
    let mut drafts = plan.num_draft.iter();
    for (number, num_tokens) in plan.want.iter().zip(&plan.num_tokens) {
        match Want::try_from(*number) {
            Ok(Want::None | Want::Sample | Want::Candidates) => {}
            Ok(Want::Verify) => match drafts.next() {
                Some(drafted) if (1..*num_tokens).contains(drafted) => {}
                _ => return Err(malformed(step, "a WANT_VERIFY row without known or drafted tokens")),
            },
            Ok(want) => return Err(malformed(step, &format!("this worker cannot do {} rows", want.as_str_name()))),
            Err(_) => return Err(malformed(step, &format!("a row wants {number}, which means nothing"))),
        }
    }
    let drafted: u64 = plan.num_draft.iter().map(|drafted| u64::from(*drafted)).sum();
    match drafts.next().is_none() && drafted == plan.draft.len() as u64 {
        true => Ok(()),
        false => Err(malformed(step, "drafted tokens that no WANT_VERIFY row has")),
    }
}

/// The forward passes of a plan that [`check_rows`] accepts, each with at most `max_logit_rows` rows of logits. Rows
/// keep their order within and across passes. The first pass takes the memory of `spare`.
pub(crate) fn forward_passes(
    plan: &StepPlan,
    slots: &Slots,
    max_logit_rows: usize,
    mut spare: Vec<Chunk>,
) -> Result<Vec<Vec<Chunk>>, StepError> {
    spare.clear();
    spare.reserve(plan.slot.len());
    let mut passes = Passes { full: Vec::new(), last: spare, logit_rows: 0, max_logit_rows };
    let (mut drafts, mut first) = (plan.num_draft.iter(), 0);
    for row in rows(plan) {
        let slot = slots.get(row.slot).ok_or_else(|| no_slot(plan.step, row.slot))?;
        let (start, sample) = (row.start, row.want == Want::Sample as i32);
        let count = if row.want == Want::Verify as i32 { drafts.next().copied().unwrap_or(0) } else { 0 };
        check_positions(plan.step, &row, slot, count)?;
        let searches = row.want == Want::Candidates as i32;
        if searches != (slot.candidates > 0) && row.want != Want::None as i32 {
            return Err(malformed(plan.step, "rows of beams, and no others, want WANT_CANDIDATES"));
        }
        let wanted = match (count, sample) {
            _ if searches => Wanted::Candidates,
            (0, true) if slot.guide.is_some() && ((start + row.len) as usize) < slot.len() => Wanted::Known,
            (0, true) => Wanted::Last,
            (0, false) => Wanted::Nothing,
            (count, _) => Wanted::Drafted { first, count },
        };
        first += count;
        let whole = Chunk { slot: row.slot, start, len: row.len, wanted };
        let scores_prompt = slot.prompt_logprobs.is_some() && (start as usize) < slot.history.num_prompt();
        if count > 0 {
            check_draft(plan.step, &whole, scores_prompt, max_logit_rows)?;
            passes.add(whole, Order::Any);
        } else if scores_prompt && !searches {
            for chunk in split(whole, sample, max_logit_rows) {
                passes.add(chunk, if chunk.start > start { Order::AfterLast } else { Order::Any });
            }
        } else {
            passes.add(whole, Order::Any);
        }
    }
    Ok(passes.finish())
}

/// A row of a plan.
pub(super) struct Row {
    pub(super) slot: u32,
    pub(super) start: u32,
    pub(super) len: u32,
    /// A [`Want`].
    pub(super) want: i32,
}

/// The rows of a plan whose lists are equally long.
pub(super) fn rows(plan: &StepPlan) -> impl Iterator<Item = Row> + '_ {
    let places = plan.slot.iter().zip(&plan.start);
    let sizes = plan.num_tokens.iter().zip(&plan.want);
    places.zip(sizes).map(|((slot, start), (len, want))| Row { slot: *slot, start: *start, len: *len, want: *want })
}

/// Whether a chunk may share the last pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Any,
    /// It needs what the last pass computes.
    AfterLast,
}

/// Forward passes being filled.
struct Passes {
    full: Vec<Vec<Chunk>>,
    last: Vec<Chunk>,
    /// Rows of logits in the last pass.
    logit_rows: usize,
    max_logit_rows: usize,
}

impl Passes {
    #[inline]
    fn add(&mut self, chunk: Chunk, order: Order) {
        let rows = chunk.logit_rows();
        if order == Order::AfterLast || self.logit_rows + rows > self.max_logit_rows {
            self.full.push(std::mem::take(&mut self.last));
            self.logit_rows = 0;
        }
        self.logit_rows += rows;
        self.last.push(chunk);
    }

    fn finish(mut self) -> Vec<Vec<Chunk>> {
        self.full.push(self.last);
        // A plan without rows only changes slots.
        self.full.retain(|pass| !pass.is_empty());
        self.full
    }
}

/// Refuses drafted tokens that this worker cannot verify.
fn check_draft(step: u64, row: &Chunk, scores_prompt: bool, max_logit_rows: usize) -> Result<(), StepError> {
    let drafted = row.logit_rows() as u32 - 1;
    if row.logit_rows() > max_logit_rows {
        let most = max_logit_rows - 1;
        return Err(malformed(step, &format!("{drafted} drafted tokens; this worker verifies {most}")));
    }
    if scores_prompt && row.len - drafted > 1 {
        return Err(malformed(step, "drafted tokens behind a prompt whose log-probabilities are wanted"));
    }
    Ok(())
}

/// Refuses a row whose tokens the sequence will not have when the row runs; the last `drafted` are the plan's own.
#[inline]
pub(super) fn check_positions(step: u64, row: &Row, slot: &Slot, drafted: u32) -> Result<(), StepError> {
    let is_newest = drafted == 0 && row.len == 1 && row.start as usize + 1 == slot.len();
    if is_newest { Ok(()) } else { check_other_positions(step, row, slot, drafted) }
}

/// The same for rows that are not a sequence's newest token.
fn check_other_positions(step: u64, row: &Row, slot: &Slot, drafted: u32) -> Result<(), StepError> {
    let (number, start, len) = (row.slot, row.start as usize, (row.len - drafted) as usize);
    let (end, known) = (start + len, slot.history.tokens().len());
    let all = known + slot.pending;
    if len == 0 || end > all {
        return Err(malformed(step, &format!("tokens {start}..{end} of {all}")));
    }
    // Of the tokens that are not known yet, the device has the newest only.
    let unknown = end.saturating_sub(known.max(start));
    if unknown > 1 || (unknown == 1 && end < all) {
        return Err(malformed(step, &format!("tokens {start}..{end} of slot {number} are under way")));
    }
    // What is drafted continues what is known.
    if drafted > 0 && (end != known || slot.pending > 0) {
        return Err(malformed(step, &format!("drafted tokens at {end}, slot {number} has {all}")));
    }
    Ok(())
}

fn split(whole: Chunk, sample: bool, most: usize) -> Vec<Chunk> {
    let end = whole.start + whole.len;
    let chunks = (whole.start..end).step_by(most.max(1)).map(|start| {
        let len = (end - start).min(most.max(1) as u32);
        Chunk { start, len, wanted: Wanted::All { sample: sample && start + len == end }, ..whole }
    });
    chunks.collect()
}

#[cfg(test)]
mod tests {
    use proto::{NewSequence, Sampling};

    use super::*;

    fn slots(prompt_logprobs: Option<i32>) -> Slots {
        let mut slots = Slots::new(4, 10, 1, vec![]);
        let added = (0..4).map(|slot| NewSequence {
            slot,
            tokens: vec![1; 10],
            num_prompt_tokens: 10,
            blocks: vec![0],
            sampling: Some(Sampling { prompt_logprobs, ..Sampling::default() }),
            ..NewSequence::default()
        });
        slots.apply(&mut StepPlan { added: added.collect(), ..StepPlan::default() }).unwrap();
        slots
    }

    fn plan(rows: &[(u32, u32, u32, i32)]) -> StepPlan {
        let mut plan = StepPlan::default();
        for (slot, start, len, want) in rows {
            plan.slot.push(*slot);
            plan.start.push(*start);
            plan.num_tokens.push(*len);
            plan.want.push(*want);
        }
        plan
    }

    #[test]
    fn an_ordinary_plan_is_one_pass() {
        let passes =
            forward_passes(&plan(&[(0, 0, 10, 1), (1, 9, 1, 1), (2, 0, 4, 0)]), &slots(None), 4, vec![]).unwrap();
        assert_eq!(passes.len(), 1);
        assert_eq!(passes[0].iter().map(Chunk::logit_rows).sum::<usize>(), 2);
    }

    #[test]
    fn a_plan_without_rows_runs_nothing() {
        assert!(forward_passes(&plan(&[]), &slots(None), 4, vec![]).unwrap().is_empty());
    }

    #[test]
    fn scored_prompts_run_in_chunks() {
        let passes = forward_passes(&plan(&[(0, 0, 10, 1), (1, 0, 3, 0)]), &slots(Some(0)), 4, vec![]).unwrap();
        let shape: Vec<Vec<(u32, u32, u32)>> =
            passes.iter().map(|pass| pass.iter().map(|p| (p.slot, p.start, p.len)).collect()).collect();
        assert_eq!(shape, [vec![(0, 0, 4)], vec![(0, 4, 4)], vec![(0, 8, 2)], vec![(1, 0, 3)]]);
        assert_eq!(passes[2][0].wanted, Wanted::All { sample: true });
        assert_eq!(passes[1][0].wanted, Wanted::All { sample: false });
    }

    #[test]
    fn plans_that_contradict_the_slots_are_refused() {
        for rows in [&[(9, 0, 1, 1)][..], &[(0, 8, 3, 1)], &[(0, 0, 0, 1)], &[(0, u32::MAX, 1, 1)]] {
            assert!(forward_passes(&plan(rows), &slots(None), 4, vec![]).is_err(), "{rows:?}");
        }
    }

    #[test]
    fn rows_that_this_worker_cannot_do_are_refused_by_name() {
        let refusal = |change: fn(&mut StepPlan)| {
            let mut plan = plan(&[(0, 0, 1, 1), (1, 0, 1, 0)]);
            assert!(check_rows(&plan).is_ok());
            change(&mut plan);
            check_rows(&plan).unwrap_err().to_string()
        };
        assert!(refusal(|plan| plan.want.truncate(1)).contains("differ in length"));
        assert!(refusal(|plan| plan.want[1] = Want::Verify as i32).contains("WANT_VERIFY"));
        let drafted = |plan: &mut StepPlan, num_draft| {
            (plan.want[1], plan.num_tokens[1]) = (Want::Verify as i32, 2);
            (plan.num_draft, plan.draft) = (vec![num_draft], vec![5]);
        };
        let mut right = plan(&[(0, 0, 1, 1), (1, 0, 1, 0)]);
        drafted(&mut right, 1);
        assert!(check_rows(&right).is_ok());
        let row = |num_draft| {
            let mut plan = right.clone();
            drafted(&mut plan, num_draft);
            check_rows(&plan).unwrap_err().to_string()
        };
        assert!(row(0).contains("WANT_VERIFY") && row(2).contains("WANT_VERIFY"));
        assert!(refusal(|plan| plan.want[0] = Want::Pool as i32).contains("WANT_POOL"));
        assert!(refusal(|plan| plan.want[0] = 9).contains("wants 9"));
        assert!(refusal(|plan| plan.draft.push(4)).contains("WANT_VERIFY"));
    }
}
