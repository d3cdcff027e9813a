//! Who is taken into the group, who is refused, and what becomes of a group in which somebody hangs. Over rings and
//! over gRPC.

use std::{path::PathBuf, time::Duration};

use link::Address;
use proto::{
    CacheGroup, DeviceKind, Failure, Setting, WorkerLoading, WorkerReady, failure::Kind, from_worker,
    worker_refused::Cause,
};
use service_kit::Readiness;
use tokio::{
    task::{JoinHandle, JoinSet},
    time::timeout,
};

use crate::{
    relay::Relay,
    stage::{DEADLINE, Stage, Worker, ready, stage, stage_over},
};

const KINDS: [fn(PathBuf) -> Address; 2] = [Address::Ring, Address::GrpcUnix];

impl Stage {
    /// A ready worker process.
    async fn process(&self, instance: u64, ready: WorkerReady) -> Worker {
        let mut worker = Worker::dial(&self.steps, instance, ready.rank).await;
        worker.send(from_worker::Event::Ready(ready)).await;
        worker
    }

    /// A group of one that serves.
    async fn serving(&self, instance: u64) -> JoinHandle<()> {
        let worker = self.process(instance, ready(0, 1)).await;
        let living = tokio::spawn(worker.live());
        self.ready().await;
        living
    }

    /// Why requests fail now.
    async fn failure(&mut self) -> Failure {
        let (_, batch) = self.until_end().await;
        let failure = batch.failed[0].failure.clone().unwrap();
        assert_eq!(failure.kind(), Kind::Unavailable);
        failure
    }

    async fn answers(&mut self, number: u64) {
        self.ask(number, 2).await;
        let (tokens, batch) = self.until_end().await;
        assert_eq!((tokens.len(), batch.failed.len()), (2, 0));
    }

    /// Waits until it says why it cannot serve.
    async fn not_ready_because(&self, words: &str) {
        let mut readiness = self.process.status.subscribe();
        let said =
            readiness.wait_for(|now| matches!(now, Readiness::NotReady { reason, .. } if reason.contains(words)));
        let said = timeout(DEADLINE, said).await.map(drop);
        assert!(said.is_ok(), "{words:?} is not in {:?}", self.process.status.readiness());
    }
}

#[track_caller]
fn says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
}

#[tokio::test]
async fn a_second_worker_of_a_rank_is_refused_while_the_first_answers() {
    for kind in KINDS {
        let mut stage = stage_over(kind, &[]).await;
        let living = stage.serving(1).await;
        let mut readiness = stage.process.status.subscribe();
        readiness.mark_unchanged();
        for (number, instance) in (2..6).enumerate() {
            // One that loads still is refused as well as one that is ready.
            let mut second = Worker::dial(&stage.steps, instance, 0).await;
            let event = if instance % 2 == 0 {
                from_worker::Event::Ready(ready(0, 1))
            } else {
                let half =
                    WorkerLoading { bytes_done: 1, bytes_total: 2, phase: "weights".into(), ..Default::default() };
                from_worker::Event::Loading(half)
            };
            second.send(event).await;
            let refused = second.refusal().await;
            assert_eq!(refused.cause(), Cause::RankTaken);
            says(&refused.reason, &["rank 0 is already served by worker 0000000000000001", "--rank"]);
            stage.answers(number as u64).await;
        }
        assert!(!readiness.has_changed().unwrap(), "it was ready all the time");
        living.abort();
    }
}

/// Two workers that came and went in turn would serve nobody: of many at a time, one stays.
#[tokio::test]
async fn of_many_workers_of_a_rank_one_serves() {
    for kind in KINDS {
        let mut stage = stage_over(kind, &[]).await;
        let mut workers: Vec<Worker> = Vec::new();
        for instance in 1..8 {
            workers.push(stage.process(instance, ready(0, 1)).await);
        }
        // The scheduler takes links as they come, over gRPC in any order: the others are told, whoever came first.
        let mut told: JoinSet<_> = workers.into_iter().map(Worker::refused_or_living).collect();
        stage.ready().await;
        stage.answers(1).await;
        while told.len() > 1 {
            let refused = timeout(DEADLINE, told.join_next()).await.expect("all but one are told in time").unwrap();
            assert_eq!(refused.unwrap().cause(), Cause::RankTaken);
        }
        stage.answers(2).await;
    }
}

