//! Streams of the model that ships, cut in every way.

use std::{path::Path, sync::LazyLock};

use proptest::prelude::*;
use proto::{Delta, Output as Wanted};
use tokenizer::Tokenizer;

use super::*;

static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let places = ["crates/default-model/files/model", "../shared/default-model/model"];
    let dir = places.iter().map(|place| root.join(place)).find(|dir| dir.join("tokenizer.json").is_file());
    Arc::new(Tokenizer::load(&dir.expect("the default model")).expect("a tokenizer"))
});

const GATEWAY: u64 = 5;

fn streaming() -> Wanted {
    Wanted { stream: true, skip_special_tokens: true, spaces_between_special_tokens: true, ..Wanted::default() }
}

fn stopping(stop: &[&str]) -> Wanted {
    Wanted { stop: stop.iter().map(|stop| (*stop).to_owned()).collect(), ..streaming() }
}

fn key(number: u64) -> RequestKey {
    RequestKey { gateway: GATEWAY, number }
}

fn started(number: u64, first_sequence: u64, output: Wanted) -> Started {
    let request_id = format!("test-{number}");
    Started { key: Some(key(number)), request_id, first_sequence, n: 1, output: Some(output), ..Started::default() }
}

fn finished(sequence: u64, reason: FinishReason) -> Finished {
    Finished { sequence, reason: reason.into(), stop_token: None }
}

/// The streams of one connected gateway.
fn streams() -> Streams {
    let mut streams = Streams::new(Tokenizers::new(TOKENIZER.clone()), 3);
    streams.connected(GATEWAY);
    streams
}

fn apply(streams: &mut Streams, batch: TokenBatch) -> (Vec<Event>, Vec<u64>) {
    let mut out = Output::default();
    streams.apply(batch, &mut out);
    streams.flush(&mut out);
    (out.events.into_iter().flat_map(|(_, events)| events).collect(), out.stopped)
}

fn tokens(sequence: u64, ids: &[u32]) -> TokenBatch {
    TokenBatch { sequence: vec![sequence; ids.len()], token: ids.to_vec(), ..TokenBatch::default() }
}

fn deltas(events: Vec<Event>) -> Vec<Delta> {
    let delta = |event: Event| match event.kind {
        Some(Kind::Delta(delta)) => Some(delta),
        _ => None,
    };
    events.into_iter().filter_map(delta).collect()
}

/// Streams `ids` in batches of these sizes; gives all deltas, and what was reported as stopped.
fn run(start: Started, ids: &[u32], sizes: &[usize], reason: FinishReason) -> (Vec<Delta>, Vec<u64>) {
    let mut streams = streams();
    let sequence = start.first_sequence;
    let (mut all, mut stopped) = (Vec::new(), Vec::new());
    let mut take = |(events, ended): (Vec<Event>, Vec<u64>)| {
        all.extend(deltas(events));
        stopped.extend(ended);
    };
    take(apply(&mut streams, TokenBatch { started: vec![start], ..TokenBatch::default() }));
    let (mut rest, mut sizes) = (ids, sizes.iter().cycle());
    while !rest.is_empty() {
        let (now, later) = rest.split_at((*sizes.next().unwrap_or(&1)).clamp(1, rest.len()));
        rest = later;
        let mut batch = tokens(sequence, now);
        if rest.is_empty() {
            batch.finished.push(finished(sequence, reason));
        }
        take(apply(&mut streams, batch));
    }
    assert_eq!((streams.len(), streams.sequences()), (0, 0), "everything ended");
    (all, stopped)
}

fn text(deltas: &[Delta]) -> String {
    deltas.iter().map(|delta| delta.text.as_str()).collect()
}

fn count(deltas: &[Delta]) -> u32 {
    deltas.iter().map(|delta| delta.token_count).sum()
}

fn encode(text: &str) -> Vec<u32> {
    TOKENIZER.encode(text, false).expect("ids")
}

