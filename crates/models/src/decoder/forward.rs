//! The forward pass of a step: from tokens to logits.
//!
//! A layer's output is not added to the residual stream `x` at once: it waits in `delta`, so that the add and the next norm are one
//! operation, and so that with several ranks it can be summed over them first.

use collectives::Collective;
use kernels::ops::{Act, Epilogue, Norm, RowSelection};
use model_spec::Residual;

use super::{Decoder, Observer};
use crate::error::ForwardError;
use crate::mixer::Run;
use crate::ranks::Ranks;

/// A step under way.
struct Step<'a, 'o> {
    /// Where the residual stream is.
    x: Act,
    /// `delta` waits to be added to it.
    pending: bool,
    num_rows: usize,
    logit_rows: &'a [u32],
    ranks: Ranks<'a>,
    observer: Option<Observer<'o>>,
}

impl Decoder {
    /// Runs a step that has begun up to its logits.
    pub(super) fn forward_pass(
        &mut self,
        num_rows: usize,
        logit_rows: &[u32],
        group: &mut dyn Collective,
        observer: Option<Observer<'_>>,
    ) -> Result<(), ForwardError> {
        let ranks = Ranks { group, joined: self.joined };
        let mut step = Step { x: self.acts.x, pending: false, num_rows, logit_rows, ranks, observer };
        self.embed(&mut step)?;
        for index in 0..self.network.layers.len() {
            self.layer(index, &mut step)?;
        }
        if step.observer.is_some() {
            self.enter(&mut step, None, Residual::Sequential);
            self.finish_observed(&mut step);
        }
        self.num_logits = logit_rows.len();
        if logit_rows.is_empty() { Ok(()) } else { self.head(step) }
    }

    fn embed(&mut self, step: &mut Step<'_, '_>) -> Result<(), ForwardError> {
        let Self { network, acts, .. } = &*self;
        let (project_in, positions, rows) = (network.project_in, network.positions, acts.embedded.unwrap_or(step.x));
        self.backend.embed(network.embedding, network.first_entry, self.spec.embedding.scale, rows);
        step.ranks.sum(&mut *self.backend, rows)?;
        if let Some(linear) = project_in {
            linear.run(rows, Epilogue::Store, step.x, &mut *self.backend);
        }
        if let Some((table, offset)) = positions {
            self.backend.add_positions(table, offset, step.x);
        }
        if let Some(norm) = self.network.embedding_norm {
            self.backend.norm(step.x, norm, step.x);
        }
        self.observe(step, 0);
        Ok(())
    }

    /// Runs a layer up to its `delta`.
    fn layer(&mut self, index: usize, step: &mut Step<'_, '_>) -> Result<(), ForwardError> {
        let layer = &self.network.layers[index];
        let (residual, scale) = (layer.residual, layer.residual_scale);
        let (before_attention, before_mlp) = (layer.before_attention, layer.before_mlp);
        let (after_attention, after_mlp) = (layer.after_attention, layer.after_mlp);
        let has_feed_forward = layer.feed_forward.is_some();
        let last = index + 1 == self.network.layers.len();
        // Past what the last layer writes to its cache, only rows with logits matter.
        let narrow = last
            && residual == Residual::Sequential
            && step.observer.is_none()
            && step.logit_rows.len() < step.num_rows;
        let input = self.enter(step, before_attention, residual);
        if index > 0 {
            self.observe(step, index);
        }
        let mut run = Run { backend: &mut *self.backend, ranks: step.ranks.reborrow() };
        self.network.layers[index].mixer.project(input, &mut run)?;
        if narrow && step.logit_rows.is_empty() {
            return Ok(());
        }
        self.mix(index, step, narrow);
        match residual {
            Residual::Sequential | Residual::Normed => {
                self.leave(step, after_attention, scale)?;
                if !has_feed_forward {
                    return Ok(());
                }
                let input = self.enter(step, before_mlp, residual);
                self.feed_forward(index, input, Epilogue::Store);
            }
            Residual::Parallel => {
                let input = if before_mlp.is_some() { self.enter(step, before_mlp, residual) } else { input };
                self.feed_forward(index, input, Epilogue::Accumulate);
            }
        }
        self.leave(step, after_mlp, scale)
    }

