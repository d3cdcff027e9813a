//! An engine that is told to end: it takes what is on its way, finishes what it has, and stays until all have heard so.

use std::time::Duration;

use proto::{DrainSeen, EngineReport, Inbound, StepPlan, Watch, engine_report::State, inbound};
use tokio::time::timeout;

use crate::stage::{DEADLINE, Stage, Worker, stage};

/// An engine whose tokenizer watches it.
async fn watched(flags: &[&str]) -> (Stage, Worker) {
    let mut stage = stage(flags).await;
    let mut worker = stage.worker(0, 1).await;
    worker.form().await;
    stage.ready().await;
    stage.send(inbound::Event::Watch(Watch {})).await;
    while stage.report().await.state() != State::Ready {}
    (stage, worker)
}

impl Stage {
    /// Tells it to end; the first report that says so.
    async fn told_to_end(&mut self) -> EngineReport {
        self.process.shutdown.cancel();
        loop {
            let report = self.report().await;
            if report.state() == State::Draining {
                return report;
            }
        }
    }

    async fn seen(&mut self, sequence: u64) {
        self.send(inbound::Event::DrainSeen(DrainSeen { sequence })).await;
    }

    /// Whether it still runs once it had the time to end.
    async fn stays(&mut self) -> bool {
        timeout(Duration::from_millis(200), &mut self.serving).await.is_err()
    }

    /// It ends, by the tokenizer's reading what it is still told.
    async fn ends(mut self) {
        let reading = async {
            while let Ok(report) = self.tokenizer.receiver.recv().await {
                let seen = inbound::Event::DrainSeen(DrainSeen { sequence: report.sequence });
                // It may have ended.
                let _ = self.tokenizer.sender.send(&Inbound { event: Some(seen) }).await;
            }
            std::future::pending().await
        };
        let ended = tokio::select! {
            ended = timeout(DEADLINE, self.serving) => ended,
            () = reading => unreachable!("it reads for ever"),
        };
        ended.expect("it ends in time").unwrap().expect("an orderly end");
    }
}

#[tokio::test]
async fn it_stays_until_all_have_heard_of_what_it_finished() {
    let (mut stage, mut worker) = watched(&[]).await;
    stage.ask(1, 2).await;
    worker.step().await;
    let draining = stage.told_to_end().await;
    // On its way before the tokenizer has read that the engine drains.
    stage.ask(2, 1).await;
    stage.seen(draining.sequence).await;
    tokio::spawn(worker.live());
    let (mut ended, mut last) = (0, 0);
    while ended < 2 {
        let report = stage.report().await;
        (ended, last) = (ended + report.ended.len(), report.sequence);
    }
    let mut finished = 0;
    while finished < 2 {
        let batch = stage.output().await;
        assert_eq!(batch.failed, []);
        finished += batch.finished.len();
    }
    assert!(stage.stays().await, "nobody has heard of the ends");
    stage.confirm().await;
    assert!(stage.stays().await, "the tokenizer has not");
    stage.seen(last).await;
    stage.ends().await;
}

#[tokio::test]
async fn what_does_not_end_in_time_fails() {
    let (mut stage, mut worker) = watched(&["--shutdown-timeout=0.3"]).await;
    stage.ask(1, 400).await;
    worker.step().await;
    let draining = stage.told_to_end().await;
    stage.seen(draining.sequence).await;
    let (_, last) = stage.until_end().await;
    assert_eq!(last.failed.len(), 1);
    stage.ends().await;
}

/// An engine of two workers that has drained while both are at a step.
async fn drained_amid_a_step() -> (Stage, [(Worker, StepPlan); 2]) {
    let mut stage = stage(&["--tensor-parallel-size=2"]).await;
    let mut workers = [stage.worker(0, 2).await, stage.worker(1, 2).await];
    for worker in &mut workers {
        worker.form().await;
    }
    stage.ready().await;
    stage.ask(1, 1).await;
    for worker in &mut workers {
        worker.step().await;
    }
    stage.until_end().await;
    stage.confirm().await;
    let [mut first, mut second] = workers;
    // It drops what has ended.
    let plans = [first.plan().await, second.plan().await];
    stage.process.shutdown.cancel();
    let [of_first, of_second] = plans;
    (stage, [(first, of_first), (second, of_second)])
}

#[tokio::test]
async fn it_leaves_no_worker_amid_a_step() {
    let (mut stage, [(mut first, of_first), (mut second, of_second)]) = drained_amid_a_step().await;
    assert!(stage.stays().await, "both are at a step");
    first.answer(of_first).await;
    assert!(stage.stays().await, "one still is");
    second.answer(of_second).await;
    stage.ends().await;
    for mut worker in [first, second] {
        assert!(timeout(DEADLINE, worker.link.receiver.recv()).await.expect("hung up in time").is_err());
    }
}

#[tokio::test]
async fn a_worker_that_never_finishes_does_not_keep_it() {
    let (stage, _workers) = drained_amid_a_step().await;
    stage.ends().await;
}

#[tokio::test]
async fn one_that_nobody_watches_finishes_what_it_has() {
    let mut stage = stage(&[]).await;
    let mut worker = stage.worker(0, 1).await;
    worker.form().await;
    stage.ready().await;
    stage.ask(1, 2).await;
    worker.step().await;
    stage.process.shutdown.cancel();
    let mut readiness = stage.process.status.subscribe();
    readiness.wait_for(|now| *now == service_kit::Readiness::Draining).await.unwrap();
    // There is nobody else to give it to, and it is told so.
    stage.ask(2, 1).await;
    tokio::spawn(worker.live());
    let (mut finished, mut failed) = (0, Vec::new());
    while finished < 1 || failed.is_empty() {
        let batch = stage.output().await;
        finished += batch.finished.len();
        failed.extend(batch.failed);
    }
    assert_eq!(failed[0].key.unwrap().number, 2);
    stage.confirm().await;
    stage.ends().await;
}
