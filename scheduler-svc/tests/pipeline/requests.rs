//! The scheduler between fake peers over real links: a tokenizer, a detokenizer, and workers that count.

use std::{path::PathBuf, time::Duration};

use clap::Parser;
use link::{Address, Link, LinkOptions, Listener};
use proto::{
    Abort, DetokenizerReply, Failure, FromWorker, GatewayGone, GroupFormed, Inbound, Output, Prompt, Rejected, Request,
    RequestKey, Sampling, StepPlan, StepResult, ToWorker, TokenBatch, TokenIds, TokenLogprobs, Want, WorkerFailed,
    WorkerReady, failure::Kind, from_worker, inbound, prompt, to_worker,
};
use service_kit::{CancellationToken, Process, Status, metrics::Metrics};
use tempfile::TempDir;
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(20);

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: scheduler_svc::Args,
}

/// A scheduler with a tokenizer and a detokenizer at its sides.
struct Stage {
    dir: TempDir,
    /// Where the detokenizer listens.
    tokens: Address,
    process: Process,
    tokenizer: Link<Inbound, Inbound>,
    /// Absent while it is lost.
    detokenizer: Option<Link<DetokenizerReply, TokenBatch>>,
    /// Where it is found; absent meanwhile too.
    listener: Option<Listener>,
    /// Batches that it has had.
    heard: u64,
}

fn address(dir: &TempDir, name: &str) -> Address {
    Address::Ring(dir.path().join(name))
}

async fn detokenizer_at(address: &Address) -> Listener {
    let hello = link::hello("detokenizer-svc", "tokens", "");
    Listener::bind(address, hello, LinkOptions::default()).await.unwrap()
}

async fn stage(flags: &[&str]) -> Stage {
    stage_over(Address::Ring, flags).await
}

/// A stage whose link to the detokenizer is of a certain kind.
async fn stage_over(kind: fn(PathBuf) -> Address, flags: &[&str]) -> Stage {
    let dir = tempfile::tempdir().unwrap();
    let tokens = kind(dir.path().join("tokens"));
    let mut listener = detokenizer_at(&tokens).await;
    let mut args = vec!["scheduler".to_owned(), format!("--detokenizer={tokens}")];
    for (flag, name) in [("listen-requests", "requests"), ("listen-workers", "steps")] {
        args.push(format!("--{flag}={}", address(&dir, name)));
    }
    args.extend(flags.iter().map(|flag| (*flag).to_owned()));
    let process = Process {
        status: Status::new("scheduler-svc"),
        metrics: Metrics::default(),
        shutdown: CancellationToken::new(),
    };
    tokio::spawn(scheduler_svc::serve(Cli::parse_from(args).args, process.clone()));
    let detokenizer = Some(listener.accept().await.unwrap());
    let hello = link::hello("tokenizer-svc", "requests", "");
    let tokenizer = link::redial(&address(&dir, "requests"), hello, &LinkOptions::default()).await;
    Stage { dir, tokens, process, tokenizer, detokenizer, listener: Some(listener), heard: 0 }
}

fn ready(rank: u32, world_size: u32) -> WorkerReady {
    WorkerReady {
        rank,
        world_size,
        block_size: 16,
        num_blocks: 64,
        vocab_size: 1000,
        max_model_len: 512,
        eos_token_ids: vec![999],
        ..WorkerReady::default()
    }
}

/// A worker on its own with room for very long prompts.
fn spacious() -> WorkerReady {
    WorkerReady { num_blocks: 1 << 20, max_model_len: 1 << 20, ..ready(0, 1) }
}

fn request(number: u64, max_tokens: u32) -> Request {
    Request {
        key: Some(RequestKey { gateway: 1, number }),
        request_id: format!("cmpl-{number}"),
        prompt: Some(Prompt {
            kind: Some(prompt::Kind::Ids(TokenIds { ids: vec![1, 2, 3] })),
            add_special_tokens: false,
        }),
        sampling: Some(Sampling { repetition_penalty: 1.0, top_p: 1.0, ..Sampling::default() }),
        output: Some(Output::default()),
        n: 1,
        max_tokens: Some(max_tokens),
        ..Request::default()
    }
}

impl Stage {
    async fn worker(&self, rank: u32, world_size: u32) -> Worker {
        self.worker_of(ready(rank, world_size)).await
    }

    async fn worker_of(&self, ready: WorkerReady) -> Worker {
        let mut hello = link::hello("worker-svc", "steps", "");
        hello.rank = ready.rank;
        let link = link::redial(&address(&self.dir, "steps"), hello, &LinkOptions::default()).await;
        let mut worker = Worker { link, epoch: 0, rank: ready.rank };
        worker.send(from_worker::Event::Ready(ready)).await;
        worker
    }