    /// `x += delta` if one is pending; then the input of the next part: the norm of `x` (which may take the place of `x`), or `x` itself.
    fn enter(&mut self, step: &mut Step<'_, '_>, norm: Option<Norm>, residual: Residual) -> Act {
        let (x, normed, delta) = (step.x, self.acts.normed, self.acts.delta);
        let pending = std::mem::take(&mut step.pending);
        match norm.filter(|_| residual != Residual::Normed) {
            Some(norm) if pending => self.backend.add_norm(x, delta, norm, normed),
            Some(norm) => self.backend.norm(x, norm, normed),
            None => {
                if pending {
                    self.backend.add(x, delta);
                }
                if let Some(norm) = norm {
                    self.backend.norm(x, norm, x);
                }
                return x;
            }
        }
        normed
    }

    /// Makes `delta` what is to be added to `x`.
    fn leave(&mut self, step: &mut Step<'_, '_>, norm: Option<Norm>, scale: f32) -> Result<(), ForwardError> {
        step.ranks.sum(&mut *self.backend, self.acts.delta)?;
        if let Some(norm) = norm {
            self.backend.norm(self.acts.delta, norm, self.acts.delta);
        }
        if scale != 1.0 {
            self.backend.scale(self.acts.delta, scale);
        }
        step.pending = true;
        Ok(())
    }

    /// The mixer's rows and their output projection. `narrow`: from here on, `x` is the rows with logits.
    fn mix(&mut self, index: usize, step: &mut Step<'_, '_>, narrow: bool) {
        let Self { backend, network, acts, .. } = self;
        let layer = &network.layers[index];
        let only = narrow.then_some(RowSelection { rows: step.logit_rows });
        let all = layer.mixer.attend(only, &mut **backend);
        let mixed = match acts.picked_mixed.zip(only) {
            Some((picked, selection)) => {
                backend.gather(all, selection, picked);
                backend.gather(step.x, selection, acts.picked);
                step.x = acts.picked;
                picked
            }
            None => all,
        };
        layer.output.run(mixed, Epilogue::Store, acts.delta, &mut **backend);
    }

    /// The feed-forward part of `input` into `delta`.
    fn feed_forward(&mut self, index: usize, input: Act, epilogue: Epilogue) {
        if let Some(feed_forward) = &self.network.layers[index].feed_forward {
            feed_forward.run(input, epilogue, self.acts.delta, &mut *self.backend);
        }
    }

    fn head(&mut self, mut step: Step<'_, '_>) -> Result<(), ForwardError> {
        let norm = self.network.final_norm;
        let mut input = if step.x != self.acts.picked && step.logit_rows.len() == step.num_rows {
            self.enter(&mut step, norm, Residual::Sequential)
        } else {
            self.pick(&mut step, norm)
        };
        let Self { backend, network, acts, .. } = self;
        if let Some((linear, projected)) = network.project_out.zip(acts.projected) {
            linear.run(input, Epilogue::Store, projected, &mut **backend);
            input = projected;
        }
        network.head.run(input, Epilogue::Store, acts.logits, &mut **backend);
        if self.spec.head.scale != 1.0 {
            backend.scale(acts.logits, self.spec.head.scale);
        }
        if let Some(cap) = self.spec.head.soft_cap {
            backend.soft_cap(acts.logits, cap);
        }
        match acts.all_logits.filter(|_| self.joined) {
            Some(all) => backend.all_gather(acts.logits, all),
            None if self.shard.size == 1 => {}
            None => {
                self.host_logits.gather(backend.read(acts.logits), step.logit_rows.len(), step.ranks.group)?;
            }
        }
        Ok(())
    }

    /// The rows with logits alone, and their norm.
    fn pick(&mut self, step: &mut Step<'_, '_>, norm: Option<Norm>) -> Act {
        self.enter(step, None, Residual::Sequential);
        let Self { backend, acts, .. } = self;
        if step.x != acts.picked {
            backend.gather(step.x, RowSelection { rows: step.logit_rows }, acts.picked);
        }
        let Some(norm) = norm else { return acts.picked };
        backend.norm(acts.picked, norm, acts.picked_normed);
        acts.picked_normed
    }

    fn observe(&mut self, step: &mut Step<'_, '_>, index: usize) {
        if let Some(observer) = &mut step.observer {
            observer(index, self.backend.read(step.x));
        }
    }

    /// The last observation is of the normalised rows, as the reference library reports them.
    fn finish_observed(&mut self, step: &mut Step<'_, '_>) {
        let act = match self.network.final_norm {
            Some(norm) => {
                self.backend.norm(step.x, norm, self.acts.normed);
                self.acts.normed
            }
            None => step.x,
        };
        if let Some(observer) = &mut step.observer {
            observer(self.network.layers.len(), self.backend.read(act));
        }
    }
}
