//! The process between fake gateways and a fake scheduler, over rings.

use std::path::{Path, PathBuf};

use link::{Address, Hello, Link, LinkError, LinkOptions, Listener};
use proto::{
    Abort, Chat, DrainSeen, EngineReport, Failure, Inbound, Output, Prompt, Request, RequestKey, Sampling, TokenIds,
    Watch, engine_report, failure, inbound::Event, prompt::Kind, tokenizer_service_client::TokenizerServiceClient,
};
use service_kit::{Process, control, parse_flags};
use tokio::task::JoinHandle;

type Side = Link<Inbound, Inbound>;

/// The process under test, and a scheduler.
struct Stage {
    dir: tempfile::TempDir,
    process: Process,
    serving: JoinHandle<anyhow::Result<()>>,
    scheduler: Side,
    listener: Listener,
}

fn model() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let places = ["crates/default-model/files/model", "../shared/default-model/model"];
    let found = places.iter().map(|place| root.join(place)).find(|dir| dir.join("tokenizer.json").is_file());
    found.expect("the default model")
}

fn ring(dir: &Path, name: &str) -> Address {
    Address::Ring(dir.join(name))
}

impl Stage {
    async fn set(flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let hello = link::hello("scheduler-svc", "requests", "");
        let address = ring(dir.path(), "scheduler");
        let mut listener = Listener::bind(&address, hello, LinkOptions::default()).await.expect("a listener");
        let own = |flag: &str, name: &str| format!("--{flag}={}", ring(dir.path(), name));
        let control = format!("--control=grpc+unix:{}", dir.path().join("control").display());
        let model = format!("--model={}", model().display());
        let fixed =
            ["tokenizer-svc".to_owned(), own("listen", "tokenizer"), own("scheduler", "scheduler"), control, model];
        let flags = fixed.into_iter().chain(flags.iter().map(|flag| (*flag).to_owned()));
        let args = parse_flags(flags).expect("flags");
        let process = Process::new("test");
        let serving = tokio::spawn(tokenizer_svc::serve(args, process.clone()));
        let scheduler = listener.accept().await.expect("the tokenizer");
        Self { dir, process, serving, scheduler, listener }
    }

    async fn gateway(&self, instance: u64) -> Side {
        let hello = Hello { instance, ..link::hello("api-gateway", "requests", "") };
        link::redial(&ring(self.dir.path(), "tokenizer"), hello, &LinkOptions::default()).await
    }

    async fn next(&mut self) -> Event {
        self.scheduler.receiver.recv().await.expect("a message").event.expect("an event")
    }

    async fn request(&mut self) -> (u64, Vec<u32>, Request) {
        match self.next().await {
            Event::Request(request) => {
                let Some(Kind::Ids(ids)) = request.prompt.clone().expect("a prompt").kind else { panic!("no ids") };
                (request.key.expect("a key").number, ids.ids, request)
            }
            other => panic!("not a request: {other:?}"),
        }
    }

    async fn rejected(&mut self) -> (u64, Failure) {
        match self.next().await {
            Event::Rejected(rejected) => (rejected.key.expect("a key").number, rejected.failure.expect("a failure")),
            other => panic!("not rejected: {other:?}"),
        }
    }

    async fn end(self) {
        self.process.shutdown.cancel();
        self.serving.await.expect("no panic").expect("an orderly end");
    }
}

fn request(gateway: u64, number: u64, kind: Kind) -> Request {
    Request {
        key: Some(RequestKey { gateway, number }),
        request_id: format!("test-{number}"),
        prompt: Some(Prompt { kind: Some(kind), ..Prompt::default() }),
        sampling: Some(Sampling::default()),
        output: Some(Output::default()),
        n: 1,
        ..Request::default()
    }
}

fn text(gateway: u64, number: u64, text: &str) -> Request {
    request(gateway, number, Kind::Text(text.to_owned()))
}

async fn send(gateway: &mut Side, event: Event) {
    gateway.sender.send(&Inbound { event: Some(event) }).await.expect("sent");
}