/// The present worker's process is there, but stopped: it neither ends nor answers.
#[tokio::test]
async fn a_worker_that_does_not_answer_loses_its_rank_to_one_that_asks_for_it() {
    for kind in KINDS {
        let mut stage = stage_over(kind, &[]).await;
        let mut stopped = stage.process(1, ready(0, 1)).await;
        stopped.form().await;
        stage.ready().await;
        stage.ask(1, 100).await;
        let second = tokio::spawn(stage.process(2, ready(0, 1)).await.live());
        says(&stage.failure().await.message, &["worker 0 was lost", "does not answer", "another worker"]);
        stage.ready().await;
        stage.answers(2).await;
        // The first one goes on, and finds itself hung up on.
        while timeout(DEADLINE, stopped.link.receiver.recv()).await.expect("hung up in time").is_ok() {}
        let refused = stage.process(1, ready(0, 1)).await.refusal().await;
        assert_eq!(refused.cause(), Cause::RankTaken);
        second.abort();
    }
}

/// The present worker lives, but not a byte of it gets through, and no connection ends.
#[tokio::test]
async fn a_worker_behind_a_dead_network_loses_its_rank_to_one_that_asks_for_it() {
    let mut stage = stage_over(Address::GrpcUnix, &[]).await;
    let relay = Relay::to(&stage.steps, "relay");
    let mut first = Worker::dial(&relay.address, 1, 0).await;
    first.send(from_worker::Event::Ready(ready(0, 1))).await;
    let cut_off = tokio::spawn(first.live());
    stage.ready().await;
    stage.answers(1).await;
    relay.go_silent();
    stage.ask(2, 100).await;
    let second = tokio::spawn(stage.process(2, ready(0, 1)).await.live());
    says(&stage.failure().await.message, &["worker 0 was lost", "does not answer"]);
    stage.ready().await;
    stage.answers(3).await;
    assert!(!cut_off.is_finished());
    second.abort();
}

/// A process has one link: that it dials again says that the other is over, however it looks.
#[tokio::test]
async fn a_worker_that_dials_again_has_its_rank_at_once() {
    for kind in KINDS {
        let mut stage = stage_over(kind, &[]).await;
        let mut first = stage.process(1, ready(0, 1)).await;
        first.form().await;
        stage.ready().await;
        stage.ask(1, 100).await;
        let again = tokio::spawn(stage.process(1, ready(0, 1)).await.live());
        says(&stage.failure().await.message, &["worker 0 was lost", "dialled again"]);
        stage.ready().await;
        stage.answers(2).await;
        again.abort();
    }
}

/// Rank 0 of two is there as it should be; what a rank 1 is told that differs in one thing.
async fn misfit(change: impl FnOnce(&mut WorkerReady)) -> String {
    let stage = stage(&["--tensor-parallel-size=2", "--max-num-batched-tokens=2048"]).await;
    let usual = |rank| WorkerReady {
        device_kind: DeviceKind::Cuda.into(),
        dtype: "bfloat16".into(),
        max_num_batched_tokens: 4096,
        cache_groups: vec![CacheGroup { layers: 8, window: 0, bytes_per_token: 64 }],
        settings: vec![Setting { name: "--load-format".into(), value: "auto".into() }],
        ..ready(rank, 2)
    };
    let _zero = stage.process(1, usual(0)).await;
    stage.not_ready_because("1 of 2 workers not connected: rank 1").await;
    let mut other = usual(1);
    change(&mut other);
    let mut one = Worker::dial(&stage.steps, 2, 1).await;
    one.send(from_worker::Event::Ready(other)).await;
    let refused = one.refusal().await;
    assert_eq!(refused.cause(), Cause::Misfit);
    // Both sides say it.
    stage.not_ready_because(&refused.reason).await;
    refused.reason
}

