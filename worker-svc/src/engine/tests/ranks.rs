//! Ranks of a group rehearse the same steps in the same order, and serve afterwards as ranks that did not.

use collectives::{Collective, CollectiveError, Threads};
use models::Placement;

use super::*;

/// A group that notes what is asked of it.
struct Noting {
    group: Threads,
    notes: std::sync::Arc<std::sync::Mutex<Vec<(&'static str, usize)>>>,
}

impl Noting {
    fn note(&self, what: &'static str, count: usize) {
        self.notes.lock().unwrap().push((what, count));
    }
}

impl Collective for Noting {
    fn rank(&self) -> usize {
        self.group.rank()
    }
    fn world_size(&self) -> usize {
        self.group.world_size()
    }
    fn all_reduce_sum(&mut self, data: &mut [f32]) -> Result<(), CollectiveError> {
        self.note("sum", data.len());
        self.group.all_reduce_sum(data)
    }
    fn all_gather(&mut self, mine: &[f32], all: &mut [f32]) -> Result<(), CollectiveError> {
        self.note("gather", all.len());
        self.group.all_gather(mine, all)
    }
    fn exchange(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        self.note("exchange", mine.len());
        self.group.exchange(mine)
    }
}

/// What a rank does together with others in a rehearsal, and what plans give after it.
fn rehearsed(group: Threads, plans: &[StepPlan]) -> (Vec<(&'static str, usize)>, Vec<StepResult>) {
    let (rank, size) = (group.rank(), group.world_size());
    let (mut model, mut graphs) = (model_at(Placement::rank(rank, size)), GraphCapture::new(false));
    let notes = std::sync::Arc::default();
    let mut group = Noting { group, notes };
    model.set_slots(8);
    rehearsal::run_steps(&mut *model, &mut graphs, &mut group, ROOM).unwrap();
    let notes = std::mem::take(&mut *group.notes.lock().unwrap());
    let mut engine = engine_of(&mut *model, &mut graphs, Box::new(group));
    let run = |plan: &StepPlan| {
        engine.submit(plan.clone()).unwrap();
        StepResult { compute_us: 0, ..engine.finish().unwrap().unwrap() }
    };
    let given = plans.iter().map(run).collect();
    (notes, given)
}

#[test]
fn ranks_rehearse_in_step_and_give_the_same_tokens() {
    let sequences = (0..).zip([&[1, 2, 3][..], &[4, 5, 6, 7]]).map(|(slot, prompt)| {
        let seeded = Sampling { temperature: 1.2, top_k: 30, ..Sampling::default() };
        sequence(slot, prompt, if slot == 0 { Sampling::default() } else { seeded })
    });
    let plans = decode(sequences.collect(), 8);
    let alone = results(&plans, false, Capture::Never);
    let ranks: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            Threads::group(2).into_iter().map(|group| scope.spawn(|| rehearsed(group, &plans))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let [(first, given), (second, _)] = &ranks[..] else { unreachable!("two ranks") };
    assert_eq!(first, second);
    // Two prompts and three tokens, each with a gather of logits.
    let gathers = first.iter().filter(|(what, _)| *what == "gather").count();
    assert_eq!(gathers, 5, "{first:?}");
    assert_eq!(given, &alone);
}
