//! The forward pass of a step: from tokens, or rows of the stage before, to what the network gives.
//!
//! A layer's output is not added to the residual stream `x` at once: it waits in `delta`, so that the add and the next
//! norm are one operation, and so that with several ranks it can be summed over them first.

use std::ops::Range;

use kernels::ops::{Act, Backend, Entries, Epilogue, HeadColumns, Norm, RowMeans, RowSelection};
use model_spec::{HeadActivation, Residual};

use super::modules::{ClassesHead, Embedding, Head, Layer, LogitsHead, Modules, Output, ProjectedLinear, WideLogits};
use crate::activations::{Activations, OutputActivations};
use crate::error::ForwardError;
use crate::ranks::Ranks;
use crate::ranks::Run;

/// Called with the residual stream after the embedding (0) and after each layer (1, 2, …), `[rows, hidden]`; the last
/// is normalised.
pub type Observer<'a> = &'a mut dyn FnMut(usize, &[f32]);

/// A step under way.
pub(super) struct ForwardPass<'p, 'o> {
    pub backend: &'p mut dyn Backend,
    pub modules: &'p Modules,
    pub activations: &'p Activations,
    pub ranks: Ranks<'p>,
    /// Where the residual stream is.
    pub x: Act,
    /// `delta` waits to be added to it.
    pub pending: bool,
    pub num_rows: usize,
    pub output_rows: &'p [u32],
    pub means: &'p [Range<usize>],
    /// Empty: all are of type 0.
    pub token_types: &'p [u32],
    pub observer: Option<Observer<'o>>,
}

impl ForwardPass<'_, '_> {
    /// Runs a step that has begun up to its outputs.
    pub(super) fn run(mut self, received: Option<&[f32]>) -> Result<(), ForwardError> {
        let modules = self.modules;
        match (&modules.input, received) {
            (Some(embedding), _) => self.embed(embedding)?,
            (None, Some(rows)) => self.backend.host_mut(self.x).copy_from_slice(rows),
            (None, None) => {}
        }
        self.observe(0);
        for (index, layer) in modules.layers.iter().enumerate() {
            self.layer(index, layer)?;
        }
        if self.observer.is_some() {
            self.enter(None, Residual::Sequential);
            self.finish_observed();
        }
        match modules.output.as_ref().zip(self.activations.output.as_ref()) {
            // What the next stage is given.
            None => {
                self.enter(None, Residual::Sequential);
            }
            Some(_) if self.output_rows.is_empty() && self.means.is_empty() => {}
            Some((output, activations)) => self.output(output, activations),
        }
        Ok(())
    }

    fn embed(&mut self, embedding: &Embedding) -> Result<(), ForwardError> {
        let rows = self.activations.embedded.unwrap_or(self.x);
        let Entries { first, scale } = embedding.entries;
        self.backend.embed(embedding.table, first, scale, rows);
        if let Some(site) = embedding.saved {
            self.backend.saved_embed(site, embedding.entries, rows);
        }
        if let Some(site) = embedding.lora {
            self.backend.lora_embed(site, embedding.entries, rows);
        }
        self.ranks.sum(self.backend, rows)?;
        if let Some(linear) = embedding.project {
            linear.run(rows, Epilogue::Store, self.x, self.backend);
        }
        if let Some(table) = embedding.token_types {
            let types = if self.token_types.is_empty() { &vec![0; self.num_rows] } else { self.token_types };
            self.backend.add_entries(table, types, self.x);
        }
        if let Some((table, offset)) = embedding.positions {
            self.backend.add_positions(table, offset, self.x);
        }
        if let Some(norm) = embedding.norm {
            self.backend.norm(self.x, norm, self.x);
        }
        Ok(())
    }

    /// Runs a layer up to its `delta`.
    fn layer(&mut self, index: usize, layer: &Layer) -> Result<(), ForwardError> {
        let residual = layer.residual;
        let narrow = self.narrows(index, residual);
        let input = self.enter(layer.before_attention, residual);
        let mut mlp_input = if narrow { input } else { self.second_input(layer).unwrap_or(input) };
        if index > 0 {
            self.observe(index);
        }
        let mut run = Run { backend: &mut *self.backend, ranks: self.ranks.reborrow() };
        layer.mixer.project(input, &mut run)?;
        if narrow && self.output_rows.is_empty() {
            return Ok(());
        }
        let mixed = self.mix(layer, narrow);
        if narrow && residual == Residual::Parallel {
            // The other branch's input, before this one's output is added to the rows.
            mlp_input = self.enter(layer.before_mlp.or(layer.before_attention), residual);
        }
        let (epilogue, out) = self.branch_output(layer);
        layer.output.run(mixed, epilogue, out, self.backend);
        match residual {
            Residual::Sequential | Residual::Normed => {
                self.leave(layer.after_attention, layer.residual_scale)?;
                if layer.feed_forward.is_none() {
                    return Ok(());
                }
                let input = self.enter(layer.before_mlp, residual);
                self.feed_forward(layer, input, Epilogue::Store, out);
            }
            Residual::Parallel => {
                self.feed_forward(layer, mlp_input, Epilogue::Accumulate, out);
                if epilogue == Epilogue::Accumulate {
                    return Ok(());
                }
            }
        }
        self.leave(layer.after_mlp, layer.residual_scale)
    }

