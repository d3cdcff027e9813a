//! All live requests: batches of tokens in, events for gateways out. No links, no clock.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasherDefault, Hasher},
    ops::Range,
    sync::Arc,
};

use proto::{
    Admitted, Event, Failed, Failure, FinishReason, Finished, Pooled, RequestKey, Started, TokenBatch, TokenLogprobs,
    event::Kind,
};
use service_kit::trace;
use tracing::{Span, debug, info_span};

use crate::{
    error,
    sequence::{RequestInfo, Sequence, Text},
    tokenizers::Tokenizers,
};

/// What a batch gave.
#[derive(Default)]
pub(crate) struct Output {
    /// Events by gateway.
    pub(crate) events: Vec<(u64, Vec<Event>)>,
    /// Sequences that a stop string ended.
    pub(crate) stopped: Vec<u64>,
}

impl Output {
    pub(crate) fn push(&mut self, gateway: u64, number: u64, kind: Kind) {
        let event = Event { number, kind: Some(kind) };
        match self.events.iter_mut().find(|(known, _)| *known == gateway) {
            Some((_, events)) => events.push(event),
            None => self.events.push((gateway, vec![event])),
        }
    }

    /// Tells gateways that all they have sent is lost.
    pub(crate) fn tell_all_lost(&mut self, gateways: impl Iterator<Item = u64>, failure: &Failure) {
        gateways.for_each(|gateway| self.push(gateway, 0, Kind::Failure(failure.clone())));
    }
}

/// What was done so far, for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) requests: u64,
    pub(crate) tokens: u64,
    pub(crate) stop_strings: u64,
    pub(crate) failures: u64,
}

/// A request with sequences that have not ended.
struct Live {
    first_sequence: u64,
    n: u32,
    unfinished: u32,
}

impl Live {
    fn handles(&self) -> Range<u64> {
        self.first_sequence..self.first_sequence + u64::from(self.n)
    }
}

/// All live requests of an engine.
pub(crate) struct Streams {
    tokenizers: Tokenizers,
    /// Data-parallel rank of the engine whose they are.
    engine: u32,
    gateways: HashSet<u64>,
    requests: HashMap<RequestKey, Live>,
    sequences: HashMap<u64, Sequence, BuildHasherDefault<HandleHasher>>,
    /// Sequences that grew since the last flush, in order.
    touched: Vec<u64>,
    pub(crate) totals: Totals,
}

impl Streams {
    pub(crate) fn new(tokenizers: Tokenizers, engine: u32) -> Self {
        Self {
            tokenizers,
            engine,
            gateways: HashSet::new(),
            requests: HashMap::new(),
            sequences: HashMap::default(),
            touched: Vec::new(),
            totals: Totals::default(),
        }
    }

    /// Live requests.
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Live sequences.
    pub(crate) fn sequences(&self) -> usize {
        self.sequences.len()
    }

    /// Events for `gateway` can be sent from now on.
    pub(crate) fn connected(&mut self, gateway: u64) {
        // What it had before its link broke, it has given up.
        self.lost(gateway);
        self.gateways.insert(gateway);
    }

    /// Nobody reads the events of `gateway` any more.
    pub(crate) fn lost(&mut self, gateway: u64) {
        if self.gateways.remove(&gateway) {
            self.requests.retain(|key, _| key.gateway != gateway);
            self.sequences.retain(|_, sequence| sequence.request.key.gateway != gateway);
        }
    }

    /// Ends every request.
    pub(crate) fn fail_all(&mut self, failure: &Failure, out: &mut Output) {
        for key in self.requests.keys() {
            out.push(key.gateway, key.number, Kind::Failure(failure.clone()));
        }
        self.totals.failures += self.requests.len() as u64;
        self.requests.clear();
        self.sequences.clear();
    }

