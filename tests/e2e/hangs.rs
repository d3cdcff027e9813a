//! A worker that hangs: its requests end with a 503 that names it, `/health` says so, a new process takes its place,
//! and the group forms anew.

use std::{fs, time::Duration};

use anyhow::{Context, ensure};
use e2e_tests::{MOST_RANKS_OF_WREN, Needs, Pid, Server, descendants, faults, group_sizes, is_on_gpu, lacks};
use rustix::process::{Signal, kill_process};

use crate::faults::{
    HEARD, PRETENDED, broken_under_load, default_model, eventually, pretended, says, serves_again, start_with,
    unhealthy_because,
};

/// A step's deadline: debug builds on busy machines are slow.
const DEADLINE: &str = "--step-timeout=3";
/// Within this, clients must have heard: the deadline, and what a worker may take to answer when it is asked.
const HEARD_OF_HANG: Duration = Duration::from_secs(5 + HEARD.as_secs());

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_worker_is_named_and_serves_again_when_it_goes_on() -> anyhow::Result<()> {
    for ranks in group_sizes().filter(|ranks| *ranks <= MOST_RANKS_OF_WREN) {
        let ranks_flag = format!("--tensor-parallel-size={ranks}");
        let mut server = start_with(&default_model(), &[DEADLINE, &ranks_flag], &[]).await?;
        let stopped = last_worker(&server)?;
        let answers = broken_under_load(&server, HEARD_OF_HANG, || Ok(kill_process(stopped, Signal::STOP)?)).await;
        let answers = answers.with_context(|| server.log())?;
        let named = format!("worker {} does not answer", ranks - 1);
        ensure!(answers.iter().all(|answer| answer.contains(&named)), "{named}: {answers:?}");
        unhealthy_because(&server, &named).await?;
        kill_process(stopped, Signal::CONT)?;
        serves_again(&mut server).await.with_context(|| server.log())?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_that_never_returns_is_named_and_its_process_replaced() -> anyhow::Result<()> {
    for ranks in group_sizes().filter(|ranks| *ranks <= MOST_RANKS_OF_WREN) {
        let folder = tempfile::tempdir()?;
        let library = faults::hang_thread(folder.path())?;
        let environment = [("LD_PRELOAD", library.display().to_string())];
        let ranks_flag = format!("--tensor-parallel-size={ranks}");
        let mut server = start_with(&default_model(), &[DEADLINE, &ranks_flag], &environment).await?;
        let last = ranks - 1;
        let alone = format!("worker {last} has not finished step");
        // The host of a GPU cannot tell whom that waits for: others may be as far behind.
        let among_others = format!(" and {last} have not finished step");
        let named = if is_on_gpu() { &[&*alone, &*among_others][..] } else { &[&*alone] };
        hangs_and_returns(&mut server, named).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kernel_that_spins_is_named_and_its_process_replaced() -> anyhow::Result<()> {
    if lacks(Needs::Gpu) {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let library = faults::break_context(folder.path())?;
    let environment = [("LD_PRELOAD", library.display().to_string()), ("QUIRE_TEST_SPIN", "1".to_owned())];
    let mut server = start_with(&default_model(), &[DEADLINE], &environment).await?;
    hangs_and_returns(&mut server, &["worker 0 has not finished step"]).await
}

/// No GPU is needed for this: the driver is a pretended one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gpu_that_finishes_nothing_is_named_and_waited_for() -> anyhow::Result<()> {
    if lacks(Needs::PretendedGpus) {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let hang = folder.path().join("hang");
    let (environment, _) = pretended(folder.path())?;
    let environment = [&environment[..], &[("QUIRE_TEST_HANG", hang.display().to_string())]].concat();
    let server = start_with(&default_model(), &[PRETENDED, &[DEADLINE]].concat(), &environment).await?;
    let answers = broken_under_load(&server, HEARD_OF_HANG, || Ok(fs::write(&hang, "")?)).await;
    let answers = answers.with_context(|| server.log())?;
    let named = "worker 0 has not finished step";
    ensure!(answers.iter().all(|answer| answer.contains(named)), "{answers:?}");
    eventually("the process ends", || async { server.log().contains("the compute thread hangs") }).await?;
    fs::remove_file(&hang)?;
    let zeros = [0; 20];
    eventually("it is back", || async { server.client().health().await == Some(200) }).await?;
    says(&server, &[5, 6, 7], &zeros).await.with_context(|| server.log())
}

/// SIGUSR1 makes the last worker hang while requests run: it is named to their clients and by `/health`, ends by
/// itself, and the next one serves.
///
/// `named`: any of these.
async fn hangs_and_returns(server: &mut Server, named: &[&str]) -> anyhow::Result<()> {
    let worker = last_worker(server)?;
    let answers = broken_under_load(server, HEARD_OF_HANG, || Ok(kill_process(worker, Signal::USR1)?)).await;
    let answers = answers.with_context(|| server.log())?;
    let named = named.iter().find(|named| answers.iter().all(|answer| answer.contains(**named)));
    unhealthy_because(server, named.with_context(|| format!("who hangs: {answers:?}"))?).await?;
    // For that reason, or as the devices of its group may wait for one that is gone, whichever is noticed first.
    let ended = || async { descendants(server.pid()).into_iter().all(|process| process.pid != worker) };
    eventually("the process ends", ended).await.with_context(|| server.log())?;
    serves_again(server).await.with_context(|| server.log())
}

fn last_worker(server: &Server) -> anyhow::Result<Pid> {
    let worker = descendants(server.pid()).into_iter().rev().find(|process| process.role == "worker");
    Ok(worker.context("a worker")?.pid)
}
