//! The process between a fake scheduler and fake gateways, over rings.

use std::path::{Path, PathBuf};

use link::{Address, Hello, Link, LinkError, LinkOptions};
use proto::{
    DetokenizerReply, Event, EventBatch, Failed, Failure, FinishReason, Finished, Inbound, Output, RequestKey, Started,
    TokenBatch, event::Kind, failure,
};
use service_kit::{Process, parse_flags};
use tokenizer::Tokenizer;
use tokio::task::JoinHandle;

type Scheduler = Link<TokenBatch, DetokenizerReply>;
type Gateway = Link<Inbound, EventBatch>;

/// The process under test.
struct Stage {
    dir: tempfile::TempDir,
    process: Process,
    serving: JoinHandle<anyhow::Result<()>>,
    tokenizer: Tokenizer,
}

fn model() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let places = ["crates/default-model/files/model", "../shared/default-model/model"];
    let found = places.iter().map(|place| root.join(place)).find(|dir| dir.join("tokenizer.json").is_file());
    found.expect("the default model")
}

impl Stage {
    fn set(flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let own = |flag: &str, name: &str| format!("--{flag}=ring:{}", dir.path().join(name).display());
        let model = format!("--model={}", model().display());
        let fixed =
            ["detokenizer-svc".to_owned(), own("listen-tokens", "tokens"), own("listen-events", "events"), model];
        let flags = fixed.into_iter().chain(flags.iter().map(|flag| (*flag).to_owned()));
        let args = parse_flags(flags).expect("flags");
        let process = Process::new("test");
        let serving = tokio::spawn(detokenizer_svc::serve(args, process.clone()));
        let tokenizer = Tokenizer::load(&self::model()).expect("a tokenizer");
        Self { dir, process, serving, tokenizer }
    }

    async fn scheduler(&self) -> Scheduler {
        let address = Address::Ring(self.dir.path().join("tokens"));
        link::redial(&address, link::hello("scheduler-svc", "tokens", ""), &LinkOptions::default()).await
    }

    async fn gateway(&self, instance: u64, options: &LinkOptions) -> Gateway {
        let address = Address::Ring(self.dir.path().join("events"));
        let hello = Hello { instance, ..link::hello("api-gateway", "events", "") };
        link::redial(&address, hello, options).await
    }

    /// A batch that starts request `number` of `gateway` as sequence `number`, and gives it the tokens of `text`.
    fn begin(&self, gateway: u64, number: u64, text: &str, stop: &[&str]) -> TokenBatch {
        let output = Output {
            stop: stop.iter().map(|stop| (*stop).to_owned()).collect(),
            stream: true,
            skip_special_tokens: true,
            ..Output::default()
        };
        let started = Started {
            key: Some(RequestKey { gateway, number }),
            request_id: format!("test-{number}"),
            first_sequence: number,
            n: 1,
            output: Some(output),
            ..Started::default()
        };
        TokenBatch { started: vec![started], ..self.go_on(number, text) }
    }

    fn go_on(&self, number: u64, text: &str) -> TokenBatch {
        let token = self.tokenizer.encode(text, false).expect("ids");
        TokenBatch { sequence: vec![number; token.len()], token, ..TokenBatch::default() }
    }

    async fn end(self) {
        self.process.shutdown.cancel();
        self.serving.await.expect("no panic").expect("an orderly end");
    }
}

/// The next message's events, in short: number and text, or what else it is.
async fn events(gateway: &mut Gateway) -> Vec<(u64, String)> {
    let batch = gateway.receiver.recv().await.expect("events");
    let short = |event: Event| match event.kind.expect("a kind") {
        Kind::Admitted(_) => (event.number, "admitted".to_owned()),
        Kind::Failure(failure) => (event.number, failure.kind().as_str_name().to_owned()),
        Kind::Delta(delta) if delta.finish() == FinishReason::Unspecified => (event.number, delta.text),
        Kind::Delta(delta) => (event.number, format!("{}|{}", delta.text, delta.finish().as_str_name())),
    };
    batch.events.into_iter().map(short).collect()
}

fn list(expected: &[(u64, &str)]) -> Vec<(u64, String)> {
    expected.iter().map(|(number, text)| (*number, (*text).to_owned())).collect()
}

#[tokio::test]
async fn each_gateway_gets_its_own() {
    let stage = Stage::set(&[]);
    let mut scheduler = stage.scheduler().await;
    let mut one = stage.gateway(1, &LinkOptions::default()).await;
    let mut two = stage.gateway(2, &LinkOptions::default()).await;
    scheduler.sender.send(&stage.begin(1, 5, "Hello", &[])).await.expect("sent");
    assert_eq!(events(&mut one).await, list(&[(5, "admitted"), (5, "Hello")]));
    let mut batch = stage.begin(2, 6, "There", &[]);
    let more = stage.go_on(5, " you");
    batch.sequence.extend(more.sequence);
    batch.token.extend(more.token);
    batch.finished.push(Finished { sequence: 5, reason: FinishReason::Length.into(), stop_token: None });
    scheduler.sender.send(&batch).await.expect("sent");
    assert_eq!(events(&mut one).await, list(&[(5, " you|LENGTH")]));
    assert_eq!(events(&mut two).await, list(&[(6, "admitted"), (6, "There")]));
    stage.end().await;
}