    async fn ready(&self) {
        let mut readiness = self.process.status.subscribe();
        let ready = readiness.wait_for(|now| *now == service_kit::Readiness::Ready);
        timeout(DEADLINE, ready).await.expect("ready in time").unwrap();
    }

    async fn ask(&mut self, number: u64, max_tokens: u32) {
        self.send(inbound::Event::Request(request(number, max_tokens))).await;
    }

    /// The detokenizer is lost; returns when the scheduler knows.
    async fn lose_detokenizer(&mut self) {
        (self.listener, self.detokenizer) = (None, None);
        let mut readiness = self.process.status.subscribe();
        let lost = readiness.wait_for(|now| format!("{now:?}").contains("detokenizer"));
        timeout(DEADLINE, lost).await.expect("the loss is noticed").unwrap();
    }

    async fn next_detokenizer(&mut self) {
        let mut listener = detokenizer_at(&self.tokens).await;
        self.detokenizer = Some(timeout(DEADLINE, listener.accept()).await.expect("it dials again").unwrap());
        self.listener = Some(listener);
    }

    async fn send(&mut self, event: inbound::Event) {
        self.tokenizer.sender.send(&Inbound { event: Some(event) }).await.unwrap();
    }

    async fn output(&mut self) -> TokenBatch {
        self.heard += 1;
        let detokenizer = self.detokenizer.as_mut().expect("a detokenizer");
        timeout(DEADLINE, detokenizer.receiver.recv()).await.expect("output in time").unwrap()
    }

    /// Reads until something of the batch ends; the tokens and the batch that ended it.
    async fn until_end(&mut self) -> (Vec<u32>, TokenBatch) {
        let mut tokens = Vec::new();
        loop {
            let batch = self.output().await;
            tokens.extend(&batch.token);
            if !batch.finished.is_empty() || !batch.failed.is_empty() {
                return (tokens, batch);
            }
        }
    }
}

/// A worker whose every token is the step's number.
struct Worker {
    link: Link<FromWorker, ToWorker>,
    epoch: u64,
    rank: u32,
}

impl Worker {
    async fn send(&mut self, event: from_worker::Event) {
        self.link.sender.send(&FromWorker { event: Some(event) }).await.unwrap();
    }

    async fn form(&mut self) {
        let command = timeout(DEADLINE, self.link.receiver.recv()).await.expect("a group forms").unwrap().command;
        let Some(to_worker::Command::FormGroup(form)) = command else { panic!("not a FormGroup: {command:?}") };
        assert!(form.epoch > self.epoch, "epochs grow");
        self.epoch = form.epoch;
        self.send(from_worker::Event::Formed(GroupFormed { epoch: self.epoch })).await;
    }

    async fn plan(&mut self) -> StepPlan {
        match timeout(DEADLINE, self.link.receiver.recv()).await.expect("a plan in time").unwrap().command {
            Some(to_worker::Command::Step(plan)) => plan,
            Some(to_worker::Command::FormGroup(_)) | None => panic!("not a plan"),
        }
    }

    async fn step(&mut self) {
        let plan = self.plan().await;
        let slot: Vec<u32> = plan
            .slot
            .iter()
            .zip(plan.want())
            .filter(|(_, want)| *want == Want::Sample)
            .map(|(slot, _)| *slot)
            .collect();
        let token = vec![plan.step as u32; slot.len()];
        let (slot, token) = if self.rank == 0 { (slot, token) } else { Default::default() };
        let result = StepResult { epoch: plan.epoch, step: plan.step, slot, token, ..StepResult::default() };
        self.send(from_worker::Event::Result(result)).await;
    }
}

#[tokio::test]
async fn a_request_runs_to_its_end() {
    let mut stage = stage(&[]).await;
    let mut worker = stage.worker(0, 1).await;
    worker.form().await;
    stage.ready().await;
    stage.ask(7, 3).await;
    let serving = tokio::spawn(async move {
        for _ in 0..3 {
            worker.step().await;
        }
        worker
    });
    let (tokens, last) = stage.until_end().await;
    assert_eq!(tokens, [1, 2, 3]);
    assert_eq!(last.finished[0].reason(), proto::FinishReason::Length);
    serving.await.unwrap();
    assert!(stage.process.metrics.text().contains("quire:kv_blocks_used{model_name=\"default\",engine=\"0\"} 0"));
}