#[tokio::test]
async fn ranks_that_differ_are_refused_with_both_values() {
    let check = async |words: &[&str], change: fn(&mut WorkerReady)| {
        let reason = misfit(change).await;
        says(&reason, words);
        says(&reason, &["rank 1"]);
    };
    check(&["--tensor-parallel-size 4", "the scheduler has 2"], |ready| ready.world_size = 4).await;
    check(&["it is rank 0"], |ready| ready.rank = 0).await;
    check(&["512 tokens", "--max-num-batched-tokens", "2048"], |ready| ready.max_num_batched_tokens = 512).await;
    check(&["--max-num-batched-tokens 8192", "rank 0 has 4096"], |ready| ready.max_num_batched_tokens = 8192).await;
    check(&["--dtype float32", "rank 0 has bfloat16"], |ready| ready.dtype = "float32".into()).await;
    check(&["--device cpu", "rank 0 has cuda"], |ready| ready.device_kind = DeviceKind::Cpu.into()).await;
    check(&["--block-size 32", "rank 0 has 16"], |ready| ready.block_size = 32).await;
    check(&["vocabulary of 9", "rank 0 has 1000"], |ready| ready.vocab_size = 9).await;
    check(&["longest sequence of 64", "rank 0 has 512"], |ready| ready.max_model_len = 64).await;
    check(&["end tokens [7]", "rank 0 has [999]"], |ready| ready.eos_token_ids = vec![7]).await;
    check(&["--pipeline-parallel-size 2", "the scheduler has 1"], |ready| ready.stages = 2).await;
    check(&["KV cache groups window 4", "rank 0 has all tokens;"], |ready| ready.cache_groups[0].window = 4).await;
    check(&["recurrent state yes", "rank 0 has no"], |ready| ready.state_bytes = 1).await;
    check(&["recurrent state yes", "rank 0 has no"], |ready| ready.recurrent = true).await;
    check(&["--load-format dummy", "rank 0 has auto"], |ready| ready.settings[0].value = "dummy".into()).await;
    check(&["--load-format nothing of the kind", "rank 0 has auto"], |ready| ready.settings.clear()).await;
}

#[tokio::test]
async fn steps_are_as_large_as_the_workers_suggest() {
    let formed = async |flags: &[&str]| {
        let stage = stage(flags).await;
        let mut worker = Worker::dial(&stage.steps, 1, 0).await;
        let offer = WorkerReady { max_num_seqs: 600, max_num_batched_tokens: 5000, ..ready(0, 1) };
        worker.send(from_worker::Event::Ready(offer)).await;
        let proto::to_worker::Command::FormGroup(form) = worker.command().await else { panic!("a group forms") };
        (form.max_num_seqs, form.max_num_batched_tokens)
    };
    assert_eq!(formed(&[]).await, (600, 5000));
    assert_eq!(formed(&["--max-num-seqs=7"]).await, (7, 5000));
    assert_eq!(formed(&["--max-num-batched-tokens=1K"]).await, (600, 1024));
}

#[tokio::test]
async fn ranks_of_different_models_are_refused_though_the_scheduler_knows_neither() {
    let stage = stage(&["--tensor-parallel-size=2"]).await;
    let dial = async |rank, model| {
        let hello = proto::Hello { rank, instance: rank.into(), ..link::hello("worker-svc", "steps", model) };
        let link = link::connect(&stage.steps, hello, &link::LinkOptions::default()).await.unwrap();
        let mut worker = Worker { link, epoch: 0, rank };
        worker.send(from_worker::Event::Ready(ready(rank, 2))).await;
        worker
    };
    let _zero = dial(0, "aaaa").await;
    stage.not_ready_because("1 of 2 workers not connected: rank 1").await;
    says(&dial(1, "bbbb").await.refusal().await.reason, &["rank 1 has the model bbbb", "rank 0 has aaaa"]);
}

#[tokio::test]
async fn a_rank_that_does_not_belong_here_is_refused_at_once() {
    let stage = stage(&[]).await;
    let refused = Worker::dial(&stage.steps, 1, 3).await.refusal().await;
    assert_eq!(refused.cause(), Cause::Misfit);
    says(&refused.reason, &["rank 3", "--tensor-parallel-size 1"]);
}

#[tokio::test]
async fn workers_may_not_change_what_the_engine_was_made_for() {
    let mut stage = stage(&[]).await;
    let living = stage.serving(1).await;
    stage.answers(1).await;
    living.abort();
    stage.not_ready_because("worker 0 was lost").await;
    let refused = stage.process(2, WorkerReady { block_size: 32, ..ready(0, 1) }).await.refusal().await;
    says(&refused.reason, &["rank 0 has --block-size 32", "has run with 16", "start the scheduler again"]);
    stage.serving(3).await;
    stage.answers(2).await;
}