    /// Whether, past what a layer writes to its cache, only the rows that the head is asked for matter.
    fn narrows(&self, index: usize, residual: Residual) -> bool {
        index + 1 == self.modules.layers.len()
            && self.modules.output.is_some()
            && residual != Residual::Normed
            && self.observer.is_none()
            && self.means.is_empty()
            && self.output_rows.len() < self.num_rows
    }

    /// `x += delta` if one is pending; then the input of the next part: the norm of `x` (which may take the place of
    /// `x`), or `x` itself.
    fn enter(&mut self, norm: Option<Norm>, residual: Residual) -> Act {
        let (x, normed, delta) = (self.x, self.activations.normed, self.activations.delta);
        let pending = std::mem::take(&mut self.pending);
        match norm.filter(|_| residual != Residual::Normed) {
            Some(norm) if pending => self.backend.add_norm(x, delta, norm, normed),
            Some(norm) => self.backend.norm(x, norm, normed),
            None => {
                match norm {
                    Some(norm) if pending => self.backend.add_norm_in_place(x, delta, norm),
                    Some(norm) => self.backend.norm(x, norm, x),
                    None if pending => self.backend.add(x, delta),
                    None => {}
                }
                return x;
            }
        }
        normed
    }

    /// The MLP's input where it is computed beside attention and has its own norm: of the same rows.
    fn second_input(&mut self, layer: &Layer) -> Option<Act> {
        let (norm, out) = layer.before_mlp.filter(|_| layer.has_two_norms()).zip(self.activations.other_normed)?;
        self.backend.norm(self.x, norm, out);
        Some(out)
    }

    /// Where attention's branch goes, and how: to `delta`, but straight to `x` where branches are computed side by
    /// side, none reads `x` any more, and nothing else is to be done to what they give.
    fn branch_output(&self, layer: &Layer) -> (Epilogue, Act) {
        let reads_norms = layer.residual == Residual::Parallel && layer.before_attention.is_some();
        if reads_norms && layer.residual_scale == 1.0 && self.ranks.group.world_size() == 1 {
            (Epilogue::Accumulate, self.x)
        } else {
            (Epilogue::Store, self.activations.delta)
        }
    }

    /// Makes `delta` what is to be added to `x`.
    fn leave(&mut self, norm: Option<Norm>, scale: f32) -> Result<(), ForwardError> {
        let delta = self.activations.delta;
        self.ranks.sum(self.backend, delta)?;
        if let Some(norm) = norm {
            self.backend.norm(delta, norm, delta);
        }
        if scale != 1.0 {
            self.backend.scale(delta, scale);
        }
        self.pending = true;
        Ok(())
    }

    /// The mixer's rows. `narrow`: from here on, they and `x` are the rows that the head is asked for.
    fn mix(&mut self, layer: &Layer, narrow: bool) -> Act {
        let only = narrow.then_some(RowSelection { rows: self.output_rows });
        let all = layer.mixer.attend(only, self.backend);
        let Some((activations, selection)) = self.activations.output.as_ref().zip(only) else { return all };
        let OutputActivations { picked, picked_mixed, .. } = *activations;
        self.backend.gather(all, selection, picked_mixed);
        self.backend.gather(self.x, selection, picked);
        self.backend.select_adapters(selection);
        self.x = picked;
        picked_mixed
    }

    /// The feed-forward part of `input` into `out`.
    fn feed_forward(&mut self, layer: &Layer, input: Act, epilogue: Epilogue, out: Act) {
        if let Some(feed_forward) = &layer.feed_forward {
            feed_forward.run(input, epilogue, out, self.backend);
        }
    }

    fn output(&mut self, output: &Output, activations: &OutputActivations) {
        match &output.head {
            Head::Logits(head) => {
                let input = self.head_input(output.norm, activations);
                self.logits(head, input, activations);
            }
            Head::Classes(head) => {
                let input = self.head_input(output.norm, activations);
                self.classes(head, input, activations);
            }
            Head::Projected(layers) => {
                let input = self.head_input(output.norm, activations);
                self.project(layers, input, activations);
            }
            Head::HiddenWith(layers) => {
                let rows = activations.projected.unwrap_or(activations.picked);
                self.hidden(output.norm, rows, activations);
                self.side_by_side(layers, rows, activations);
            }
            Head::Hidden => self.hidden(output.norm, activations.out, activations),
        }
    }