#[tokio::test]
async fn a_result_in_parts_is_one() {
    let mut stage = stage(&[]).await;
    let mut worker = stage.worker(0, 1).await;
    worker.form().await;
    stage.ready().await;
    let mut scored = request(7, 1);
    scored.sampling.as_mut().unwrap().prompt_logprobs = Some(1);
    stage.send(inbound::Event::Request(scored)).await;
    let StepPlan { epoch, step, slot, .. } = worker.plan().await;
    let of_position = |index| {
        let prompt_of_sequence = Some(slot[0].into());
        vec![TokenLogprobs { index, token: index + 1, prompt_of_sequence, ..TokenLogprobs::default() }]
    };
    let first = StepResult { epoch, step, prompt_logprobs: of_position(1), more: true, ..StepResult::default() };
    worker.send(from_worker::Event::Result(first)).await;
    let prompt_logprobs = of_position(2);
    let last = StepResult { epoch, step, slot: slot.clone(), token: vec![5], prompt_logprobs, ..StepResult::default() };
    worker.send(from_worker::Event::Result(last)).await;
    let (tokens, batch) = stage.until_end().await;
    let positions: Vec<u32> = batch.logprobs.iter().map(|one| one.index).collect();
    assert_eq!((tokens, positions), (vec![5], vec![1, 2]));
}

#[tokio::test]
async fn a_request_before_the_workers_is_refused_as_unavailable() {
    let mut stage = stage(&[]).await;
    stage.ask(1, 3).await;
    let batch = stage.output().await;
    assert_eq!(batch.failed[0].failure.as_ref().unwrap().kind(), Kind::Unavailable);
}

#[tokio::test]
async fn what_fails_without_a_detokenizer_is_told_to_the_next_one() {
    let mut stage = stage(&[]).await;
    let mut readiness = stage.process.status.subscribe();
    let up = readiness.wait_for(|now| format!("{now:?}").contains("workers not connected"));
    timeout(DEADLINE, up).await.expect("it is there").unwrap();
    stage.lose_detokenizer().await;
    // The tokenizer refuses one, and the scheduler another, for want of workers.
    let rejected = Rejected { key: Some(RequestKey { gateway: 1, number: 4 }), failure: Some(Failure::default()) };
    stage.send(inbound::Event::Rejected(rejected)).await;
    stage.ask(5, 3).await;
    // What a worker is told comes from the same loop as what becomes of those two.
    let mut worker = stage.worker(0, 1).await;
    timeout(DEADLINE, worker.link.receiver.recv()).await.expect("a group is to form").unwrap();
    stage.next_detokenizer().await;
    let mut told = Vec::new();
    while told.len() < 2 {
        told.extend(stage.output().await.failed.into_iter().filter_map(|failed| Some(failed.key?.number)));
    }
    told.sort_unstable();
    assert_eq!(told, [4, 5]);
}

/// What is written to a link is not yet heard: the other end may be dead already, and the gateways at the next one.
#[tokio::test]
async fn what_ended_unheard_is_told_to_the_next_detokenizer() {
    for kind in [Address::Ring, Address::GrpcUnix] {
        let mut stage = stage_over(kind, &[]).await;
        let mut worker = stage.worker(0, 1).await;
        worker.form().await;
        stage.ready().await;
        let serving = tokio::spawn(async move {
            loop {
                worker.step().await;
            }
        });
        // One is heard of, another is not, and the next one ends before it has begun.
        for number in [1, 2] {
            stage.ask(number, 1).await;
            let (_, ended) = stage.until_end().await;
            assert_eq!(ended.finished.len(), 1);
            if number == 1 {
                let heard = DetokenizerReply { batches: stage.heard, ..DetokenizerReply::default() };
                stage.detokenizer.as_mut().unwrap().sender.send(&heard).await.unwrap();
            }
        }
        stage.ask(3, 9999).await;
        assert_eq!(stage.until_end().await.1.failed.len(), 1);
        stage.lose_detokenizer().await;
        stage.next_detokenizer().await;
        let mut told = Vec::new();
        while told.len() < 2 {
            told.extend(stage.output().await.failed);
        }
        let number = |failed: &proto::Failed| failed.key.unwrap().number;
        assert_eq!(told.iter().map(number).collect::<Vec<_>>(), [2, 3]);
        let kinds = told.iter().map(|failed| failed.failure.as_ref().unwrap().kind());
        assert_eq!(kinds.collect::<Vec<_>>(), [Kind::Unavailable, Kind::Invalid]);
        serving.abort();
    }
}

