//! The supervisor over fake processes: shell scripts that say they are ready by making a file.

use std::{fs, path::Path};

use super::*;
use crate::serve::{
    screen::Form,
    supervisor::{Member, Supervisor},
};

/// Ready when the file exists.
struct FileProbe(PathBuf);

impl Probe for FileProbe {
    async fn ask(&self) -> Readiness {
        // What the file says are flags for the next start.
        let decided = |text: String| Readiness::Ready { decided: text.split_whitespace().map(str::to_owned).collect() };
        fs::read_to_string(&self.0).map_or(Readiness::Silent, decided)
    }
}

fn member(folder: &Path, name: &str, script: &str, stage: usize) -> Member<FileProbe> {
    let ready = folder.join(format!("{name}.ready"));
    let script = format!("cd {}\n{script}", folder.display());
    let spec = Spec {
        name: name.to_owned(),
        program: "/bin/sh".into(),
        args: vec!["-c".to_owned(), script],
        env: Vec::new(),
        remedy: "look at --this",
        grace: Duration::from_secs(20),
    };
    Member { spec, probe: FileProbe(ready), stage }
}

fn start(members: Vec<Member<FileProbe>>) -> Supervisor {
    Supervisor::start(members, Arc::new(Screen::new(Form::Text)))
}

/// Notes its start, says that it is ready, and ends in order when asked.
fn steady(name: &str) -> String {
    decides(name, "")
}

/// The same; what it says when it is ready is a flag for the next start.
fn decides(name: &str, flag: &str) -> String {
    format!(
        "echo $$ >> {name}.starts; trap 'echo {name} >> ends; exit 0' TERM\n\
         echo {flag} > {name}.said; mv {name}.said {name}.ready\n\
         while :; do sleep 0.01; done"
    )
}

fn pids(folder: &Path, name: &str) -> Vec<i32> {
    let text = fs::read_to_string(folder.join(format!("{name}.starts"))).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Kills the newest life of a process that has had `lives`, and watches until it has had one more.
async fn kill_and_see_back(supervisor: &mut Supervisor, folder: &Path, name: &str, lives: usize) {
    let victim = *pids(folder, name).last().unwrap();
    kill_process(Pid::from_raw(victim).unwrap(), Signal::KILL).unwrap();
    let back = CancellationToken::new();
    let watcher = async {
        while pids(folder, name).len() <= lives {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        back.cancel();
    };
    let (watched, ()) = tokio::join!(supervisor.watch(&back), watcher);
    watched.unwrap();
}

#[tokio::test]
async fn what_is_killed_comes_back_and_all_ends_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let shutdown = CancellationToken::new();
    let members = vec![member(path, "behind", &steady("behind"), 1), member(path, "front", &steady("front"), 0)];
    let mut supervisor = start(members);
    let report = supervisor.ready(&shutdown).await.unwrap().unwrap();
    assert_eq!(report.len(), 2);
    for round in 1..4 {
        kill_and_see_back(&mut supervisor, path, "front", round).await;
    }
    supervisor.end().await.unwrap();
    let ends = fs::read_to_string(path.join("ends")).unwrap();
    assert_eq!(ends.lines().last(), Some("behind"), "{ends}");
    assert_eq!(pids(path, "behind").len(), 1);
}

#[tokio::test]
async fn what_a_start_decided_holds_for_the_next_ones() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    // A shell calls the words after its script $0, $1 and so on.
    let script = format!("echo \"$0\" >> words\n{}", decides("worker", "--device=cuda"));
    let shutdown = CancellationToken::new();
    let mut supervisor = start(vec![member(path, "worker", &script, 0)]);
    supervisor.ready(&shutdown).await.unwrap().unwrap();
    for round in 1..3 {
        kill_and_see_back(&mut supervisor, path, "worker", round).await;
    }
    supervisor.end().await.unwrap();
    let words = fs::read_to_string(path.join("words")).unwrap();
    let words: Vec<&str> = words.lines().collect();
    assert_eq!(words[1..], ["--device=cuda", "--device=cuda"], "{words:?}");
}

#[tokio::test]
async fn a_start_that_fails_is_told_once_with_its_cause() {
    let folder = tempfile::tempdir().unwrap();
    let fails = "echo 'now ERROR worker: no such model' >&2; exit 3";
    let members = vec![member(folder.path(), "fine", &steady("fine"), 0), member(folder.path(), "worker", fails, 1)];
    let mut supervisor = start(members);
    let error = supervisor.ready(&CancellationToken::new()).await.unwrap_err().to_string();
    assert_eq!(error, "the worker cannot start: no such model (exit code 3); look at --this");
    supervisor.abort().await;
    for pid in pids(folder.path(), "fine") {
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "nobody is left behind");
    }
}

/// Keeps a process that ends with `code` once it was seen to be ready, while the engine has never been.
async fn ready_and_then(code: u8) -> Event {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let script = format!(
        "touch worker.ready; until [ -e seen ]; do sleep 0.01; done; rm seen worker.ready\n\
         echo 'now ERROR worker: no NCCL' >&2; exit {code}"
    );
    let Member { spec, probe, .. } = member(path, "worker", &script, 0);
    let (send, mut events) = mpsc::channel(4);
    let screen = Arc::new(Screen::new(Form::Text));
    let starting = Arc::new(AtomicBool::new(true));
    let shared = Shared { screen, events: send, starting, hurry: CancellationToken::new() };
    let stop = CancellationToken::new();
    let task = tokio::spawn(supervise(spec, probe, shared.clone(), stop.clone()));
    assert!(matches!(events.recv().await, Some(Event::Ready { .. })));
    fs::write(path.join("seen"), "").unwrap();
    let next = events.recv().await.unwrap();
    shared.hurry.cancel();
    stop.cancel();
    task.await.unwrap();
    next
}

#[tokio::test]
async fn an_error_before_all_are_ready_ends_the_start() {
    let Event::Failed { message } = ready_and_then(1).await else { panic!("it was started again") };
    assert_eq!(message, "the worker cannot start: no NCCL (exit code 1); look at --this");
}

#[tokio::test]
async fn who_asks_to_be_started_again_is() {
    assert!(matches!(ready_and_then(TRY_AGAIN).await, Event::Ready { .. }));
}

#[tokio::test]
async fn what_never_gets_ready_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let mut supervisor = start(vec![member(folder.path(), "odd", "echo >> odd.tries; exit 0", 0)]);
    let error = supervisor.ready(&CancellationToken::new()).await.unwrap_err().to_string();
    assert!(error.starts_with("the odd cannot start: exit code 0"), "{error}");
    assert_eq!(fs::read_to_string(folder.path().join("odd.tries")).unwrap().lines().count(), 5);
}

#[tokio::test]
async fn a_process_that_ends_by_itself_is_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo $$ >> odd.starts; touch odd.ready; [ $(wc -l < odd.starts) -gt 2 ] && exec sleep 1000; exit 0";
    let mut supervisor = start(vec![member(folder.path(), "odd", script, 0)]);
    let shutdown = CancellationToken::new();
    supervisor.ready(&shutdown).await.unwrap();
    let watcher = async {
        while pids(folder.path(), "odd").len() < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        shutdown.cancel();
    };
    tokio::join!(supervisor.watch(&shutdown), watcher).0.unwrap();
    supervisor.end().await.unwrap();
}