/// A stage of two ranks with a deadline for steps, and what they do with the first one.
async fn hung(kind: fn(PathBuf) -> Address) -> (Stage, Worker, Worker) {
    let mut stage =
        stage_over(kind, &["--tensor-parallel-size=2", "--step-timeout=0.2", "--async-scheduling=false"]).await;
    let (mut zero, mut one) = (stage.process(1, ready(0, 2)).await, stage.process(2, ready(1, 2)).await);
    zero.form().await;
    one.form().await;
    stage.ready().await;
    stage.ask(1, 100).await;
    (stage, zero, one)
}

/// The next two workers serve.
async fn forms_anew(mut stage: Stage) {
    let zero = tokio::spawn(stage.process(3, ready(0, 2)).await.live());
    let one = tokio::spawn(stage.process(4, ready(1, 2)).await.live());
    stage.ready().await;
    stage.answers(9).await;
    zero.abort();
    one.abort();
}

#[tokio::test]
async fn a_rank_that_does_not_answer_is_named() {
    for kind in KINDS {
        let (mut stage, mut zero, _one) = hung(kind).await;
        zero.plan().await;
        let ping = zero.ping().await;
        zero.pong(ping, |_| {}).await;
        let failure = stage.failure().await.message;
        says(&failure, &["worker 1 does not answer, and step 1 is not done after 0.2 s"]);
        stage.not_ready_because("worker 1 does not answer").await;
        assert!(timeout(DEADLINE, zero.link.receiver.recv()).await.expect("hung up in time").is_err());
        forms_anew(stage).await;
    }
}

#[tokio::test]
async fn those_that_end_with_a_hung_rank_do_not_hide_it() {
    let (mut stage, mut zero, one) = hung(Address::Ring).await;
    zero.plan().await;
    let ping = zero.ping().await;
    zero.pong(ping, |_| {}).await;
    stage.failure().await;
    // The process that waited for it ends, and so does the one in its place.
    for instance in [3, 4] {
        drop(stage.process(instance, ready(0, 2)).await);
        stage.not_ready_because("worker 0 was lost").await;
        stage.not_ready_because("worker 1 does not answer").await;
    }
    drop((zero, one));
    let (mut zero, mut one) = (stage.process(5, ready(0, 2)).await, stage.process(6, ready(1, 2)).await);
    zero.form().await;
    one.form().await;
    stage.ready().await;
}

#[tokio::test]
async fn a_rank_that_another_one_waits_for_is_named() {
    let (mut stage, mut zero, mut one) = hung(Address::Ring).await;
    zero.plan().await;
    one.plan().await;
    let (first, second) = (zero.ping().await, one.ping().await);
    zero.pong(first, |pong| pong.waits_for = vec![1]).await;
    one.pong(second, |_| {}).await;
    says(&stage.failure().await.message, &["worker 1 has not finished step 1 within 0.2 s"]);
    forms_anew(stage).await;
}

#[tokio::test]
async fn ranks_that_finish_nothing_are_named() {
    let (mut stage, mut zero, mut one) = hung(Address::Ring).await;
    zero.plan().await;
    one.plan().await;
    let (first, second) = (zero.ping().await, one.ping().await);
    zero.pong(first, |_| {}).await;
    one.pong(second, |_| {}).await;
    says(&stage.failure().await.message, &["workers 0 and 1 have not finished step 1 within 0.2 s"]);
    forms_anew(stage).await;
}

/// However long that takes.
#[tokio::test]
async fn steps_wait_for_kernels_that_are_compiled() {
    let (mut stage, mut zero, mut one) = hung(Address::Ring).await;
    let (plan, other) = (zero.plan().await, one.plan().await);
    for _ in 0..5 {
        let (first, second) = (zero.ping().await, one.ping().await);
        zero.pong(first, |_| {}).await;
        one.pong(second, |pong| pong.compiling = true).await;
    }
    zero.answer(plan).await;
    one.answer(other).await;
    let living = [tokio::spawn(zero.live()), tokio::spawn(one.live())];
    let (tokens, batch) = stage.until_end().await;
    assert_eq!((tokens.len(), batch.failed.len()), (100, 0));
    living.iter().for_each(JoinHandle::abort);
}

#[tokio::test]
async fn a_step_timeout_is_told_to_the_workers() {
    let stage = stage(&["--step-timeout=7"]).await;
    let mut worker = stage.process(1, ready(0, 1)).await;
    let proto::to_worker::Command::FormGroup(form) = worker.command().await else { panic!("a group forms") };
    assert_eq!(Duration::from_millis(form.step_timeout_ms), Duration::from_secs(7));
}
