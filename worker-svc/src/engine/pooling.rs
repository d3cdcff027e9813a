//! Steps of models that pool: a plan is one forward pass, whose rows add to their sequences' outputs; the row that
//! completes a prompt gives the output. Nothing is sampled, so a step is over when it is submitted.

use std::{borrow::Cow, ops::Range, time::Instant};

use models::{PooledRows, PooledStep, pooling::PoolingMethod};
use proto::{Pooled, Pooling, StepPlan, StepResult, Want};

use super::{
    Engine, Flight,
    forward_pass::{Chunk, Row, Wanted, check_positions, rows},
    input_batch::InputBatch,
    slots::{Slot, malformed, no_slot},
};
use crate::error::StepError;

/// What there is of a sequence's output.
#[derive(Clone, Debug)]
pub(crate) struct PartialOutput {
    method: PoolingMethod,
    /// The output so far; of a weighted mean, the sum.
    values: Vec<f32>,
    /// Tokens that are in it.
    tokens: usize,
    /// Where the prompt's second text begins.
    second_text: Option<u32>,
    /// Of each output of the model, what counts; absent: all of it.
    columns: Option<Range<usize>>,
}

impl PartialOutput {
    pub(crate) fn new(method: PoolingMethod, asked: &Pooling) -> Self {
        let method = if asked.each { PoolingMethod::Each } else { method };
        let (first, columns) = (asked.first_column as usize, asked.columns as usize);
        let columns = (columns > 0).then(|| first..first + columns);
        Self { method, values: Vec::new(), tokens: 0, second_text: asked.second_text, columns }
    }

    /// The columns that count, of outputs of `width` numbers.
    fn picked<'a>(&self, outputs: &'a [f32], width: usize) -> Cow<'a, [f32]> {
        match &self.columns {
            Some(columns) => outputs.chunks_exact(width).flat_map(|row| &row[columns.clone()]).copied().collect(),
            None => Cow::Borrowed(outputs),
        }
    }

    /// Which of a chunk's rows count, by offset, each range one output of the model.
    fn wanted(&self, start: usize, len: usize, is_last: bool) -> Vec<Range<usize>> {
        match self.method {
            PoolingMethod::Cls if start == 0 => vec![Range { start: 0, end: 1 }],
            PoolingMethod::Last if is_last => vec![Range { start: len - 1, end: len }],
            PoolingMethod::Cls | PoolingMethod::Last => Vec::new(),
            PoolingMethod::Mean | PoolingMethod::MeanSqrtLen => vec![Range { start: 0, end: len }],
            PoolingMethod::Each
            | PoolingMethod::Max
            | PoolingMethod::WeightedMean
            | PoolingMethod::SparseMax
            | PoolingMethod::SparseSum => (0..len).map(|row| row..row + 1).collect(),
        }
    }

    /// Takes up the outputs of a chunk of `tokens` tokens.
    fn add(&mut self, outputs: &[f32], tokens: usize) {
        let before = self.tokens;
        self.tokens += tokens;
        match self.method {
            PoolingMethod::Cls | PoolingMethod::Last | PoolingMethod::Each => self.values.extend_from_slice(outputs),
            PoolingMethod::Mean | PoolingMethod::MeanSqrtLen if before == 0 => self.values.extend_from_slice(outputs),
            PoolingMethod::Mean | PoolingMethod::MeanSqrtLen => {
                let (before, tokens) = (before as f32, tokens as f32);
                let means = self.values.iter_mut().zip(outputs);
                means.for_each(|(mean, new)| *mean = (*mean * before + new * tokens) / (before + tokens));
            }
            // The logarithm grows with what it is of, so it can wait until the end.
            PoolingMethod::SparseMax => self.fold(outputs, tokens, 0.0, |most, new, _| most.max(new)),
            PoolingMethod::SparseSum => self.fold(outputs, tokens, 0.0, |sum, new, _| sum + new.max(0.0).ln_1p()),
            PoolingMethod::Max => self.fold(outputs, tokens, f32::NEG_INFINITY, |most, new, _| most.max(new)),
            PoolingMethod::WeightedMean => {
                self.fold(outputs, tokens, 0.0, |sum, new, row| sum + new * (before + row + 1) as f32);
            }
        }
    }

    /// Folds the outputs of a chunk's tokens into the one output, which begins as `first`; `with` is told which of the
    /// chunk's tokens a number is of.
    fn fold(&mut self, outputs: &[f32], tokens: usize, first: f32, with: impl Fn(f32, f32, usize) -> f32) {
        let width = outputs.len() / tokens.max(1);
        self.values.resize(width, first);
        for (row, output) in outputs.chunks_exact(width.max(1)).enumerate() {
            self.values.iter_mut().zip(output).for_each(|(value, new)| *value = with(*value, *new, row));
        }
    }

    /// The output of all tokens.
    fn finish(&mut self) -> Vec<f32> {
        let tokens = self.tokens as f32;
        let scale = match self.method {
            PoolingMethod::MeanSqrtLen => tokens.sqrt(),
            PoolingMethod::WeightedMean => 2.0 / (tokens * (tokens + 1.0)),
            _ => 1.0,
        };
        let mut values = std::mem::take(&mut self.values);
        if self.method == PoolingMethod::SparseMax {
            values.iter_mut().for_each(|value| *value = value.ln_1p());
        }
        if scale != 1.0 {
            values.iter_mut().for_each(|value| *value *= scale);
        }
        values
    }
}