#[tokio::test]
async fn the_scheduler_learns_of_stop_strings() {
    let stage = Stage::set(&[]);
    let mut scheduler = stage.scheduler().await;
    let mut gateway = stage.gateway(1, &LinkOptions::default()).await;
    scheduler.sender.send(&stage.begin(1, 5, "one two three", &["two"])).await.expect("sent");
    assert_eq!(scheduler.receiver.recv().await.expect("a reply").stopped, [5]);
    assert_eq!(events(&mut gateway).await, list(&[(5, "admitted"), (5, "one |STOP")]));
    // What comes of it later is nobody's.
    scheduler.sender.send(&stage.go_on(5, "late")).await.expect("sent");
    scheduler.sender.send(&stage.begin(1, 6, "next", &[])).await.expect("sent");
    assert_eq!(events(&mut gateway).await, list(&[(6, "admitted"), (6, "next")]));
    stage.end().await;
}

#[tokio::test]
async fn the_scheduler_learns_which_ends_are_taken_in() {
    let stage = Stage::set(&[]);
    let mut scheduler = stage.scheduler().await;
    let mut gateway = stage.gateway(1, &LinkOptions::default()).await;
    for (number, taken_in) in [(5, 2), (6, 4)] {
        scheduler.sender.send(&stage.begin(1, number, "one", &[])).await.expect("sent");
        let finished = vec![Finished { sequence: number, reason: FinishReason::Length.into(), stop_token: None }];
        scheduler.sender.send(&TokenBatch { finished, ..stage.go_on(number, " two") }).await.expect("sent");
        assert_eq!(events(&mut gateway).await[0].0, number);
        assert_eq!(
            scheduler.receiver.recv().await.expect("a reply"),
            DetokenizerReply { stopped: vec![], batches: taken_in }
        );
    }
    // A link counts for itself.
    drop(scheduler);
    let mut scheduler = stage.scheduler().await;
    let failed = Failed { key: Some(RequestKey { gateway: 1, number: 7 }), ..Failed::default() };
    scheduler.sender.send(&TokenBatch { failed: vec![failed], ..TokenBatch::default() }).await.expect("sent");
    assert_eq!(scheduler.receiver.recv().await.expect("a reply").batches, 1);
    stage.end().await;
}

#[tokio::test]
async fn a_request_whose_answer_never_fits_ends_and_is_freed() {
    let stage = Stage::set(&[]);
    let mut scheduler = stage.scheduler().await;
    let mut gateway = stage.gateway(1, &LinkOptions::default()).await;
    let mut batch = stage.begin(1, 5, "Hello", &[]);
    let word = stage.tokenizer.encode(" something", false).expect("ids");
    let started = &mut batch.started[0];
    started.n = 2;
    started.output.as_mut().expect("an output").echo = true;
    // More text than a link takes, in fewer bytes of token ids.
    started.prompt_ids = word.iter().copied().cycle().take(word.len() * 1_000_000).collect();
    started.prompt_tokens = started.prompt_ids.len() as u32;
    scheduler.sender.send(&batch).await.expect("sent");
    let told = events(&mut gateway).await;
    assert_eq!(told[0], (5, failure::Kind::Invalid.as_str_name().to_owned()), "{told:?}");
    assert_eq!(scheduler.receiver.recv().await.expect("a reply").stopped, [5, 6]);
    // The link lives, and who else is there goes on.
    scheduler.sender.send(&stage.begin(1, 7, "next", &[])).await.expect("sent");
    while !events(&mut gateway).await.contains(&(7, "next".to_owned())) {}
    stage.end().await;
}

#[tokio::test]
async fn a_lost_scheduler_fails_everything() {
    let stage = Stage::set(&[]);
    let mut scheduler = stage.scheduler().await;
    let mut gateway = stage.gateway(1, &LinkOptions::default()).await;
    let mut idle = stage.gateway(2, &LinkOptions::default()).await;
    scheduler.sender.send(&stage.begin(1, 5, "Hello", &[])).await.expect("sent");
    assert_eq!(events(&mut gateway).await.len(), 2);
    drop(scheduler);
    let unavailable = failure::Kind::Unavailable.as_str_name();
    assert_eq!(events(&mut gateway).await, list(&[(5, unavailable), (0, unavailable)]));
    assert_eq!(events(&mut idle).await, list(&[(0, unavailable)]));
    // The next one starts afresh, and may use the same handles.
    let mut scheduler = stage.scheduler().await;
    scheduler.sender.send(&stage.begin(1, 5, "again", &[])).await.expect("sent");
    assert_eq!(events(&mut gateway).await, list(&[(5, "admitted"), (5, "again")]));
    stage.end().await;
}