#[test]
fn admitted_deltas_and_finish() {
    let ids = encode("Hello, 🌍!");
    let (deltas, stopped) = run(started(1, 10, streaming()), &ids, &[1], FinishReason::Length);
    assert_eq!(text(&deltas), "Hello, 🌍!");
    assert_eq!((count(&deltas) as usize, deltas.len()), (ids.len(), ids.len()));
    assert_eq!(deltas.last().expect("a delta").finish(), FinishReason::Length);
    assert!(deltas.iter().all(|delta| !delta.text.contains('\u{FFFD}')));
    assert!(stopped.is_empty());
}

#[test]
fn a_stop_string_ends_the_sequence_here() {
    let ids = encode("one two three four");
    let (deltas, stopped) = run(started(1, 10, stopping(&["three"])), &ids, &[1], FinishReason::Length);
    let last = deltas.last().expect("a delta");
    assert_eq!(text(&deltas), "one two ");
    assert_eq!(
        (last.finish(), last.details.as_ref().and_then(|details| details.stop_text.as_deref())),
        (FinishReason::Stop, Some("three"))
    );
    assert_eq!(stopped, [10]);
    let before = encode("one two three").len() as u32;
    assert_eq!(count(&deltas), before, "tokens up to and with the stop string");

    let stays = Wanted { include_stop_str_in_output: true, ..stopping(&["three"]) };
    assert_eq!(text(&run(started(1, 10, stays), &ids, &[64], FinishReason::Length).0), "one two three");
    let unmet = run(started(1, 10, stopping(&["four five"])), &ids, &[1], FinishReason::Length).0;
    assert_eq!(text(&unmet), "one two three four");
}

#[test]
fn stop_strings_wait_for_min_tokens() {
    let ids = encode("a b a b a b");
    let with = |min_tokens| Started { min_tokens, ..started(1, 10, stopping(&["b"])) };
    for (min_tokens, expected) in [(0, "a "), (2, "a b a "), (3, "a b a "), (4, "a b a b a "), (99, "a b a b a b")] {
        let (deltas, _) = run(with(min_tokens), &ids, &[1], FinishReason::Length);
        assert_eq!(text(&deltas), expected, "{min_tokens}");
    }
}

#[test]
fn the_stop_token_leaves_no_text_but_counts() {
    let eos = TOKENIZER.token_to_id("<|im_end|>").expect("an id");
    let ids = [encode("Hi there"), vec![eos]].concat();
    let shown = Wanted { skip_special_tokens: false, ..streaming() };
    for (output, expected) in [
        (streaming(), "Hi there"),
        (shown.clone(), "Hi there"),
        (Wanted { include_stop_str_in_output: true, ..shown }, "Hi there<|im_end|>"),
    ] {
        let (deltas, _) = run(started(1, 10, output), &ids, &[2], FinishReason::Stop);
        assert_eq!((text(&deltas).as_str(), count(&deltas) as usize), (expected, ids.len()));
    }
}

#[test]
fn what_is_not_streamed_comes_at_the_end() {
    let ids = encode("one two three four five");
    let whole = Wanted { stream: false, ..streaming() };
    let (deltas, _) = run(started(1, 10, whole), &ids, &[1], FinishReason::Length);
    assert_eq!((deltas.len(), text(&deltas).as_str()), (2, "one two three four five"));
    assert_eq!(deltas[0].token_count, 1, "the first token's time is known");
    let every = Wanted { stream_interval: 2, ..streaming() };
    let (deltas, _) = run(started(1, 10, every), &ids, &[1], FinishReason::Length);
    assert_eq!(deltas.iter().map(|delta| delta.token_count).collect::<Vec<_>>(), [1, 2, 2]);
}

