//! The fake scheduler: forms groups and sends plans written by hand.

use std::time::Duration;

use link::{Address, Link, LinkOptions, Listener};
use proto::{
    FormGroup, FromWorker, NewSequence, Sampling, StepPlan, StepResult, ToWorker, Want, WorkerReady,
    from_worker::Event, to_worker::Command,
};
use tempfile::TempDir;
use tokio::time::timeout;

/// Longer than anything takes: whoever waits for it has failed.
const DEADLINE: Duration = Duration::from_secs(60);
pub const BLOCK_SIZE: usize = 16;
/// Blocks of a sequence that [`sequence`] makes.
const BLOCKS: u32 = 8;

/// A worker's link and what it said when it came.
pub struct Rank {
    link: Link<ToWorker, FromWorker>,
    pub ready: WorkerReady,
}

/// The scheduler's side of the `steps` channel.
pub struct Scheduler {
    pub address: Address,
    listener: Listener,
    pub ranks: Vec<Rank>,
    pub epoch: u64,
    /// What groups are told of the time that a step may take; 0: any time.
    pub step_timeout_ms: u64,
    /// Messages with results that came so far.
    pub parts: usize,
    _dir: TempDir,
}

impl Scheduler {
    pub async fn bind() -> Self {
        Self::bind_with(LinkOptions::default()).await
    }

