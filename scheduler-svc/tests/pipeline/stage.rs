//! The fake peers: a tokenizer, a detokenizer, and workers that count.

use std::{path::PathBuf, time::Duration};

use link::{Address, Link, LinkOptions, Listener};
use proto::{
    AdapterLoaded, AdapterPlaced, DetokenizerReply, EngineReport, FromWorker, GroupFormed, Hello, Inbound, Output,
    Ping, Pong, Prompt, Request, RequestKey, Sampling, StepPlan, StepResult, ToWorker, TokenBatch, TokenIds, Want,
    WorkerReady, WorkerRefused, from_worker, inbound, prompt, to_worker,
};
use service_kit::{Process, parse_flags};
use tempfile::TempDir;
use tokio::{task::JoinHandle, time::timeout};

pub const DEADLINE: Duration = Duration::from_secs(20);

/// A scheduler with a tokenizer and a detokenizer at its sides.
pub struct Stage {
    _dir: TempDir,
    /// Where the detokenizer listens.
    pub tokens: Address,
    /// Where the scheduler listens for workers.
    pub steps: Address,
    pub process: Process,
    /// The scheduler.
    pub serving: JoinHandle<anyhow::Result<()>>,
    pub tokenizer: Link<Inbound, EngineReport>,
    /// Absent while it is lost.
    pub detokenizer: Option<Link<DetokenizerReply, TokenBatch>>,
    /// Where it is found; absent meanwhile too.
    pub listener: Option<Listener>,
    /// Batches that it has had.
    pub heard: u64,
}

pub fn address(dir: &TempDir, name: &str) -> Address {
    Address::Ring(dir.path().join(name))
}

pub async fn detokenizer_at(address: &Address) -> Listener {
    let hello = link::hello("detokenizer-svc", "tokens", "");
    Listener::bind(address, hello, LinkOptions::default()).await.unwrap()
}

pub async fn stage(flags: &[&str]) -> Stage {
    stage_over(Address::Ring, flags).await
}

/// A stage whose links to detokenizer and workers are of a certain kind.
pub async fn stage_over(kind: fn(PathBuf) -> Address, flags: &[&str]) -> Stage {
    let dir = tempfile::tempdir().unwrap();
    let (tokens, steps) = (kind(dir.path().join("tokens")), kind(dir.path().join("steps")));
    let mut listener = detokenizer_at(&tokens).await;
    let mut args = vec!["scheduler".to_owned(), format!("--detokenizer={tokens}")];
    args.push(format!("--listen-requests={}", address(&dir, "requests")));
    args.push(format!("--listen-workers={steps}"));
    args.extend(flags.iter().map(|flag| (*flag).to_owned()));
    let process = Process::new("scheduler-svc");
    let serving = tokio::spawn(scheduler_svc::serve(parse_flags(args).expect("flags"), process.clone()));
    let detokenizer = Some(listener.accept().await.unwrap());
    let hello = link::hello("tokenizer-svc", "requests", "");
    let tokenizer = link::redial(&address(&dir, "requests"), hello, &LinkOptions::default()).await;
    Stage { _dir: dir, tokens, steps, process, serving, tokenizer, detokenizer, listener: Some(listener), heard: 0 }
}