#[test]
fn choices_are_told_apart() {
    let mut streams = streams();
    let start = Started { n: 2, ..started(1, 10, streaming()) };
    let batch = TokenBatch {
        started: vec![start],
        sequence: vec![11, 10, 11],
        token: [encode("b"), encode("a"), encode("c")].concat(),
        finished: vec![finished(11, FinishReason::Length)],
        ..TokenBatch::default()
    };
    let (events, _) = apply(&mut streams, batch);
    assert!(matches!(events[0].kind, Some(Kind::Admitted(_))));
    let deltas = deltas(events);
    let seen: Vec<_> = deltas.iter().map(|delta| (delta.choice, delta.text.as_str(), delta.token_count)).collect();
    assert_eq!(seen, [(1, "bc", 2), (0, "a", 1)]);
    assert_eq!((streams.len(), streams.sequences()), (1, 1));
    apply(&mut streams, TokenBatch { finished: vec![finished(10, FinishReason::Abort)], ..TokenBatch::default() });
    assert_eq!((streams.len(), streams.sequences()), (0, 0));
}

#[test]
fn logprobs_have_texts_bytes_and_offsets() {
    let ids = encode("né 🌍");
    let logprob = |index: usize| TokenLogprobs {
        index: index as u32,
        logprob: -0.5,
        rank: 2,
        top_ids: vec![ids[0], ids[index]],
        top_logprobs: vec![-0.1, -0.5],
        ..TokenLogprobs::default()
    };
    let mut streams = streams();
    let batch = TokenBatch {
        started: vec![Started { logprobs: Some(2), ..started(1, 10, streaming()) }],
        logprobs: (0..ids.len()).map(logprob).collect(),
        ..tokens(10, &ids)
    };
    let delta = deltas(apply(&mut streams, batch).0).remove(0);
    let details = delta.details.expect("log-probabilities");
    assert_eq!(details.logprobs.len(), ids.len());
    let bytes: Vec<u8> = details.logprobs.iter().flat_map(|one| one.token_bytes.to_vec()).collect();
    assert_eq!(bytes, "né 🌍".as_bytes());
    for (one, &id) in details.logprobs.iter().zip(&ids) {
        assert_eq!((one.token_id, one.rank, one.top.len(), one.top[1].token_id), (id, 2, 2, id));
    }
    let last = details.logprobs.last().expect("an entry");
    assert!(last.token.contains('\u{FFFD}'), "a part of a character: {:?}", last.token);
    assert!(last.text_offset as usize <= "né 🌍".chars().count());
}

#[test]
fn prompt_logprobs_come_with_the_first_delta() {
    let prompt = encode("one two three");
    let mut streams = streams();
    let output = Wanted { echo: true, return_prompt_token_ids: true, ..streaming() };
    let prompt_tokens = prompt.len() as u32;
    let start = Started { prompt_ids: prompt.clone(), prompt_tokens, ..started(1, 10, output) };
    let position = |index: u32| TokenLogprobs {
        index,
        prompt_of_sequence: Some(10),
        token: prompt[index as usize],
        ..TokenLogprobs::default()
    };
    let logprobs = (1..prompt_tokens).map(position).collect();
    let (events, _) = apply(&mut streams, TokenBatch { started: vec![start], logprobs, ..TokenBatch::default() });
    let [Event { kind: Some(Kind::Admitted(admitted)), .. }] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!((admitted.prompt_text.as_str(), &admitted.prompt_ids), ("one two three", &prompt));
    let delta = deltas(apply(&mut streams, tokens(10, &encode(" four"))).0).remove(0);
    let details = delta.details.expect("log-probabilities");
    let seen: Vec<_> = details.prompt_logprobs.iter().map(|one| (one.token.as_str(), one.text_offset)).collect();
    assert_eq!(seen, [(" two", 3), (" three", 7)]);
}

