//! Requests: finished, refused, aborted, and failed when a peer is lost.

use link::Address;
use proto::{
    Abort, Failure, GatewayGone, Output, Rejected, RequestKey, StepPlan, StepResult, TokenIds, TokenLogprobs,
    WorkerFailed, failure::Kind, from_worker, inbound, prompt, to_worker,
};
use tokio::time::timeout;

use crate::stage::{DEADLINE, request, spacious, stage, stage_over};

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
    // The same loop sends plans to the worker and handles those two.
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
                stage.confirm().await;
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