/// A row of a plan, with what it adds to its sequence's output.
struct PooledRow {
    slot: u32,
    tokens: usize,
    outputs: usize,
    is_last: bool,
}

impl Engine<'_> {
    /// Executes a plan: there must be room, see [`crate::compute::run_loop::Work::has_room`].
    pub(crate) fn execute(&mut self, plan: StepPlan) -> Result<(), StepError> {
        if self.model.pools() { self.pool(plan) } else { self.submit(plan) }
    }

    fn pool(&mut self, mut plan: StepPlan) -> Result<(), StepError> {
        let submitted = Instant::now();
        check_rows(&plan)?;
        self.change_slots(&mut plan)?;
        let mut result = StepResult { epoch: plan.epoch, step: plan.step, ..StepResult::default() };
        if !plan.slot.is_empty() {
            self.run_pooled(&plan, &mut result)?;
        }
        self.flights.push_back(Flight { result, submitted, pending: None, note: None });
        self.warm_up.resume();
        Ok(())
    }

    fn run_pooled(&mut self, plan: &StepPlan, result: &mut StepResult) -> Result<(), StepError> {
        let (mut chunks, mut pooled, mut ranges) = (Vec::new(), Vec::new(), Vec::new());
        let (mut first_row, mut token_types) = (0, Vec::new());
        for row in rows(plan) {
            let slot = self.slots.get(row.slot).ok_or_else(|| no_slot(plan.step, row.slot))?;
            check_positions(plan.step, &row, slot, 0)?;
            let (pooled_row, wanted) = pooled_row(plan.step, &row, slot, self.model.output_width())?;
            ranges.extend(wanted.into_iter().map(|range| range.start + first_row..range.end + first_row));
            first_row += pooled_row.tokens;
            add_types(&mut token_types, first_row, &row, slot);
            pooled.push(pooled_row);
            chunks.push(Chunk { slot: row.slot, start: row.start, len: row.len, wanted: Wanted::Nothing });
        }
        if !token_types.is_empty() {
            token_types.resize(first_row, 0);
        }
        let input = InputBatch::new(&chunks, plan, &self.slots, &mut self.memory);
        let singles: Vec<u32> = ranges.iter().map(|range| range.start as u32).collect();
        let wanted = match ranges.iter().all(|range| range.len() == 1) {
            true => PooledRows::Each(&singles),
            false => PooledRows::Means(&ranges),
        };
        let step = PooledStep { batch: input.batch(), rows: wanted, token_types: &token_types };
        self.model.set_adapters(&input.adapters);
        let ticket = self.model.submit_pooled(step, &mut *self.group)?;
        drop(input.into_targets(&mut self.memory));
        self.collect(&pooled, result)?;
        self.sampled.clear();
        self.model.take(ticket, &mut self.sampled)?;
        Ok(())
    }

    /// Adds what the step gave to the sequences' outputs; those that are complete go into the result.
    fn collect(&mut self, pooled: &[PooledRow], result: &mut StepResult) -> Result<(), StepError> {
        let width = self.model.output_width();
        let mut outputs = self.model.outputs()?;
        for row in pooled {
            let (own, others) = outputs.split_at(row.outputs * width);
            outputs = others;
            let Some(partial) = self.slots.get_mut(row.slot).and_then(|slot| slot.pooled.as_mut()) else { continue };
            if !own.is_empty() {
                let own = partial.picked(own, width);
                partial.add(&own, row.tokens);
            }
            if row.is_last {
                result.slot.push(row.slot);
                result.count.push(0);
                let values = partial.finish();
                result.pooled.push(Pooled { sequence: row.slot.into(), values, more: false });
            }
        }
        Ok(())
    }
}