#[test]
fn failures_end_requests() {
    let mut streams = streams();
    apply(&mut streams, TokenBatch { started: vec![started(1, 10, streaming())], ..TokenBatch::default() });
    let failed = |number| Failed { key: Some(key(number)), failure: Some(error::ending()), ..Failed::default() };
    let (events, _) = apply(&mut streams, TokenBatch { failed: vec![failed(1), failed(2)], ..TokenBatch::default() });
    let numbers: Vec<u64> = events.iter().map(|event| event.number).collect();
    assert_eq!((numbers, streams.len(), streams.sequences()), (vec![1, 2], 0, 0));

    apply(&mut streams, TokenBatch { started: vec![started(3, 11, streaming())], ..TokenBatch::default() });
    let mut out = Output::default();
    streams.fail_all(&error::engine_lost(), &mut out);
    out.tell_all_lost([GATEWAY].into_iter(), &error::engine_lost());
    let numbers: Vec<u64> = out.events[0].1.iter().map(|event| event.number).collect();
    assert_eq!((numbers, streams.len()), (vec![3, 0], 0));
}

#[test]
fn a_lost_gateways_sequences_are_forgotten() {
    let mut streams = streams();
    apply(&mut streams, TokenBatch { started: vec![started(1, 10, streaming())], ..TokenBatch::default() });
    streams.lost(GATEWAY);
    assert_eq!((streams.len(), streams.sequences()), (0, 0));
    assert!(apply(&mut streams, tokens(10, &encode("late"))).0.is_empty());
    let late = TokenBatch { started: vec![started(2, 11, streaming())], ..TokenBatch::default() };
    assert_eq!(apply(&mut streams, late), (Vec::new(), vec![11]), "the engine may stop");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Any ids, cut into any batches: the deltas are the text of all ids at once, up to the first stop string.
    #[test]
    fn any_cut_is_the_whole(
        ids in prop::collection::vec(0..8192u32, 1..60),
        sizes in prop::collection::vec(1..5usize, 1..8),
        stop in prop::option::of("[ a-z]{1,3}"),
        skip in any::<bool>(),
    ) {
        let stops: Vec<&str> = stop.as_deref().into_iter().collect();
        let output = Wanted { skip_special_tokens: skip, ..stopping(&stops) };
        let (deltas, stopped) = run(started(1, 10, output), &ids, &sizes, FinishReason::Length);
        let whole = TOKENIZER.decode(&ids, skip).expect("text");
        let cut = stop.as_deref().and_then(|stop| whole.find(stop));
        prop_assert_eq!(text(&deltas), &whole[..cut.unwrap_or(whole.len())]);
        prop_assert_eq!(stopped.len(), usize::from(cut.is_some()));
        prop_assert_eq!(deltas.iter().filter(|delta| delta.finish() != FinishReason::Unspecified).count(), 1);
        if cut.is_none() {
            prop_assert_eq!(count(&deltas) as usize, ids.len());
        }
    }
}

#[test]
fn steps_that_come_together_are_one_event() {
    let mut streams = streams();
    apply(&mut streams, TokenBatch { started: vec![started(1, 10, streaming())], ..TokenBatch::default() });
    let ids = encode("one two three four");
    let mut out = Output::default();
    ids.iter().for_each(|id| streams.apply(tokens(10, &[*id]), &mut out));
    assert!(out.events.is_empty());
    streams.flush(&mut out);
    let deltas = deltas(out.events.remove(0).1);
    assert_eq!((deltas.len(), text(&deltas).as_str(), count(&deltas)), (1, "one two three four", ids.len() as u32));
}

#[test]
fn text_comes_before_the_failure_of_a_later_step() {
    let mut streams = streams();
    apply(&mut streams, TokenBatch { started: vec![started(1, 10, streaming())], ..TokenBatch::default() });
    let mut out = Output::default();
    streams.apply(tokens(10, &encode("one")), &mut out);
    let failed = Failed { key: Some(key(1)), ..Failed::default() };
    streams.apply(TokenBatch { failed: vec![failed], ..TokenBatch::default() }, &mut out);
    streams.flush(&mut out);
    let kinds: Vec<Kind> = out.events.remove(0).1.into_iter().filter_map(|event| event.kind).collect();
    assert!(matches!(&kinds[..], [Kind::Delta(delta), Kind::Failure(_)] if delta.text == "one"), "{kinds:?}");
}