    /// Applies one step of the scheduler. What sequences grew by is sent with [`Self::flush`]: where several steps have
    /// come by then, it is one event for all of them.
    pub(crate) fn apply(&mut self, batch: TokenBatch, out: &mut Output) {
        for tokenizer in batch.tokenizers {
            self.tokenizers.read_ahead(tokenizer);
        }
        for started in batch.started {
            self.start(started, out);
        }
        let hidden = hidden_tokens(&batch.sequence, &batch.finished);
        let mut logprobs = self.sort_logprobs(batch.logprobs, batch.token.len());
        for (index, (&handle, &token)) in batch.sequence.iter().zip(&batch.token).enumerate() {
            let text = if hidden.contains(&index) { Text::Hidden } else { Text::Shown };
            let logprobs = logprobs.get_mut(index).and_then(Option::take);
            self.token(handle, token, text, logprobs, out);
        }
        for Pooled { sequence, values, .. } in batch.pooled {
            if let Some(sequence) = self.sequences.get_mut(&sequence) {
                sequence.push_pooled(values);
            }
        }
        for finished in batch.finished {
            self.finish(&finished, out);
        }
        if !batch.failed.is_empty() {
            // Their text comes before the failure.
            self.flush(out);
        }
        for failed in batch.failed {
            self.fail(failed, out);
        }
    }

    fn start(&mut self, started: Started, out: &mut Output) {
        let span = span(&started);
        let (prompt_tokens, cached_tokens) = (started.prompt_tokens, started.cached_tokens);
        let (first_sequence, n) = (started.first_sequence, started.n.max(1));
        let gateway = started.key.map_or(0, |key| key.gateway);
        if !self.gateways.contains(&gateway) {
            debug!(request_id = started.request_id, "request started for a gateway that is not here");
            // Nobody will read the answer, so the engine need not write it.
            out.stopped.extend(first_sequence..first_sequence + u64::from(n));
            return;
        }
        let keeps_prompt = started.output.as_ref().is_some_and(|output| output.return_prompt_token_ids);
        let prompt_ids = if keeps_prompt { started.prompt_ids.clone() } else { Vec::new() };
        let handles = first_sequence..first_sequence + u64::from(n);
        let tokenizer = match (self.tokenizers.of(started.adapter_tokenizer.as_ref()), started.key) {
            (Ok(tokenizer), _) => tokenizer,
            (Err(error), Some(key)) => {
                out.stopped.extend(handles);
                out.push(gateway, key.number, Kind::Failure(error::undecodable(&error)));
                return;
            }
            (Err(_), None) => return,
        };
        let Some(request) = RequestInfo::new(started, tokenizer, span).map(Arc::new) else { return };
        debug!(request_id = request.request_id, prompt_tokens, cached_tokens, "request started");
        self.totals.requests += 1;
        let prompt_text = if request.output.echo { request.prompt_text() } else { String::new() };
        let prompt_tail = request.output.prompt_tail.clone().unwrap_or_default();
        let admitted =
            Admitted { prompt_tokens, cached_tokens, prompt_ids, prompt_text, prompt_tail, engine: self.engine };
        out.push(gateway, request.key.number, Kind::Admitted(admitted.into()));
        let choices: Result<Vec<Sequence>, _> = (0..n).map(|choice| Sequence::new(request.clone(), choice)).collect();
        match choices {
            Ok(choices) => {
                self.sequences.extend((first_sequence..).zip(choices));
                self.requests.insert(request.key, Live { first_sequence, n, unfinished: n });
            }
            Err(error) => {
                out.stopped.extend(handles);
                out.push(gateway, request.key.number, Kind::Failure(error::undecodable(&error)));
            }
        }
    }

    /// Puts log-probabilities where their tokens are. Those of prompts go to their sequences.
    fn sort_logprobs(&mut self, logprobs: Vec<TokenLogprobs>, tokens: usize) -> Vec<Option<TokenLogprobs>> {
        if logprobs.is_empty() {
            return Vec::new();
        }
        let mut sorted = vec![None; tokens];
        for one in logprobs {
            match one.prompt_of_sequence {
                Some(handle) => {
                    if let Some(sequence) = self.sequences.get_mut(&handle) {
                        sequence.push_prompt(one);
                    }
                }
                None => {
                    if let Some(place) = sorted.get_mut(one.index as usize) {
                        *place = Some(one);
                    }
                }
            }
        }
        sorted
    }