    /// The normed rows that the head is asked for, or their means, in `out`.
    fn hidden(&mut self, norm: Option<Norm>, out: Act, activations: &OutputActivations) {
        if !self.means.is_empty() {
            return self.pick_means(norm, out);
        }
        self.pick(activations);
        if let Some(norm) = norm {
            self.backend.norm(activations.picked, norm, out);
        }
    }

    fn classes(&mut self, head: &ClassesHead, mut input: Act, activations: &OutputActivations) {
        if let Some((dense, out)) = head.dense.as_ref().zip(activations.projected) {
            dense.linear.run(input, Epilogue::Store, out, self.backend);
            self.activate(dense.activation, out);
            if let Some(norm) = dense.norm {
                self.backend.norm(out, norm, out);
            }
            input = out;
        }
        head.linear.run(input, Epilogue::Store, activations.out, self.backend);
    }

    fn project(&mut self, layers: &[ProjectedLinear], mut input: Act, activations: &OutputActivations) {
        for (layer, out) in layers.iter().zip(&activations.projections) {
            layer.linear.run(input, Epilogue::Store, *out, self.backend);
            if let Some(activation) = layer.activation {
                self.activate(activation, *out);
            }
            input = *out;
        }
    }

    /// The rows, and behind them what each layer makes of them.
    fn side_by_side(&mut self, layers: &[ProjectedLinear], rows: Act, activations: &OutputActivations) {
        let at = |first| HeadColumns { first, stride: 0 };
        let (out, mut end) = (activations.out, self.modules.hidden);
        self.backend.copy_columns(rows, at(0), out, at(0), 1, end);
        for (layer, part) in layers.iter().zip(&activations.projections) {
            layer.linear.run(rows, Epilogue::Store, *part, self.backend);
            if let Some(activation) = layer.activation {
                self.activate(activation, *part);
            }
            self.backend.copy_columns(*part, at(0), out, at(end), 1, layer.width);
            end += layer.width;
        }
    }

    fn activate(&mut self, activation: HeadActivation, act: Act) {
        match activation {
            HeadActivation::Tanh => self.backend.soft_cap(act, 1.0),
            HeadActivation::Of(activation) => self.backend.activate(act, activation),
        }
    }

    fn logits(&mut self, head: &LogitsHead, mut input: Act, activations: &OutputActivations) {
        let logits = activations.out;
        if let Some((linear, projected)) = head.project.zip(activations.projected) {
            linear.run(input, Epilogue::Store, projected, self.backend);
            input = projected;
        }
        match activations.own_logits {
            Some(own) => head.linear.run_wide(input, own, logits, self.backend),
            None => head.linear.run(input, Epilogue::Store, logits, self.backend),
        }
        if head.scale != 1.0 {
            self.backend.scale(logits, head.scale);
        }
        if let Some(cap) = head.soft_cap {
            self.backend.soft_cap(logits, cap);
        }
        if let Some(WideLogits { site, own }) = head.wide {
            self.backend.mask_saved(site, own, logits);
        }
    }

    /// The means of normed rows that the head is asked for.
    fn pick_means(&mut self, norm: Option<Norm>, out: Act) {
        // In place: means are taken of rows in f32.
        let x = self.enter(norm, Residual::Normed);
        self.backend.mean_rows(x, RowMeans { ranges: self.means, width: self.modules.hidden }, out);
        // The rows of a mean are of one sequence.
        let firsts: Vec<u32> = self.means.iter().map(|rows| rows.start as u32).collect();
        self.backend.select_adapters(RowSelection { rows: &firsts });
    }

    /// The normed rows that the head is asked for.
    fn head_input(&mut self, norm: Option<Norm>, activations: &OutputActivations) -> Act {
        if !self.means.is_empty() {
            self.pick_means(norm, activations.picked);
            return activations.picked;
        }
        if self.x != activations.picked && self.output_rows.len() == self.num_rows {
            return self.enter(norm, Residual::Sequential);
        }
        self.pick(activations);
        let Some(norm) = norm else { return activations.picked };
        self.backend.norm(activations.picked, norm, activations.picked_normed);
        activations.picked_normed
    }

    /// The rows that the head is asked for, alone.
    fn pick(&mut self, activations: &OutputActivations) {
        self.enter(None, Residual::Sequential);
        if self.x != activations.picked {
            let selection = RowSelection { rows: self.output_rows };
            self.backend.gather(self.x, selection, activations.picked);
            self.backend.select_adapters(selection);
        }
    }

    fn observe(&mut self, index: usize) {
        if let Some(observer) = &mut self.observer {
            observer(index, self.backend.read(self.x));
        }
    }

    /// The last observation is of the normalised rows, as the reference library reports them.
    fn finish_observed(&mut self) {
        let act = match self.modules.output.as_ref().and_then(|output| output.norm) {
            Some(norm) => {
                self.backend.norm(self.x, norm, self.activations.normed);
                self.activations.normed
            }
            None => self.x,
        };
        if let Some(observer) = &mut self.observer {
            observer(self.modules.layers.len(), self.backend.read(act));
        }
    }
}