#[tokio::test]
async fn output_of_any_size_is_told_in_messages_that_fit() {
    let mut stage = stage(&[]).await;
    let mut worker = stage.worker_of(spacious()).await;
    worker.form().await;
    stage.ready().await;
    // None of them runs, as the first step is never done.
    for number in 0..30 {
        let mut request = request(number, 3);
        let ids = vec![500; 200_000];
        request.prompt.as_mut().unwrap().kind = Some(prompt::Kind::Ids(TokenIds { ids }));
        request.output = Some(Output { return_prompt_token_ids: true, ..Output::default() });
        stage.send(inbound::Event::Request(request)).await;
    }
    stage.send(inbound::Event::GatewayGone(GatewayGone { gateway: 1 })).await;
    let (mut started, mut finished) = (0, 0);
    while finished < 30 {
        let batch = stage.output().await;
        started += batch.started.len();
        finished += batch.finished.len();
        assert!(finished <= started && batch.failed.is_empty());
    }
    assert!(stage.process.status.is_ready());
}

/// Every choice is a sequence of its own to the workers, with the whole prompt: all at once they would be no message.
#[tokio::test]
async fn a_long_prompt_may_have_many_choices() {
    let mut stage = stage(&[]).await;
    let mut worker = stage.worker_of(spacious()).await;
    worker.form().await;
    stage.ready().await;
    let mut request = request(1, 1);
    request.n = 30;
    request.prompt.as_mut().unwrap().kind = Some(prompt::Kind::Ids(TokenIds { ids: vec![500; 200_000] }));
    stage.send(inbound::Event::Request(request)).await;
    let serving = tokio::spawn(async move {
        loop {
            worker.step().await;
        }
    });
    let mut finished = 0;
    while finished < 30 {
        let batch = stage.output().await;
        assert_eq!(batch.failed, []);
        finished += batch.finished.len();
    }
    serving.abort();
}

#[tokio::test]
async fn a_lost_worker_fails_what_runs_and_the_group_forms_again() {
    let mut stage = stage(&["--tensor-parallel-size=2"]).await;
    let mut first = stage.worker(0, 2).await;
    let mut second = stage.worker(1, 2).await;
    first.form().await;
    second.form().await;
    stage.ready().await;
    stage.ask(1, 100).await;
    first.step().await;
    second.step().await;
    second.send(from_worker::Event::Failed(WorkerFailed { reason: "its GPU broke".to_owned() })).await;
    drop(second);
    let (_, last) = stage.until_end().await;
    let failure = last.failed[0].failure.as_ref().unwrap();
    assert_eq!(failure.kind(), Kind::Unavailable);
    assert!(failure.message.contains("its GPU broke"), "{}", failure.message);
    assert!(!stage.process.status.is_ready());
    // Who comes now is told the same.
    stage.ask(9, 1).await;
    let refused = stage.output().await.failed.remove(0).failure.unwrap();
    assert!(refused.message.contains("its GPU broke"), "{}", refused.message);

    // The survivor may still have plans of the old epoch before it is hung up on.
    while let Ok(message) = timeout(DEADLINE, first.link.receiver.recv()).await.expect("in time") {
        assert!(matches!(message.command, Some(to_worker::Command::Step(plan)) if plan.epoch == first.epoch));
    }
    let mut first = stage.worker(0, 2).await;
    let mut second = stage.worker(1, 2).await;
    first.form().await;
    second.form().await;
    stage.ready().await;
    stage.ask(2, 1).await;
    first.step().await;
    second.step().await;
    let (tokens, _) = stage.until_end().await;
    assert_eq!(tokens, [1]);
}

#[tokio::test]
async fn an_abort_frees_everything() {
    let mut stage = stage(&[]).await;
    let mut worker = stage.worker(0, 1).await;
    worker.form().await;
    stage.ready().await;
    stage.ask(1, 400).await;
    worker.step().await;
    stage.send(inbound::Event::Abort(Abort { key: Some(RequestKey { gateway: 1, number: 1 }) })).await;
    let (_, last) = stage.until_end().await;
    assert_eq!(last.finished[0].reason(), proto::FinishReason::Abort);
    assert!(stage.process.metrics.text().contains("vllm:num_requests_running{model_name=\"default\",engine=\"0\"} 0"));
}

#[tokio::test]
async fn broken_results_fail_requests_and_not_the_process() {
    let mut stage = stage(&[]).await;
    let mut worker = stage.worker(0, 1).await;
    worker.form().await;
    stage.ready().await;
    stage.ask(1, 10).await;
    let plan = worker.plan().await;
    let result = StepResult { epoch: plan.epoch, step: plan.step + 5, ..StepResult::default() };
    worker.send(from_worker::Event::Result(result)).await;
    let (_, last) = stage.until_end().await;
    assert_eq!(last.failed.len(), 1);
    // The worker was dropped; a new one is welcome.
    let mut worker = stage.worker(0, 1).await;
    worker.form().await;
    stage.ready().await;
}
