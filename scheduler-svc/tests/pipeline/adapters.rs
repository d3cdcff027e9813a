//! Adapters: what the control plane is told while workers read them, and what requests are told meanwhile.

use proto::{
    Abort, AdapterLoaded, Failure, LoadAdapter, Request, ServeAdapterRequest, ServedAdapter, failure::Kind,
    from_worker, inbound, to_worker::Command,
};
use service_kit::control::ControlClient;
use tokio::task::JoinHandle;

use super::stage::{Stage, Worker, address, ready, request, stage};
use link::Address;
use tempfile::TempDir;

/// A scheduler with one worker that says nothing of its own accord.
struct Served {
    _dir: TempDir,
    stage: Stage,
    control: ControlClient,
    worker: Worker,
}

/// What a call comes to.
type Answer = JoinHandle<Option<Failure>>;

impl Served {
    async fn start(slots: u32, flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let Address::Ring(path) = address(&dir, "control") else { unreachable!("a path") };
        let control = Address::GrpcUnix(path);
        let (flag, loras) = (format!("--control={control}"), format!("--max-loras={slots}"));
        let mut all = vec!["--enable-lora", &loras, &flag];
        all.extend(flags);
        let stage = stage(&all).await;
        let mut worker = stage.worker_of(proto::WorkerReady { adapter_slots: slots, ..ready(0, 1) }).await;
        match worker.command().await {
            Command::FormGroup(form) => {
                worker.epoch = form.epoch;
                worker.send(from_worker::Event::Formed(proto::GroupFormed { epoch: form.epoch })).await;
            }
            other => panic!("{other:?}"),
        }
        stage.ready().await;
        Self { _dir: dir, stage, control: ControlClient::new(&control, &link::LinkOptions::default()).unwrap(), worker }
    }

    fn load(&self, name: &str, in_place: bool) -> Answer {
        let adapter = ServedAdapter { name: name.into(), path: format!("/{name}"), ..ServedAdapter::default() };
        let (control, request) = (self.control.clone(), ServeAdapterRequest { adapter: Some(adapter), in_place });
        tokio::spawn(async move { control.serve_adapter(request).await.expect("an answer") })
    }

    fn unload(&self, name: &str) -> Answer {
        let (control, name) = (self.control.clone(), name.to_owned());
        tokio::spawn(async move { control.remove_adapter(&name).await.expect("an answer") })
    }

    async fn names(&self) -> Vec<String> {
        let list = self.control.adapters("").await.expect("an answer");
        list.adapters.into_iter().map(|adapter| adapter.name).collect()
    }

    async fn ask(&mut self, number: u64, adapter: &str) {
        let asked = Request { adapter: adapter.into(), ..request(number, 1) };
        self.stage.send(inbound::Event::Request(asked)).await;
    }

    /// The adapter that the worker is to read next.
    async fn next_load(&mut self) -> LoadAdapter {
        match self.worker.command().await {
            Command::LoadAdapter(load) => load,
            other => panic!("no load: {other:?}"),
        }
    }

    /// Serves `a`, then `b`, where the host has room for one; the identity of `a`, which is dropped.
    async fn replace_a_by_b(&mut self) -> String {
        for name in ["a", "b"] {
            let answer = self.load(name, false);
            let load = self.next_load().await;
            self.loaded(&load.adapter, "1").await;
            assert_eq!(answer.await.unwrap(), None);
        }
        self.dropped().await
    }

    async fn dropped(&mut self) -> String {
        match self.worker.command().await {
            Command::DropAdapter(dropped) => dropped.adapter,
            other => panic!("nothing is dropped: {other:?}"),
        }
    }

    /// The worker has read an adapter.
    async fn loaded(&mut self, adapter: &str, fingerprint: &str) {
        let fingerprint = fingerprint.to_owned();
        let loaded = AdapterLoaded { adapter: adapter.into(), fingerprint, ..AdapterLoaded::default() };
        self.worker.send(from_worker::Event::AdapterLoaded(loaded)).await;
    }

    /// The worker brings an adapter to its device for a request, and computes its only step; which, and the request's
    /// end.
    async fn step(&mut self) -> String {
        let plan = self.worker.plan().await;
        let adapters: Vec<_> = plan.adapters.iter().map(|load| load.adapter.clone()).collect();
        assert!(plan.slot.is_empty(), "a row before its adapter is there");
        self.worker.answer(plan).await;
        self.worker.step().await;
        let (tokens, batch) = self.stage.until_end().await;
        assert!(tokens.len() == 1 && batch.failed.is_empty(), "{batch:?}");
        // A last plan lets the worker drop what ended.
        self.worker.step().await;
        adapters.join(", ")
    }
}

