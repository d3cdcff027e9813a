//! Two stages on two machines with a relay between them, which delays what passes or holds it back.

use std::{
    io::Read,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use e2e_tests::{alone, quire_binary};

use super::{
    namespaces::{APART, Between},
    two_nodes::TwoNodes,
};

/// A peer that says nothing is noticed within 15 s (docs/multi-node.md); the rest is for a busy machine.
const NOTICED: Duration = Duration::from_secs(30);
/// A pause that links stand.
const PAUSE: Duration = Duration::from_secs(3);

/// The nodes, and what is between them. Absent where namespaces cannot be made.
fn start() -> anyhow::Result<Option<(TwoNodes, Between)>> {
    let Some((hosts, between)) = Between::make()? else { return Ok(None) };
    Ok(Some((TwoNodes::start(hosts, APART[0])?, between)))
}

/// A stall ends a request after as long as links stand one, and not before; then the group forms again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "second tier: waits for networks that stall"]
async fn a_stalled_network_is_waited_for_and_then_given_up() -> anyhow::Result<()> {
    let _alone = alone().await;
    let Some((mut nodes, between)) = start()? else { return Ok(()) };
    for survives in [true, false] {
        let mut running = nodes.client("600").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        running.stdout.as_mut().context("piped")?.read_exact(&mut [0])?;
        between.relay.stall(true);
        let stalled = Instant::now();
        if survives {
            std::thread::sleep(PAUSE);
            between.relay.stall(false);
        }
        let ended = running.wait_with_output()?;
        let said = String::from_utf8_lossy(&ended.stderr);
        ensure!(ended.status.success() == survives, "survives: {survives}: {said}\n{}", nodes.logs());
        if !survives {
            let after = stalled.elapsed();
            println!("the stall ended the request after {:.1} s: {said}", after.as_secs_f64());
            ensure!(after < NOTICED && said.contains("worker 1"), "{after:?}: {said}\n{}", nodes.logs());
            between.relay.stall(false);
        }
    }
    nodes.serve()?;
    nodes.end()
}

/// What a delay of 1 ms each way costs: prints figures, and checks none. `QUIRE_BIN` names a release build.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "second tier: measures"]
async fn stages_with_a_delay_between_them() -> anyhow::Result<()> {
    let _alone = alone().await;
    let Some((nodes, between)) = start()? else { return Ok(()) };
    println!("delay  clients  output tokens/s  median TPOT");
    for (delay, clients) in [0, 1].into_iter().flat_map(|delay| [1, 4, 16, 64].map(|clients| (delay, clients))) {
        between.relay.delay(Duration::from_millis(delay));
        let mut bench = nodes.hosts.on(0, &quire_binary());
        bench.args(["bench", "serve", "--random-input-len=32", "--random-output-len=128", "--ignore-eos"]);
        bench.args([
            "--disable-tqdm",
            &format!("--max-concurrency={clients}"),
            &format!("--num-prompts={}", 4 * clients),
        ]);
        let report = bench.output()?;
        let text = String::from_utf8_lossy(&report.stdout);
        ensure!(report.status.success(), "{text}{}", String::from_utf8_lossy(&report.stderr));
        let figure = |name: &str| {
            let line = text.lines().find(|line| line.to_lowercase().starts_with(name));
            line.and_then(|line| line.rsplit(' ').next()).unwrap_or("?").to_owned()
        };
        println!("{delay} ms   {clients:7}  {:>15}  {:>11}", figure("output token throughput"), figure("median tpot"));
    }
    nodes.end()
}