    pub async fn bind_with(options: LinkOptions) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let address = Address::Ring(dir.path().join("steps"));
        let hello = link::hello("scheduler-svc", "steps", "");
        let listener = Listener::bind(&address, hello, options).await.unwrap();
        Self { address, listener, ranks: Vec::new(), epoch: 100, step_timeout_ms: 0, parts: 0, _dir: dir }
    }

    /// Waits until `count` more workers are connected and loaded.
    pub async fn meet(&mut self, count: usize) {
        for _ in 0..count {
            let mut link: Link<ToWorker, FromWorker> =
                timeout(DEADLINE, self.listener.accept()).await.expect("a worker dials").unwrap();
            assert_eq!(link.peer.service, "worker-svc");
            let ready = loop {
                match event(&mut link).await {
                    Event::Loading(loading) => assert!(loading.bytes_done <= loading.bytes_total),
                    Event::Ready(ready) => break ready,
                    other => panic!("{other:?} before ready"),
                }
            };
            assert_eq!(ready.rank, link.peer.rank);
            self.ranks.push(Rank { link, ready });
        }
        self.ranks.sort_by_key(|rank| rank.ready.rank);
    }

    /// Forms the next epoch and waits until all ranks say so.
    pub async fn form(&mut self) {
        self.epoch += 1;
        let num_blocks = self.ranks.iter().map(|rank| rank.ready.num_blocks).min().unwrap();
        let form = FormGroup {
            epoch: self.epoch,
            world_size: self.ranks.len() as u32,
            num_blocks,
            max_num_seqs: 8,
            max_num_batched_tokens: 2048,
            rendezvous: format!("worker-test-{}-{}", self.address, self.epoch),
            step_timeout_ms: self.step_timeout_ms,
            ..FormGroup::default()
        };
        self.broadcast(&Command::FormGroup(form)).await;
        for rank in 0..self.ranks.len() {
            match self.event(rank).await {
                Event::Formed(formed) => assert_eq!(formed.epoch, self.epoch),
                other => panic!("{other:?} instead of formed"),
            }
        }
    }

    /// Sends a plan of the current epoch to every rank.
    pub async fn send(&mut self, plan: StepPlan) {
        self.broadcast(&Command::Step(StepPlan { epoch: self.epoch, ..plan })).await;
    }

    /// The step's result from rank 0, after every rank's answer.
    pub async fn result(&mut self, step: u64) -> StepResult {
        let mut result = None;
        for rank in 0..self.ranks.len() {
            let answer = self.whole_result(rank).await;
            assert_eq!((answer.epoch, answer.step), (self.epoch, step));
            if rank == 0 {
                result = Some(answer);
            } else {
                assert!(answer.slot.is_empty() && answer.token.is_empty(), "only rank 0 sends rows");
            }
        }
        result.unwrap()
    }

    /// A rank's next result, put together of its parts.
    async fn whole_result(&mut self, rank: usize) -> StepResult {
        let mut whole = StepResult { more: true, ..StepResult::default() };
        while whole.more {
            let Event::Result(mut part) = self.event(rank).await else { panic!("no result") };
            part.logprobs.splice(..0, whole.logprobs);
            part.prompt_logprobs.splice(..0, whole.prompt_logprobs);
            whole = part;
            self.parts += 1;
        }
        whole
    }

    pub async fn run(&mut self, plan: StepPlan) -> StepResult {
        let step = plan.step;
        self.send(plan).await;
        self.result(step).await
    }

    pub async fn send_to(&mut self, rank: usize, command: Command) {
        self.ranks[rank].link.sender.send(&ToWorker { command: Some(command) }).await.unwrap();
    }

    pub async fn event(&mut self, rank: usize) -> Event {
        event(&mut self.ranks[rank].link).await
    }

    /// What the worker says until its link ends, which it must do.
    pub async fn until_hung_up(&mut self, rank: usize) -> Vec<Event> {
        let mut words = Vec::new();
        let receiver = &mut self.ranks[rank].link.receiver;
        while let Ok(message) = timeout(DEADLINE, receiver.recv()).await.expect("the link ends") {
            words.extend(message.event);
        }
        words
    }

    async fn broadcast(&mut self, command: &Command) {
        for rank in 0..self.ranks.len() {
            self.send_to(rank, command.clone()).await;
        }
    }

    /// Runs sequences side by side until each has `count` new tokens: prompts in chunks, then one token a step, each
    /// plan sent before the answer to the one before it is there.
    pub async fn generate(&mut self, sequences: Vec<NewSequence>, count: usize, chunk: usize) -> Vec<Vec<u32>> {
        let mut plans = Vec::new();
        let longest = sequences.iter().map(|sequence| sequence.tokens.len()).max().unwrap();
        for start in (0..longest).step_by(chunk) {
            let mut plan = StepPlan::default();
            for sequence in sequences.iter().filter(|sequence| sequence.tokens.len() > start) {
                let len = chunk.min(sequence.tokens.len() - start);
                let sample = start + len == sequence.tokens.len();
                row(&mut plan, sequence.slot, start, len, sample);
            }
            plans.push(plan);
        }
        plans[0].added.clone_from(&sequences);
        // Short prompts decode while long ones are still prefilled in the real scheduler; here they wait.
        for token in 0..count - 1 {
            let mut plan = StepPlan::default();
            for sequence in &sequences {
                row(&mut plan, sequence.slot, sequence.tokens.len() + token, 1, true);
            }
            plans.push(plan);
        }
        let steps = plans.len();
        let mut tokens = vec![Vec::new(); sequences.len()];
        let mut waiting = plans.into_iter().zip(1..).map(|(plan, step)| StepPlan { step, ..plan });
        self.send(waiting.next().unwrap()).await;
        for step in 1..=steps as u64 {
            if let Some(ahead) = waiting.next() {
                self.send(ahead).await;
            }
            let result = self.result(step).await;
            for (slot, token) in result.slot.iter().zip(&result.token) {
                let place = sequences.iter().position(|sequence| sequence.slot == *slot).unwrap();
                tokens[place].push(*token);
            }
        }
        let removed = sequences.iter().map(|sequence| sequence.slot).collect();
        self.run(StepPlan { step: steps as u64 + 1, removed, ..StepPlan::default() }).await;
        tokens
    }
}

async fn event(link: &mut Link<ToWorker, FromWorker>) -> Event {
    let message = timeout(DEADLINE, link.receiver.recv()).await.expect("the worker speaks").expect("the link lives");
    message.event.expect("an event")
}

/// Appends a row.
pub fn row(plan: &mut StepPlan, slot: u32, start: usize, len: usize, sample: bool) {
    plan.slot.push(slot);
    plan.start.push(start as u32);
    plan.num_tokens.push(len as u32);
    plan.want.push(if sample { Want::Sample } else { Want::None }.into());
}

/// A new sequence with room for 128 tokens in blocks that lie apart.
pub fn sequence(slot: u32, prompt: &[u32], sampling: Sampling) -> NewSequence {
    NewSequence {
        slot,
        tokens: prompt.to_vec(),
        num_prompt_tokens: prompt.len() as u32,
        blocks: (0..BLOCKS).map(|i| (i * 8 + slot) ^ 1).collect(),
        sampling: Some(sampling),
        seed: 7,
        request_id: format!("test-{slot}"),
        traceparent: String::new(),
        ..NewSequence::default()
    }
}

/// A greedy one.
pub fn greedy(slot: u32, prompt: &[u32]) -> NewSequence {
    sequence(slot, prompt, Sampling::default())
}
