//! A step from its rows to its tokens, captured and replayed.

use std::time::Duration;

use kernels::ops::{self, Act, Capture, CaptureError, CaptureOwner, CaptureSize};
use kernels::sample::{SampleRow, Ticket};

use crate::CudaBackend;
use crate::fusion::pass::Kept;
use crate::graph::captures::Kind;
use crate::runtime::activations::View;
use crate::runtime::shared_prefix::SharedPrefix;

impl Capture for CudaBackend {
    fn set_capture_sizes(&mut self, owner: CaptureOwner, rows: &[usize], layers: usize) {
        self.captures.set(owner, rows, layers);
    }

    fn capture_bytes(&self) -> u64 {
        self.captures.bytes()
    }

    fn next_capture(&self, owner: CaptureOwner) -> Option<CaptureSize> {
        self.next_to_capture(owner)
    }

    fn begin_capture(&mut self) {
        self.device.bind();
        self.end_operations();
        self.captures.forget_stale();
        self.device.start_capture();
    }

    fn end_capture(&mut self) -> Result<(), CaptureError> {
        self.keep_capture()
    }

    fn replay(&mut self, owner: CaptureOwner, batch: ops::Batch<'_>, rows: &[SampleRow]) -> Option<Ticket> {
        self.replay_captured(owner, batch, rows)
    }

    fn replay_pass(&mut self, owner: CaptureOwner, batch: ops::Batch<'_>) -> bool {
        self.replay_to_logits(owner, batch)
    }
}

impl CudaBackend {
    /// Starts a step, padded to a capture size of `owner` if there is one: its batch is sent, and placed.
    pub(crate) fn start(&mut self, batch: ops::Batch<'_>, owner: Option<CaptureOwner>) {
        let padded = owner.map(|owner| self.captures.padded(owner, batch.tokens.len()));
        self.padded_for = owner;
        let prefix =
            if self.device.is_capturing() { self.prefix_to_capture(padded) } else { self.prefix(batch, owner) };
        self.send(batch, padded, prefix.as_ref());
        self.batch.place(&mut self.device, self.slots.last_tokens());
    }

    /// What a step's sequences share, if it is to be attended to once; nothing where such steps cannot be captured.
    fn prefix(&mut self, batch: ops::Batch<'_>, owner: Option<CaptureOwner>) -> Option<SharedPrefix> {
        let captures = owner.and_then(|owner| self.captures.of(owner));
        if captures.is_some_and(|captures| captures.refuses(Kind::Cascade)) {
            return None;
        }
        self.attention.shared_prefix(&mut self.device, batch, &self.caches)
    }

    /// Some prefix, of which a captured step knows nothing, where one with cascade attention is to be captured.
    fn prefix_to_capture(&self, rows: Option<usize>) -> Option<SharedPrefix> {
        let (captures, rows) = (self.captures.of(self.padded_for?)?, rows?);
        let kind = captures.kind(rows, |special| self.device.is_compiled(special, Duration::ZERO));
        (kind == Kind::Cascade).then(SharedPrefix::default)
    }

    fn send(&mut self, batch: ops::Batch<'_>, padded: Option<usize>, prefix: Option<&SharedPrefix>) {
        self.device.bind();
        self.end_operations();
        self.matmul.tactics.begin(batch.sequences.is_empty());
        self.batch.set(&mut self.device, batch, padded, prefix);
        self.acts.begin(self.batch.rows());
        if !self.device.is_capturing() {
            self.lora.prepare(&mut self.device, self.acts.most_rows());
        }
        self.lora.begin(&mut self.device, batch, self.batch.rows());
        let alone = self.device.is_capturing() && self.batch.rows() == 1;
        self.pass.begin_step(if alone { Kept::Step } else { Kept::Nothing });
    }

    /// Ends a step with the choice of its tokens, of which a capture has none.
    pub(crate) fn sample_tokens(&mut self, logits: Act, rows: &[SampleRow]) -> Ticket {
        self.device.bind();
        self.flush_for(logits);
        // In a padded step all rows are chosen from, if any.
        let owner = self.padded_for.filter(|_| rows.len() == self.batch.own_rows());
        let count = if owner.is_some() { self.batch.rows() } else { rows.len() };
        let logits = (count > 0).then(|| self.acts.view(logits));
        self.end_sampled(logits, rows, count)
    }