#[tokio::test]
async fn loads_and_unloads_of_a_name_come_one_after_the_other() {
    let mut served = Served::start(2, &[]).await;
    let first = served.load("a", false);
    let load = served.next_load().await;
    // Both wait for the load: vLLM has a lock for each name.
    let unload = served.unload("a");
    let other = served.load("b", false);
    let second = served.next_load().await;
    assert_eq!(second.path, "/b", "another name does not wait");
    served.loaded(&second.adapter, "1").await;
    assert_eq!(other.await.unwrap(), None);
    assert!(!unload.is_finished());
    served.loaded(&load.adapter, "1").await;
    assert_eq!((first.await.unwrap(), unload.await.unwrap()), (None, None));
    assert_eq!((served.dropped().await, served.names().await), (load.adapter, vec!["b".to_owned()]));
    let failure = served.unload("a").await.unwrap().expect("it is gone");
    assert_eq!((failure.kind(), &*failure.message), (Kind::NotFound, "The lora adapter 'a' cannot be found."));
}

#[tokio::test]
async fn a_name_that_is_served_is_refused_in_vllms_words() {
    let mut served = Served::start(2, &[]).await;
    let (first, second) = (served.load("a", false), served.load("a", false));
    let load = served.next_load().await;
    served.loaded(&load.adapter, "1").await;
    let failures = [first.await.unwrap(), second.await.unwrap()];
    let failure = failures.iter().flatten().next().expect("one of them came second");
    assert_eq!(failures.iter().flatten().count(), 1);
    assert_eq!(failure.kind(), Kind::InvalidUserInput);
    assert!(failure.message.starts_with("The lora adapter 'a' has already been loaded."), "{failure:?}");
    let missing = served.load("c", false);
    let load = served.next_load().await;
    let lost = AdapterLoaded { adapter: load.adapter, error: "x".into(), not_found: true, ..AdapterLoaded::default() };
    served.worker.send(from_worker::Event::AdapterLoaded(lost)).await;
    let failure = missing.await.unwrap().expect("there is none");
    assert_eq!((failure.kind(), &*failure.message), (Kind::NotFound, "Loading lora c failed: No adapter found for /c"));
}

/// `a` gives way to `b`, and is read again: under its identity while its files are the same, else under another one.
#[tokio::test]
async fn files_that_changed_count_as_another_adapter() {
    let mut served = Served::start(1, &["--max-cpu-loras=1"]).await;
    let first = served.replace_a_by_b().await;
    served.ask(1, "a").await;
    assert_eq!(served.next_load().await.adapter, first);
    served.loaded(&first, "1").await;
    let other = served.dropped().await;
    assert_eq!(served.step().await, first);
    served.ask(2, "b").await;
    assert_eq!(served.next_load().await.adapter, other);
    served.loaded(&other, "1").await;
    assert_eq!(served.dropped().await, first);
    assert_eq!(served.step().await, other);
    served.ask(3, "a").await;
    assert_eq!(served.next_load().await.adapter, first);
    served.loaded(&first, "2").await;
    assert_eq!(served.dropped().await, first);
    let renewed = served.next_load().await;
    assert!(renewed.adapter != first && renewed.path == "/a", "{renewed:?}");
    served.loaded(&renewed.adapter, "2").await;
    assert_eq!(served.dropped().await, other);
    assert_eq!(served.step().await, renewed.adapter);
}

/// Requests that wait for an adapter to be read are queued: the bound holds, and a client that leaves makes room.
#[tokio::test]
async fn requests_that_wait_for_an_adapter_count_as_queued() {
    let mut served = Served::start(1, &["--max-cpu-loras=1", "--max-num-queued-reqs=1"]).await;
    let gone = served.replace_a_by_b().await;
    served.ask(1, "a").await;
    assert_eq!(served.next_load().await.adapter, gone);
    let failed = async |served: &mut Served| {
        let failed = served.stage.output().await.failed.remove(0);
        (failed.key.map(|key| key.number), failed.failure.expect("a reason"))
    };
    served.ask(2, "a").await;
    let (number, failure) = failed(&mut served).await;
    assert!(number == Some(2) && failure.message.contains("max_num_queued_reqs: 1"), "{failure:?}");
    let abort = Abort { key: request(1, 1).key };
    served.stage.send(inbound::Event::Abort(abort)).await;
    assert_eq!(failed(&mut served).await.0, Some(1));
    served.ask(3, "a").await;
    served.loaded(&gone, "1").await;
    served.dropped().await;
    assert_eq!(served.step().await, gone);
}