pub fn ready(rank: u32, world_size: u32) -> WorkerReady {
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
pub fn spacious() -> WorkerReady {
    WorkerReady { num_blocks: 1 << 20, max_model_len: 1 << 20, ..ready(0, 1) }
}

pub fn request(number: u64, max_tokens: u32) -> Request {
    Request {
        key: Some(RequestKey { gateway: 1, number }),
        request_id: format!("cmpl-{number}"),
        prompt: Some(Prompt { kind: Some(prompt::Kind::Ids(TokenIds { ids: vec![1, 2, 3] })), ..Prompt::default() }),
        sampling: Some(Sampling { repetition_penalty: 1.0, top_p: 1.0, ..Sampling::default() }),
        output: Some(Output::default()),
        n: 1,
        max_tokens: Some(max_tokens),
        ..Request::default()
    }
}

impl Stage {
    pub async fn worker(&self, rank: u32, world_size: u32) -> Worker {
        self.worker_of(ready(rank, world_size)).await
    }

    pub async fn worker_of(&self, ready: WorkerReady) -> Worker {
        let mut worker = Worker::dial(&self.steps, link::hello("", "", "").instance, ready.rank).await;
        worker.send(from_worker::Event::Ready(ready)).await;
        worker
    }

    pub async fn ready(&self) {
        let mut readiness = self.process.status.subscribe();
        let ready = readiness.wait_for(|now| *now == service_kit::Readiness::Ready);
        timeout(DEADLINE, ready).await.expect("ready in time").unwrap();
    }

    pub async fn ask(&mut self, number: u64, max_tokens: u32) {
        self.send(inbound::Event::Request(request(number, max_tokens))).await;
    }

    /// The detokenizer is lost; returns when the scheduler knows.
    pub async fn lose_detokenizer(&mut self) {
        (self.listener, self.detokenizer) = (None, None);
        let mut readiness = self.process.status.subscribe();
        let lost = readiness.wait_for(|now| format!("{now:?}").contains("detokenizer"));
        timeout(DEADLINE, lost).await.expect("the loss is noticed").unwrap();
    }

    pub async fn next_detokenizer(&mut self) {
        let mut listener = detokenizer_at(&self.tokens).await;
        self.detokenizer = Some(timeout(DEADLINE, listener.accept()).await.expect("it dials again").unwrap());
        self.listener = Some(listener);
    }

    pub async fn send(&mut self, event: inbound::Event) {
        self.tokenizer.sender.send(&Inbound { event: Some(event) }).await.unwrap();
    }

    /// The detokenizer says that it has taken in all that it has had.
    pub async fn confirm(&mut self) {
        let heard = DetokenizerReply { batches: self.heard, ..DetokenizerReply::default() };
        self.detokenizer.as_mut().expect("a detokenizer").sender.send(&heard).await.unwrap();
    }

    /// What the engine reports next to a tokenizer that watches.
    pub async fn report(&mut self) -> EngineReport {
        timeout(DEADLINE, self.tokenizer.receiver.recv()).await.expect("a report in time").unwrap()
    }

    pub async fn output(&mut self) -> TokenBatch {
        self.heard += 1;
        let detokenizer = self.detokenizer.as_mut().expect("a detokenizer");
        timeout(DEADLINE, detokenizer.receiver.recv()).await.expect("output in time").unwrap()
    }

    /// Reads until something of the batch ends; the tokens and the batch that ended it.
    pub async fn until_end(&mut self) -> (Vec<u32>, TokenBatch) {
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
pub struct Worker {
    pub link: Link<FromWorker, ToWorker>,
    pub epoch: u64,
    pub rank: u32,
}

impl Worker {
    /// A process of its own, that has said nothing but its name.
    pub async fn dial(address: &Address, instance: u64, rank: u32) -> Self {
        let hello = Hello { rank, instance, ..link::hello("worker-svc", "steps", "") };
        let link = timeout(DEADLINE, link::redial(address, hello, &LinkOptions::default())).await.expect("it connects");
        Self { link, epoch: 0, rank }
    }

    /// What it is told next.
    pub async fn command(&mut self) -> to_worker::Command {
        let message = timeout(DEADLINE, self.link.receiver.recv()).await.expect("it is told in time");
        message.expect("the link lives").command.expect("a command")
    }

    /// Why it is refused; the scheduler hangs up after it.
    pub async fn refusal(&mut self) -> WorkerRefused {
        let refused = match self.command().await {
            to_worker::Command::Refused(refused) => refused,
            other => panic!("not refused: {other:?}"),
        };
        assert!(timeout(DEADLINE, self.link.receiver.recv()).await.expect("hung up in time").is_err());
        refused
    }

    /// Lives, and does what it is told, until it is hung up on.
    pub async fn live(mut self) {
        while let Ok(message) = self.link.receiver.recv().await {
            self.obey(message.command.expect("a command")).await;
        }
    }

    async fn obey(&mut self, command: to_worker::Command) {
        match command {
            to_worker::Command::Step(plan) => self.answer(plan).await,
            to_worker::Command::Ping(ping) => self.pong(ping, |_| {}).await,
            to_worker::Command::FormGroup(form) => {
                self.send(from_worker::Event::Formed(GroupFormed { epoch: form.epoch })).await;
            }
            to_worker::Command::LoadAdapter(load) => {
                let loaded = AdapterLoaded { adapter: load.adapter, ..AdapterLoaded::default() };
                self.send(from_worker::Event::AdapterLoaded(loaded)).await;
            }
            to_worker::Command::DropAdapter(_) => {}
            to_worker::Command::Refused(refused) => panic!("{refused:?}"),
        }
    }

    /// Lives like [`Self::live`] until it is refused.
    pub async fn refused_or_living(mut self) -> WorkerRefused {
        loop {
            match self.command().await {
                to_worker::Command::Refused(refused) => return refused,
                command => self.obey(command).await,
            }
        }
    }

    /// Answers a ping with what it says of itself.
    pub async fn pong(&mut self, Ping { number }: Ping, say: impl FnOnce(&mut Pong)) {
        let mut pong = Pong { number, ..Pong::default() };
        say(&mut pong);
        self.send(from_worker::Event::Pong(pong)).await;
    }

    pub async fn send(&mut self, event: from_worker::Event) {
        self.link.sender.send(&FromWorker { event: Some(event) }).await.unwrap();
    }

    pub async fn form(&mut self) {
        let command = self.command().await;
        let to_worker::Command::FormGroup(form) = command else { panic!("not a FormGroup: {command:?}") };
        assert!(form.epoch > self.epoch, "epochs grow");
        self.epoch = form.epoch;
        self.send(from_worker::Event::Formed(GroupFormed { epoch: self.epoch })).await;
    }

    pub async fn plan(&mut self) -> StepPlan {
        match self.command().await {
            to_worker::Command::Step(plan) => plan,
            other => panic!("not a plan: {other:?}"),
        }
    }

    pub async fn ping(&mut self) -> Ping {
        match self.command().await {
            to_worker::Command::Ping(ping) => ping,
            other => panic!("not a ping: {other:?}"),
        }
    }

    pub async fn step(&mut self) {
        let plan = self.plan().await;
        self.answer(plan).await;
    }

    pub async fn answer(&mut self, mut plan: StepPlan) {
        plan.restore();
        for load in &plan.adapters {
            let placed = AdapterPlaced { epoch: plan.epoch, slot: load.slot };
            self.send(from_worker::Event::AdapterPlaced(placed)).await;
        }
        let rows = plan.slot.iter().zip(plan.want());
        let slot: Vec<u32> = rows.filter(|(_, want)| *want == Want::Sample).map(|(slot, _)| *slot).collect();
        let token = vec![plan.step as u32; slot.len()];
        let (slot, token) = if self.rank == 0 { (slot, token) } else { Default::default() };
        let result = StepResult { epoch: plan.epoch, step: plan.step, slot, token, ..StepResult::default() };
        self.send(from_worker::Event::Result(result)).await;
    }
}