    /// Ends a step with a choice of `count` rows, of which the first are `rows` and all others padding.
    pub(crate) fn end_sampled(&mut self, logits: Option<View>, rows: &[SampleRow], count: usize) -> Ticket {
        if self.device.is_capturing() {
            // How tokens are drawn differs from step to step, and with it what is launched: that follows a capture.
            self.captured_logits = logits;
            return Ticket(u64::MAX);
        }
        if let Some(captures) = self.padded_for.and_then(|owner| self.captures.of_mut(owner)) {
            captures.ran(self.batch.rows(), Kind::of(self.batch.shares_prefix()));
        }
        self.slots.send(&mut self.device, rows, count);
        self.slots.end(&mut self.device, logits, rows, count)
    }

    /// What is to be captured next. Whatever is being compiled may be what its first run needs; and that would measure
    /// all products at once, where the background tuner goes step by step.
    pub(crate) fn next_to_capture(&self, owner: CaptureOwner) -> Option<CaptureSize> {
        let is_compiled = |special| self.device.is_compiled(special, Duration::ZERO);
        let captures = self.captures.of(owner).filter(|_| self.device.fault().is_none())?;
        let (rows, has_run) = captures.next(is_compiled)?;
        let is_ready = !self.device.is_compiling() && (has_run || self.is_tuned(rows));
        Some(CaptureSize { rows, has_run, is_ready })
    }

    /// Keeps the step that was captured, or says why it could not be.
    pub(crate) fn keep_capture(&mut self) -> Result<(), CaptureError> {
        self.device.bind();
        let (ended, logits) = (self.device.stop_capture(), self.captured_logits.take());
        let owner = self.padded_for.ok_or(CaptureError::NotBegun)?;
        let (rows, kind) = (self.batch.rows(), Kind::of(self.batch.shares_prefix()));
        // Choosing between graph and kernel begins steps of its own.
        let captured = ended.map(|graph| self.whole_step(graph));
        let captures = self.captures.of_mut(owner).ok_or(CaptureError::NotBegun)?;
        match captured {
            Ok(captured) => captures.keep(rows, kind, captured, logits),
            Err(reason) => {
                captures.refuse(kind);
                return Err(reason);
            }
        }
        Ok(())
    }

    /// Runs a captured step on other rows, if there is one for as many.
    pub(crate) fn replay_captured(
        &mut self,
        owner: CaptureOwner,
        batch: ops::Batch<'_>,
        rows: &[SampleRow],
    ) -> Option<Ticket> {
        let padded = self.captures.padded(owner, batch.tokens.len());
        let prefix = self.prefix(batch, Some(owner));
        let kind = Kind::of(prefix.is_some());
        self.captures.of(owner)?.of(padded, kind)?;
        let tokens = batch.sequences.iter().map(|sequence| sequence.start + sequence.num_rows).max().unwrap_or(0);
        self.padded_for = Some(owner);
        self.send(batch, Some(padded), prefix.as_ref());
        self.slots.send(&mut self.device, rows, padded);
        // Not before the batch is there: making room for it frees memory.
        let (captured, logits) = self.captures.of(owner)?.of(padded, kind)?;
        let Some(step) = captured.as_whole(tokens) else {
            self.batch.place(&mut self.device, self.slots.last_tokens());
            self.device.launch_graph(captured.graph());
            return Some(self.slots.end(&mut self.device, logits, rows, padded));
        };
        let best = self.slots.best(rows);
        step.launch(&mut self.device, self.batch.as_sent(), best);
        Some(self.slots.end(&mut self.device, logits.filter(|_| best.is_none()), rows, padded))
    }

    /// Runs a captured step up to its logits, if there is one for as many rows; [`Self::sample_tokens`] follows.
    pub(crate) fn replay_to_logits(&mut self, owner: CaptureOwner, batch: ops::Batch<'_>) -> bool {
        let padded = self.captures.padded(owner, batch.tokens.len());
        let prefix = self.prefix(batch, Some(owner));
        let kind = Kind::of(prefix.is_some());
        if self.captures.of(owner).is_none_or(|captures| captures.of(padded, kind).is_none()) {
            return false;
        }
        let tokens = batch.sequences.iter().map(|sequence| sequence.start + sequence.num_rows).max().unwrap_or(0);
        self.padded_for = Some(owner);
        self.send(batch, Some(padded), prefix.as_ref());
        // Not before the batch is there: making room for it frees memory.
        let Some((captured, _)) = self.captures.of(owner).and_then(|captures| captures.of(padded, kind)) else {
            return false;
        };
        match captured.as_whole(tokens) {
            Some(step) => step.launch(&mut self.device, self.batch.as_sent(), None),
            None => {
                self.batch.place(&mut self.device, self.slots.last_tokens());
                self.device.launch_graph(captured.graph());
            }
        }
        true
    }
}