/// What a row of a plan adds to its sequence's output, and which of its tokens do, by offset. The model's outputs have
/// `width` numbers.
fn pooled_row(step: u64, row: &Row, slot: &Slot, width: usize) -> Result<(PooledRow, Vec<Range<usize>>), StepError> {
    let Some(partial) = &slot.pooled else {
        return Err(malformed(step, "a sequence to be continued, on a worker whose model pools"));
    };
    if partial.columns.as_ref().is_some_and(|columns| columns.end > width) {
        return Err(malformed(step, "a sequence with columns that the model's outputs lack"));
    }
    let (is_last, tokens) = (row.want == Want::Pool as i32, row.len as usize);
    let wanted = partial.wanted(row.start as usize, tokens, is_last);
    Ok((PooledRow { slot: row.slot, tokens, outputs: wanted.len(), is_last }, wanted))
}

/// Types of a row's tokens, once some row has a second text; `rows`: those of the step up to here.
fn add_types(types: &mut Vec<u32>, rows: usize, row: &Row, slot: &Slot) {
    let second = slot.pooled.as_ref().and_then(|partial| partial.second_text);
    if types.is_empty() && second.is_none() {
        return;
    }
    // Of rows before the first that has a second text.
    types.resize(rows - row.len as usize, 0);
    let second = second.unwrap_or(u32::MAX);
    types.extend((row.start..row.start + row.len).map(|position| u32::from(position >= second)));
}

/// Refuses rows that are incomplete, or want what a model that pools does not do.
fn check_rows(plan: &StepPlan) -> Result<(), StepError> {
    let rows = plan.slot.len();
    if plan.start.len() != rows || plan.num_tokens.len() != rows || plan.want.len() != rows {
        return Err(malformed(plan.step, "slot, start, num_tokens and want differ in length"));
    }
    let pools = |want: &i32| matches!(Want::try_from(*want), Ok(Want::None | Want::Pool));
    match plan.want.iter().all(pools) && plan.draft.is_empty() {
        true => Ok(()),
        false => Err(malformed(plan.step, "rows that are to be continued, on a worker whose model pools")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partial(method: PoolingMethod) -> PartialOutput {
        PartialOutput::new(method, &Pooling::default())
    }

    #[test]
    fn columns_are_picked() {
        let asked = Pooling { first_column: 1, columns: 2, each: true, ..Pooling::default() };
        let mut partial = PartialOutput::new(PoolingMethod::Cls, &asked);
        assert_eq!(partial.wanted(0, 2, true).len(), 2);
        let picked = partial.picked(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3);
        partial.add(&picked, 2);
        assert_eq!(partial.finish(), [2.0, 3.0, 5.0, 6.0]);
    }

    #[test]
    fn a_mean_over_chunks_is_the_mean() {
        let mut partial = partial(PoolingMethod::Mean);
        assert_eq!(partial.wanted(0, 3, false), [Range { start: 0, end: 3 }]);
        partial.add(&[1.0, 8.0], 3);
        assert_eq!(partial.values, [1.0, 8.0]);
        partial.add(&[5.0, 0.0], 1);
        assert_eq!(partial.values, [2.0, 6.0]);
    }

    #[test]
    fn outputs_of_tokens_are_folded_over_chunks() {
        let pooled = |method| {
            let mut partial = partial(method);
            partial.add(&[1.0, 8.0, 3.0, 2.0], 2);
            partial.add(&[2.0, 5.0], 1);
            partial.finish()
        };
        assert_eq!(pooled(PoolingMethod::Max), [3.0, 8.0]);
        let close = |got: Vec<f32>, want: [f32; 2]| got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-6);
        let mut sparse = partial(PoolingMethod::SparseMax);
        sparse.add(&[-1.0, 0.5, -2.0, 3.0], 2);
        sparse.add(&[-4.0, 1.0], 1);
        assert!(close(sparse.finish(), [0.0, 4f32.ln()]));
        assert!(close(pooled(PoolingMethod::SparseSum), [24f32.ln(), 162f32.ln()]));
        let weighted = pooled(PoolingMethod::WeightedMean);
        assert!((weighted[0] - 13.0 / 6.0).abs() < 1e-6 && (weighted[1] - 27.0 / 6.0).abs() < 1e-6, "{weighted:?}");
        let mut partial = partial(PoolingMethod::MeanSqrtLen);
        partial.add(&[2.0], 1);
        partial.add(&[4.0], 3);
        assert_eq!(partial.finish(), [7.0]);
    }

    #[test]
    fn methods_want_their_rows() {
        let wanted = |method, start, len, is_last| partial(method).wanted(start, len, is_last).len();
        assert_eq!([wanted(PoolingMethod::Cls, 0, 4, false), wanted(PoolingMethod::Cls, 4, 4, true)], [1, 0]);
        assert_eq!([wanted(PoolingMethod::Last, 0, 4, false), wanted(PoolingMethod::Last, 4, 4, true)], [0, 1]);
        assert_eq!(wanted(PoolingMethod::Each, 4, 3, false), 3);
    }
}