fn abort(gateway: u64, number: u64) -> Event {
    Event::Abort(Abort { key: Some(RequestKey { gateway, number }) })
}

#[tokio::test]
async fn prompts_become_ids() {
    let mut stage = Stage::set(&["--max-model-len=64"]).await;
    let mut gateway = stage.gateway(7).await;
    send(&mut gateway, Event::Request(text(7, 1, "Once upon a time"))).await;
    assert_eq!(stage.request().await.1, [743, 827, 289, 546]);

    send(&mut gateway, Event::Request(request(7, 2, Kind::Ids(TokenIds { ids: vec![5, 6] })))).await;
    assert_eq!(stage.request().await.1, [5, 6]);

    let messages_json = r#"[{"role":"user","content":"Hi"}]"#.to_owned();
    let chat = Chat { messages_json, add_generation_prompt: true, ..Chat::default() };
    send(&mut gateway, Event::Request(request(7, 3, Kind::Chat(chat)))).await;
    let chat = stage.request().await.1;
    send(&mut gateway, Event::Request(text(7, 4, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"))).await;
    assert_eq!(stage.request().await.1, chat);

    let mut words = text(7, 5, "x");
    words.sampling = Some(Sampling { bad_words: vec!["time".to_owned()], ..Sampling::default() });
    send(&mut gateway, Event::Request(words)).await;
    let sampling = stage.request().await.2.sampling.expect("sampling");
    assert!(sampling.bad_words.is_empty());
    assert_eq!(sampling.eos_token_id, Some(4), "<|im_end|>, which tokenizer_config.json names");
    assert!(sampling.bad_token_ids.iter().any(|ids| ids.ids == [546]), "{:?}", sampling.bad_token_ids);

    for (number, keep, first, expected) in [
        (6, 2, false, vec![3, 4]),
        (7, 2, true, vec![1, 2]),
        (8, -1, false, vec![1, 2, 3, 4]),
        (9, 9, true, vec![1, 2, 3, 4]),
    ] {
        let mut long = request(7, number, Kind::Ids(TokenIds { ids: vec![1, 2, 3, 4] }));
        long.truncate_prompt_tokens = Some(keep);
        long.truncate_keep_first = first;
        send(&mut gateway, Event::Request(long)).await;
        assert_eq!(stage.request().await.1, expected);
    }
    let mut long = request(7, 10, Kind::Ids(TokenIds { ids: (0..100).collect() }));
    (long.truncate_prompt_tokens, long.max_tokens) = (Some(-1), Some(4));
    send(&mut gateway, Event::Request(long)).await;
    assert_eq!(stage.request().await.1, (40..100).collect::<Vec<u32>>());
    stage.end().await;
}

#[tokio::test]
async fn what_cannot_be_encoded_is_rejected() {
    let mut stage = Stage::set(&["--chat-template={{ raise_exception('no roles here') }}"]).await;
    let mut gateway = stage.gateway(7).await;
    let chat = |messages_json: &str| Kind::Chat(Chat { messages_json: messages_json.to_owned(), ..Chat::default() });
    send(&mut gateway, Event::Request(request(7, 1, chat("[]")))).await;
    let (number, failure) = stage.rejected().await;
    assert_eq!((number, failure.kind(), failure.message.as_str()), (1, failure::Kind::Invalid, "no roles here"));

    send(&mut gateway, Event::Request(request(7, 2, chat("{")))).await;
    let (number, failure) = stage.rejected().await;
    assert_eq!((number, failure.kind(), failure.param.as_str()), (2, failure::Kind::Invalid, "messages"));

    let mut stops = text(7, 3, "x");
    stops.output = Some(Output { stop: vec![String::new()], ..Output::default() });
    send(&mut gateway, Event::Request(stops)).await;
    assert_eq!(stage.rejected().await.1.param, "stop");

    let mut cut = text(7, 4, "x");
    cut.truncate_prompt_tokens = Some(0);
    send(&mut gateway, Event::Request(cut)).await;
    assert_eq!(stage.rejected().await.1.param, "truncate_prompt_tokens");
    stage.end().await;
}

/// Long enough to take a while.
fn long_text() -> String {
    "Once upon a time ".repeat(20_000)
}

#[tokio::test]
async fn short_prompts_overtake_long_ones() {
    let mut stage = Stage::set(&["--tokenizer-pool-size=2"]).await;
    let mut gateway = stage.gateway(7).await;
    for number in 1..=3 {
        send(&mut gateway, Event::Request(text(7, number, &long_text()))).await;
    }
    send(&mut gateway, Event::Request(text(7, 4, "short"))).await;
    let mut order = Vec::new();
    for _ in 0..4 {
        order.push(stage.request().await.0);
    }
    assert_eq!(order, [4, 1, 2, 3]);
    stage.end().await;
}

#[tokio::test]
async fn aborts_follow_their_requests_or_end_them_here() {
    let mut stage = Stage::set(&["--tokenizer-pool-size=1"]).await;
    let mut gateway = stage.gateway(7).await;
    // Handed on already: the abort follows.
    send(&mut gateway, Event::Request(text(7, 1, "a"))).await;
    assert_eq!(stage.request().await.0, 1);
    send(&mut gateway, abort(7, 1)).await;
    assert_eq!(stage.next().await, abort(7, 1));
    // Behind a long one: it never gets further.
    send(&mut gateway, Event::Request(text(7, 2, &long_text()))).await;
    send(&mut gateway, Event::Request(text(7, 3, &long_text()))).await;
    send(&mut gateway, abort(7, 3)).await;
    assert_eq!(stage.rejected().await.0, 3);
    assert_eq!(stage.request().await.0, 2);
    send(&mut gateway, Event::Request(text(7, 4, "a"))).await;
    assert_eq!(stage.request().await.0, 4);
    stage.end().await;
}

#[tokio::test]
async fn past_the_bound_requests_are_refused() {
    let mut stage = Stage::set(&["--tokenizer-pool-size=1", "--max-pending-requests=1"]).await;
    let mut gateway = stage.gateway(7).await;
    send(&mut gateway, Event::Request(text(7, 1, &long_text()))).await;
    send(&mut gateway, Event::Request(text(7, 2, "a"))).await;
    let (number, failure) = stage.rejected().await;
    assert_eq!((number, failure.kind()), (2, failure::Kind::Overloaded));
    assert_eq!(stage.request().await.0, 1);
    stage.end().await;
}

#[tokio::test]
async fn a_lost_gateway_is_told_once_and_the_others_stay() {
    let mut stage = Stage::set(&[]).await;
    let mut one = stage.gateway(7).await;
    let mut other = stage.gateway(8).await;
    send(&mut one, Event::Request(text(7, 1, "a"))).await;
    assert_eq!(stage.request().await.0, 1);
    drop(one);
    match stage.next().await {
        Event::GatewayGone(gone) => assert_eq!(gone.gateway, 7),
        event => panic!("{event:?}"),
    }
    send(&mut other, Event::Request(text(8, 2, "a"))).await;
    assert_eq!(stage.request().await.0, 2);
    stage.end().await;
}

#[tokio::test]
async fn without_a_scheduler_nobody_is_served_and_nobody_waits() {
    let mut stage = Stage::set(&[]).await;
    let mut gateway = stage.gateway(7).await;
    send(&mut gateway, Event::Request(text(7, 1, "a"))).await;
    assert_eq!(stage.request().await.0, 1);
    // The scheduler dies: the gateway learns that what it sent is lost.
    let Stage { dir, process, serving, scheduler, mut listener } = stage;
    drop(scheduler);
    assert!(matches!(gateway.receiver.recv().await, Err(LinkError::PeerGone)));
    // It is back: so is the gateway.
    let scheduler = listener.accept().await.expect("the tokenizer");
    let mut stage = Stage { dir, process, serving, scheduler, listener };
    let mut gateway = stage.gateway(7).await;
    send(&mut gateway, Event::Request(text(7, 2, "a"))).await;
    assert_eq!(stage.request().await.0, 2);
    stage.end().await;
}

#[tokio::test]
async fn the_control_plane_tokenizes() {
    let mut stage = Stage::set(&[]).await;
    let mut gateway = stage.gateway(7).await;
    send(&mut gateway, Event::Request(text(7, 1, "a"))).await;
    assert_eq!(stage.request().await.0, 1);
    let address = Address::GrpcUnix(stage.dir.path().join("control"));
    let info =
        control::ControlClient::new(&address, &LinkOptions::default()).expect("a client").info().await.expect("info");
    let model = info.model.expect("a model");
    assert!(model.has_chat_template);
    assert_eq!((model.vocab_size, model.max_model_len), (8192, 1024));
    assert!(!model.eos_token_ids.is_empty() && model.generation_config_json.contains("eos_token_id"));

    let mut client = TokenizerServiceClient::new(link::channel(&address, &LinkOptions::default()).expect("a channel"));
    let prompt =
        Prompt { kind: Some(Kind::Text("Once upon a time".to_owned())), add_special_tokens: true, suffix: None };
    let ask = proto::TokenizeRequest { prompt: Some(prompt), return_token_strs: true, adapter_tokenizer: None };
    let reply = client.tokenize(ask).await.expect("a reply").into_inner();
    assert_eq!(reply.tokens, [743, 827, 289, 546]);
    assert_eq!(reply.token_strs, ["Once", "Ġupon", "Ġa", "Ġtime"]);
    let ask = proto::DetokenizeRequest { tokens: reply.tokens, adapter_tokenizer: None };
    assert_eq!(client.detokenize(ask).await.expect("a reply").into_inner().text, "Once upon a time");
    let ask = proto::DetokenizeRequest { tokens: vec![8192], adapter_tokenizer: None };
    let failure = client.detokenize(ask).await.expect("a reply").into_inner().failure.expect("a failure");
    assert_eq!((failure.kind(), failure.param.as_str()), (failure::Kind::Invalid, "tokens"));
    stage.end().await;
}

/// The process between a gateway and two schedulers.
struct TwoEngines {
    dir: tempfile::TempDir,
    process: Process,
    serving: JoinHandle<anyhow::Result<()>>,
    engines: Vec<(Listener, Link<EngineReport, Inbound>)>,
    sequences: [u64; 2],
}

impl TwoEngines {
    async fn set(flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let at = |name: &str| ring(dir.path(), name);
        let mut listeners = Vec::new();
        for name in ["first", "second"] {
            let hello = link::hello("scheduler-svc", "requests", "");
            listeners.push(Listener::bind(&at(name), hello, LinkOptions::default()).await.expect("a listener"));
        }
        let mut args = vec!["tokenizer-svc".to_owned(), format!("--listen={}", at("tokenizer"))];
        args.extend(["first", "second"].map(|name| format!("--scheduler={}", at(name))));
        args.push(format!("--model={}", model().display()));
        args.push(format!("--control=grpc+unix:{}", dir.path().join("control").display()));
        args.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let process = Process::new("test");
        let serving = tokio::spawn(tokenizer_svc::serve(parse_flags(args).expect("flags"), process.clone()));
        let mut engines = Vec::new();
        for mut listener in listeners {
            let link = listener.accept().await.expect("the tokenizer");
            engines.push((listener, link));
        }
        let mut stage = Self { dir, process, serving, engines, sequences: [0; 2] };
        for engine in 0..2 {
            assert_eq!(stage.next(engine).await, Event::Watch(Watch {}));
        }
        stage
    }

    async fn gateway(&self) -> Side {
        let hello = Hello { instance: 7, ..link::hello("api-gateway", "requests", "") };
        link::redial(&ring(self.dir.path(), "tokenizer"), hello, &LinkOptions::default()).await
    }

    async fn next(&mut self, engine: usize) -> Event {
        let next = self.engines[engine].1.receiver.recv();
        let message = tokio::time::timeout(std::time::Duration::from_secs(20), next).await.expect("in time");
        message.expect("a message").event.expect("an event")
    }

    async fn request(&mut self, engine: usize) -> u64 {
        match self.next(engine).await {
            Event::Request(request) => request.key.expect("a key").number,
            other => panic!("not a request: {other:?}"),
        }
    }

    /// What comes next at this engine; none where the other one gets something first.
    async fn either(&mut self, engine: usize) -> Option<Event> {
        let [first, second] = &mut self.engines[..] else { panic!("two engines") };
        let (wanted, other) = if engine == 0 { (first, second) } else { (second, first) };
        tokio::select! {
            message = wanted.1.receiver.recv() => message.expect("a message").event,
            _ = other.1.receiver.recv() => None,
        }
    }

    async fn report(&mut self, engine: usize, report: EngineReport) {
        self.sequences[engine] += 1;
        let report = EngineReport { sequence: self.sequences[engine], ..report };
        self.engines[engine].1.sender.send(&report).await.expect("sent");
    }

    async fn is(&mut self, engine: usize, state: engine_report::State) {
        self.report(engine, EngineReport { state: state.into(), fresh: true, ..EngineReport::default() }).await;
    }

    /// Returns when what this engine has reported is known: it drains from then on.
    async fn known(&mut self, engine: usize) {
        self.is(engine, engine_report::State::Draining).await;
        self.seen(engine).await;
    }

    /// The tokenizer says that it has read the engine's last report.
    async fn seen(&mut self, engine: usize) {
        let sequence = self.sequences[engine];
        assert_eq!(self.next(engine).await, Event::DrainSeen(DrainSeen { sequence }));
    }

    /// The key and the failure of a request that ends at this engine.
    async fn rejected(&mut self, engine: usize) -> (u64, Failure) {
        match self.next(engine).await {
            Event::Rejected(rejected) => (rejected.key.expect("a key").number, rejected.failure.expect("a failure")),
            other => panic!("not a rejection: {other:?}"),
        }
    }

    async fn end(self) {
        self.process.shutdown.cancel();
        self.serving.await.expect("no panic").expect("an orderly end");
    }
}

fn named(number: u64, rank: Option<u32>) -> Event {
    let ids = Kind::Ids(TokenIds { ids: vec![5, 6] });
    Event::Request(Request { data_parallel_rank: rank, ..request(7, number, ids) })
}

#[tokio::test]
async fn requests_go_to_the_engine_that_they_name_and_aborts_follow() {
    let mut stage = TwoEngines::set(&[]).await;
    let mut gateway = stage.gateway().await;
    send(&mut gateway, named(1, Some(1))).await;
    send(&mut gateway, named(2, Some(0))).await;
    assert_eq!((stage.request(1).await, stage.request(0).await), (1, 2));
    send(&mut gateway, abort(7, 1)).await;
    assert_eq!(stage.next(1).await, abort(7, 1));
    // What is over is known to none, so that all are told.
    stage
        .report(1, EngineReport { ended: vec![RequestKey { gateway: 7, number: 1 }], ..EngineReport::default() })
        .await;
    stage.known(1).await;
    send(&mut gateway, abort(7, 1)).await;
    assert_eq!((stage.next(0).await, stage.next(1).await), (abort(7, 1), abort(7, 1)));
    send(&mut gateway, named(3, Some(2))).await;
    // The one that drains is spared.
    let (_, failure) = stage.rejected(0).await;
    assert_eq!((failure.kind(), failure.param.as_str()), (failure::Kind::Invalid, "X-data-parallel-rank"));
    assert!(failure.message.contains("0 to 1"), "{}", failure.message);
    stage.end().await;
}

#[tokio::test]
async fn an_engine_that_drains_gets_nothing_more() {
    use engine_report::State::{Draining, Ready};
    let mut stage = TwoEngines::set(&["--data-parallel-policy=round-robin"]).await;
    let mut gateway = stage.gateway().await;
    stage.is(1, Ready).await;
    stage.is(0, Draining).await;
    stage.seen(0).await;
    for number in 1..=4 {
        send(&mut gateway, named(number, None)).await;
        assert_eq!(stage.request(1).await, number);
    }
    send(&mut gateway, named(5, Some(0))).await;
    // It may end at any time: another one passes on what ends here.
    assert_eq!(stage.rejected(1).await.1.kind(), failure::Kind::Unavailable);
    // What it reports until its end is read.
    stage
        .report(0, EngineReport { state: Draining.into(), ended: vec![RequestKey::default()], ..Default::default() })
        .await;
    stage.seen(0).await;
    stage.end().await;
}

#[tokio::test]
async fn a_rejection_that_is_lost_with_its_engine_is_told_through_another() {
    use engine_report::State::Ready;
    let mut stage = TwoEngines::set(&[]).await;
    let mut gateway = stage.gateway().await;
    stage.is(0, Ready).await;
    stage.is(1, Ready).await;
    send(&mut gateway, named(1, Some(9))).await;
    assert_eq!(stage.rejected(0).await.0, 1);
    send(&mut gateway, named(2, Some(9))).await;
    assert_eq!(stage.rejected(0).await.0, 2);
    // One of them was passed on.
    let ended = vec![RequestKey { gateway: 7, number: 2 }];
    stage.report(0, EngineReport { state: Ready.into(), ended, ..EngineReport::default() }).await;
    drop(stage.engines.remove(0));
    let (number, failure) = stage.rejected(0).await;
    assert_eq!((number, failure.kind()), (1, failure::Kind::Unavailable));
    send(&mut gateway, named(3, None)).await;
    assert_eq!(stage.request(0).await, 3);
    stage.end().await;
}

#[tokio::test]
async fn a_prefix_goes_to_the_engine_that_reports_it() {
    use engine_report::State::Ready;
    let mut stage = TwoEngines::set(&[]).await;
    let mut gateway = stage.gateway().await;
    let ids: Vec<u32> = (0..320).collect();
    let identity = block_hash::Identity { model: "m", adapter: "", cache_salt: "" };
    let hashes = block_hash::prompt_hashes(block_hash::BlockHash::root(identity), &ids, &[], 16);
    let blocks: Vec<u64> = hashes.iter().map(block_hash::BlockHash::short).collect();
    let fresh = |stored: Vec<u64>| EngineReport {
        state: Ready.into(),
        fresh: true,
        model: "m".into(),
        block_size: 16,
        stored,
        ..EngineReport::default()
    };
    let mut number = 0;
    for (engine, stored) in [(0, Vec::new()), (1, blocks)] {
        stage.known(engine).await;
        stage.report(engine, fresh(stored)).await;
        // The report is known once it is asked at what drained.
        loop {
            number += 1;
            send(&mut gateway, named(number, Some(engine as u32))).await;
            if let Some(Event::Request(_)) = stage.either(engine).await {
                break;
            }
        }
    }
    let prompt = |number| Event::Request(request(7, number, Kind::Ids(TokenIds { ids: ids.clone() })));
    for _ in 0..3 {
        number += 1;
        send(&mut gateway, prompt(number)).await;
        assert_eq!(stage.request(1).await, number);
    }
    stage.end().await;
}

#[tokio::test]
async fn a_lost_engine_fails_its_own_requests_through_another() {
    use engine_report::State::Ready;
    let mut stage = TwoEngines::set(&[]).await;
    let mut gateway = stage.gateway().await;
    stage.is(0, Ready).await;
    stage.is(1, Ready).await;
    send(&mut gateway, named(1, Some(0))).await;
    send(&mut gateway, named(2, Some(1))).await;
    assert_eq!((stage.request(0).await, stage.request(1).await), (1, 2));
    let (listener, lost) = stage.engines.remove(0);
    drop((listener, lost));
    let (number, failure) = stage.rejected(0).await;
    assert_eq!((number, failure.kind()), (1, failure::Kind::Unavailable));
    for number in 3..6 {
        send(&mut gateway, named(number, None)).await;
        assert_eq!(stage.request(0).await, number, "the one that is left");
    }
    stage.end().await;
}