    #[inline]
    fn token(&mut self, handle: u64, token: u32, text: Text, logprobs: Option<TokenLogprobs>, out: &mut Output) {
        // Ended here already, or of a gateway that is gone.
        let Some(sequence) = self.sequences.get_mut(&handle) else { return };
        self.totals.tokens += 1;
        if sequence.push(token, text, logprobs) {
            self.totals.stop_strings += 1;
            out.stopped.push(handle);
            self.end(handle, out);
        } else if !std::mem::replace(&mut sequence.touched, true) {
            self.touched.push(handle);
        }
    }

    fn finish(&mut self, finished: &Finished, out: &mut Output) {
        if let Some(sequence) = self.sequences.get_mut(&finished.sequence) {
            sequence.finish(finished.reason(), finished.stop_token);
            self.end(finished.sequence, out);
        }
    }

    /// Sends the last delta of a sequence, and forgets it.
    fn end(&mut self, handle: u64, out: &mut Output) {
        let Some(mut sequence) = self.sequences.remove(&handle) else { return };
        let key = sequence.request.key;
        let delta = sequence.take();
        let (request_id, choice) = (&sequence.request.request_id, delta.choice);
        debug!(request_id, choice, finish = ?delta.finish(), "choice ended");
        out.push(key.gateway, key.number, Kind::Delta(delta));
        if let Some(live) = self.requests.get_mut(&key) {
            live.unfinished = live.unfinished.saturating_sub(1);
            if live.unfinished == 0 {
                self.requests.remove(&key);
            }
        }
    }

    /// Sends what grew.
    pub(crate) fn flush(&mut self, out: &mut Output) {
        for handle in self.touched.drain(..) {
            let Some(sequence) = self.sequences.get_mut(&handle) else { continue };
            sequence.touched = false;
            if sequence.is_due() {
                let key = sequence.request.key;
                out.push(key.gateway, key.number, Kind::Delta(sequence.take()));
            }
        }
    }

    /// Ends a request whose gateway has been told already: the engine need not go on with it.
    pub(crate) fn give_up(&mut self, key: &RequestKey, out: &mut Output) {
        if let Some(live) = self.forget(key) {
            self.totals.failures += 1;
            out.stopped.extend(live.handles());
        }
    }

    fn forget(&mut self, key: &RequestKey) -> Option<Live> {
        let live = self.requests.remove(key)?;
        live.handles().for_each(|handle| drop(self.sequences.remove(&handle)));
        Some(live)
    }

    fn fail(&mut self, failed: Failed, out: &mut Output) {
        let Some(key) = failed.key else { return };
        let failure = failed.failure.unwrap_or_else(error::engine_lost);
        debug!(request_id = failed.request_id, reason = failure.message, "request failed");
        self.totals.failures += 1;
        self.forget(&key);
        if self.gateways.contains(&key.gateway) {
            out.push(key.gateway, key.number, Kind::Failure(failure));
        }
    }
}

/// Indices of tokens that ended their sequence (end of text, a stop token) and so are no part of the answer. A stop
/// token is the last of its sequence in the batch that finishes it.
fn hidden_tokens(sequences: &[u64], finished: &[Finished]) -> HashSet<usize> {
    let stops = finished.iter().filter(|finished| finished.reason() == FinishReason::Stop);
    let mut ending: HashSet<u64> = stops.map(|finished| finished.sequence).collect();
    if ending.is_empty() {
        return HashSet::new();
    }
    let last = sequences.iter().enumerate().rev().filter(|(_, handle)| ending.remove(handle));
    last.map(|(index, _)| index).collect()
}

/// A span for a traced request; others cost nothing.
fn span(started: &Started) -> Span {
    if started.traceparent.is_empty() {
        return Span::none();
    }
    let span = info_span!("detokenize", request_id = started.request_id, n = started.n);
    trace::set_parent(&span, &started.traceparent);
    span
}

/// Sequence handles count up and come from our own scheduler: one multiplication spreads them well enough.
#[derive(Default)]
struct HandleHasher(u64);

impl Hasher for HandleHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, handle: u64) {
        self.0 = (self.0 ^ handle).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

#[cfg(test)]
mod tests;