#[tokio::test]
async fn a_gateway_that_does_not_read_is_hung_up_on() {
    let stage = Stage::set(&["--send-deadline-ms=50"]);
    let mut scheduler = stage.scheduler().await;
    let mut reader = stage.gateway(1, &LinkOptions::default()).await;
    let mut sleeper = stage.gateway(2, &LinkOptions::default()).await;
    scheduler.sender.send(&stage.begin(1, 5, "Hello", &[])).await.expect("sent");
    assert_eq!(events(&mut reader).await.len(), 2);
    // More than its ring holds. The other one gets its text all the while.
    for number in 6..26 {
        let long = Failure { message: "x".repeat(500_000), ..Failure::default() };
        let key = RequestKey { gateway: 2, number };
        let mut flood = stage.go_on(5, "x");
        flood.failed.push(Failed { key: Some(key), failure: Some(long), ..Failed::default() });
        scheduler.sender.send(&flood).await.expect("sent");
        assert_eq!(events(&mut reader).await, list(&[(5, "x")]));
    }
    while !stage.process.metrics.text().contains("quire:detokenizer_dropped_gateways_total 1") {
        scheduler.sender.send(&stage.go_on(5, "x")).await.expect("sent");
        assert_eq!(events(&mut reader).await, list(&[(5, "x")]));
    }
    // What was in the ring comes, and then the end.
    let error = loop {
        if let Err(error) = sleeper.receiver.recv().await {
            break error;
        }
    };
    assert!(matches!(error, LinkError::PeerGone), "{error}");
    stage.end().await;
}

#[tokio::test]
async fn a_gateway_that_comes_back_starts_afresh() {
    let stage = Stage::set(&[]);
    let mut scheduler = stage.scheduler().await;
    let mut gateway = stage.gateway(1, &LinkOptions::default()).await;
    scheduler.sender.send(&stage.begin(1, 5, "Hello", &[])).await.expect("sent");
    assert_eq!(events(&mut gateway).await.len(), 2);
    drop(gateway);
    let mut gateway = stage.gateway(1, &LinkOptions::default()).await;
    scheduler.sender.send(&stage.go_on(5, "lost")).await.expect("sent");
    scheduler.sender.send(&stage.begin(1, 6, "new", &[])).await.expect("sent");
    assert_eq!(events(&mut gateway).await, list(&[(6, "admitted"), (6, "new")]));
    stage.end().await;
}

#[tokio::test]
async fn an_engine_that_is_lost_fails_what_it_had_alone() {
    let stage = Stage::set(&[]);
    let mut gateway = stage.gateway(7, &LinkOptions::default()).await;
    let engine = async |rank: u32| -> Scheduler {
        let address = Address::Ring(stage.dir.path().join("tokens"));
        let hello = Hello { rank, ..link::hello("scheduler-svc", "tokens", "") };
        link::redial(&address, hello, &LinkOptions::default()).await
    };
    let (mut first, mut second) = (engine(0).await, engine(1).await);
    // Engines count their sequences themselves.
    first.sender.send(&stage.begin(7, 1, "Once", &[])).await.expect("sent");
    let batch = stage.begin(7, 2, "upon", &[]);
    let started = Started { first_sequence: 1, ..batch.started[0].clone() };
    let sequence = vec![1; batch.token.len()];
    second.sender.send(&TokenBatch { started: vec![started], sequence, ..batch }).await.expect("sent");
    let mut engines = std::collections::BTreeMap::new();
    let mut texts = std::collections::BTreeMap::new();
    while engines.len() < 2 || texts.len() < 2 {
        for Event { number, kind } in gateway.receiver.recv().await.expect("events").events {
            match kind.expect("a kind") {
                Kind::Admitted(admitted) => drop(engines.insert(number, admitted.engine)),
                Kind::Delta(delta) => texts.entry(number).or_insert_with(String::new).push_str(&delta.text),
                Kind::Failure(failure) => panic!("{failure:?}"),
            }
        }
    }
    assert_eq!(engines, [(1, 0), (2, 1)].into());
    assert_eq!(texts, [(1, "Once".to_owned()), (2, "upon".to_owned())].into());
    drop(second);
    let lost = gateway.receiver.recv().await.expect("events").events;
    assert_eq!(lost.iter().map(|event| event.number).collect::<Vec<_>>(), [2], "not all is lost");
    first.sender.send(&stage.go_on(1, " upon")).await.expect("sent");
    let more = gateway.receiver.recv().await.expect("events").events;
    assert_eq!(more[0].number, 1);
    drop(first);
    let lost = gateway.receiver.recv().await.expect("events").events;
    assert_eq!(lost.iter().map(|event| event.number).collect::<Vec<_>>(), [1, 0], "now it is");
    stage.process.shutdown.cancel();
    stage.serving.await.expect("no panic").expect("an orderly end");
}
