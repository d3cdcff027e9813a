//! Adapters: which request waits for which, and what the control plane asks for.

use std::path::{Component, Path};

use anyhow::bail;
use proto::{
    AdapterLoaded, AdapterPlaced, AdapterTokenizer, DropAdapter, Failure, ListAdaptersReply, LoadAdapter,
    ServeAdapterRequest, ServedAdapter, to_worker::Command,
};
use sched_core::{QueueBound, Refusal};
use tracing::{debug, info, warn};

use super::Engine;
use crate::{
    adapters::{AdapterCall, AdapterFiles, Answered, LoadFailed, Renewed, Waiter, hub::Found, name_of},
    error,
};

/// Calls of the control plane that may wait for adapters.
const MOST_CALLS: usize = 1024;

impl Engine {
    /// Loads the adapters of the command line, or of the scheduler before this one, that are not served yet. Others are
    /// loaded into a new group when a request names them.
    pub(super) fn load_modules(&mut self) {
        for waiter in std::mem::take(&mut self.to_start) {
            let Some(ServedAdapter { name, path, .. }) = waiter.to_serve().cloned() else { continue };
            let identity = self.adapters.new_identity(&name);
            self.wait(&identity, &path, waiter);
        }
        self.say_readiness();
    }

    /// Has a waiter wait for an adapter, which the workers load unless they do already.
    fn wait(&mut self, identity: &str, path: &str, waiter: Waiter) {
        if !self.adapters.wait(identity, waiter) {
            return;
        }
        match !self.random_adapters && model_source::is_adapter_id(path) {
            true => self.hub.find(identity, path),
            false => self.load(identity, path.to_owned()),
        }
    }

    fn load(&mut self, identity: &str, path: String) {
        self.to_workers.push(Command::LoadAdapter(LoadAdapter { adapter: identity.to_owned(), path }));
    }

    /// An adapter was looked for at the hub. Fails where the command line names one that is not there.
    pub(super) fn adapter_found(&mut self, found: Found) -> anyhow::Result<()> {
        for identity in self.hub.found(&found.id) {
            match &found.folder {
                Ok(folder) if self.adapters.is_awaited(&identity) => self.load(&identity, folder.display().to_string()),
                // The workers were lost meanwhile, and who waited was told.
                Ok(_) => {}
                Err(failed) => {
                    let waiters = self.adapters.give_up(&identity);
                    waiters.into_iter().try_for_each(|waiter| self.not_hosted(failed, waiter))?;
                }
            }
        }
        // What all clients have left is not begun.
        for identity in self.hub.go_on(|identity| self.adapters.is_wanted(identity)) {
            debug!(identity, "not downloaded: all its clients left");
            self.adapters.give_up(&identity);
        }
        self.evict_adapters();
        self.say_readiness();
        Ok(())
    }

    /// A rank has what a plan asked for in a slot of its device.
    pub(super) fn adapter_placed(&mut self, connection: u64, AdapterPlaced { epoch, slot }: AdapterPlaced) {
        if self.group.is_of(connection, epoch) && self.adapters.placed(slot) {
            self.core.iter_mut().for_each(|core| core.adapter_placed(slot));
        }
    }

    /// Takes a request that names an adapter.
    pub(super) fn admit_adapted(&mut self, mut request: proto::Request) -> Result<(), Failure> {
        let Some((identity, path)) = self.adapters.find(&request.adapter) else {
            return Err(error::no_such_model(&request.adapter));
        };
        if !self.group.is_formed() {
            return Err(error::no_workers(&self.group.waits_for()));
        }
        request.adapter.clone_from(&identity);
        if !self.adapters.is_hosted(&identity) {
            self.check_room_to_wait()?;
            self.wait(&identity, &path, Waiter::Request(Box::new(request)));
            self.say_adapters();
            return Ok(());
        }
        let key = request.key;
        self.fit(&mut request, &identity)?;
        self.admit_now(request)?;
        if let Some(key) = key {
            self.adapters.admitted(key, identity);
        }
        Ok(())
    }

    /// Says which tokens a request may have. Fails where its prompt was split by another tokenizer than its adapter
    /// has.
    fn fit(&self, request: &mut proto::Request, identity: &str) -> Result<(), Failure> {
        let Some(files) = self.adapters.files(identity) else { return Ok(()) };
        let fingerprint = |one: &Option<AdapterTokenizer>| one.as_ref().map(|one| one.fingerprint.clone());
        if fingerprint(&request.adapter_tokenizer) != fingerprint(&files.tokenizer) {
            return Err(error::another_tokenizer(name_of(identity)));
        }
        request.vocab_size = files.vocab_size;
        Ok(())
    }

    /// Whether one more request may wait for its adapter: such requests count as queued, too.
    fn check_room_to_wait(&self) -> Result<(), Failure> {
        let queued = self.core.as_ref().map_or(0, |core| core.stats().queued_requests as usize);
        match self.args.max_num_queued_reqs {
            Some(limit) if queued + self.adapters.num_waiting().requests >= limit as usize => {
                let refusal = Refusal::Overloaded { bound: QueueBound::Requests, limit: limit.into() };
                self.metrics.refused(&refusal);
                Err(refusal.to_failure())
            }
            _ => Ok(()),
        }
    }

    /// A worker has read an adapter, or could not. Fails where the command line names one that cannot be served.
    pub(super) fn adapter_loaded(&mut self, loaded: AdapterLoaded) -> anyhow::Result<()> {
        let Some(Answered { identity, outcome, waiters }) = self.adapters.answered(loaded) else { return Ok(()) };
        match outcome {
            Ok(files) => match self.adapters.reread(&identity, &files) {
                Some(renewed) => self.read_anew(identity, renewed, waiters),
                None => waiters.into_iter().for_each(|waiter| self.hosted(&identity, &files, waiter)),
            },
            Err(failed) => {
                // Some ranks may have it.
                self.to_workers.push(Command::DropAdapter(DropAdapter { adapter: identity }));
                waiters.into_iter().try_for_each(|waiter| self.not_hosted(&failed, waiter))?;
            }
        }
        self.evict_adapters();
        self.say_readiness();
        Ok(())
    }

    /// An adapter's files are not what they were when it was read first: those who wait for it get what they are now.
    fn read_anew(&mut self, before: String, renewed: Renewed, waiters: Vec<Waiter>) {
        let Renewed { identity, adapter: ServedAdapter { name, path, .. } } = renewed;
        info!(name, path, identity, "the adapter's files have changed: it counts as another one from here on");
        self.to_workers.push(Command::DropAdapter(DropAdapter { adapter: before }));
        for mut waiter in waiters {
            if let Waiter::Request(request) = &mut waiter {
                request.adapter.clone_from(&identity);
            }
            self.wait(&identity, &path, waiter);
        }
    }

    /// Every worker has an adapter that somebody has waited for.
    fn hosted(&mut self, identity: &str, files: &AdapterFiles, waiter: Waiter) {
        let serve = |engine: &mut Self, adapter: ServedAdapter| {
            info!(name = adapter.name, path = adapter.path, "adapter served");
            engine.output.tokenizers.extend(files.tokenizer.clone());
            engine.adapters.serve(identity.to_owned(), adapter, files);
            engine.keep_adapters();
        };
        match waiter {
            Waiter::Request(request) => self.admit_hosted(*request, identity),
            Waiter::Serve(adapter, reply) => {
                serve(self, adapter);
                let _ = reply.send(None);
            }
            Waiter::Resolve(adapter, reply) => {
                serve(self, adapter);
                let _ = reply.send(self.listed(None));
            }
            Waiter::Static(adapter) | Waiter::Kept(adapter) => serve(self, adapter),
            Waiter::Call(call) => self.about_adapters(call),
        }
    }

    /// Somebody has waited for an adapter that cannot be loaded.
    fn not_hosted(&mut self, failed: &LoadFailed, waiter: Waiter) -> anyhow::Result<()> {
        let failure = |adapter: &ServedAdapter| error::not_loaded(&adapter.name, &adapter.path, failed);
        match waiter {
            Waiter::Request(request) => {
                let name = name_of(&request.adapter);
                let path = self.adapters.find(name).map(|(_, path)| path).unwrap_or_default();
                let failure = error::not_loaded(name, &path, failed);
                self.refuse(*request, failure);
            }
            Waiter::Serve(adapter, reply) => drop(reply.send(Some(failure(&adapter)))),
            Waiter::Resolve(adapter, reply) => {
                warn!(name = adapter.name, path = adapter.path, "no adapter: {}", failed.reason);
                let _ = reply.send(self.listed(Some(error::not_resolved(&adapter.name, failed))));
            }
            Waiter::Static(adapter) => {
                bail!("--lora-modules {}={}: {}", adapter.name, adapter.path, failure(&adapter).message)
            }
            Waiter::Kept(adapter) => {
                warn!(name = adapter.name, path = adapter.path, "not served any more: {}", failed.reason);
                self.keep_adapters();
            }
            Waiter::Call(call) => self.about_adapters(call),
        }
        Ok(())
    }

    /// Writes down what is served, and what is to be from the start on, for the scheduler after this one.
    fn keep_adapters(&self) {
        let mut all = self.adapters.list();
        all.extend(self.adapters.starting().chain(self.to_start.iter().filter_map(Waiter::to_serve)).cloned());
        self.kept.write(&all);
    }

    fn listed(&self, failure: Option<Failure>) -> ListAdaptersReply {
        ListAdaptersReply { adapters: self.adapters.list(), failure }
    }

    fn admit_hosted(&mut self, mut request: proto::Request, identity: &str) {
        let (key, copy) = (request.key, (request.key, request.request_id.clone()));
        match self.fit(&mut request, identity).and_then(|()| self.admit_now(request)) {
            Ok(()) => key.into_iter().for_each(|key| self.adapters.admitted(key, identity.to_owned())),
            Err(failure) => self.refused(copy.0, copy.1, failure),
        }
    }

    /// Ends a request that waited for its adapter.
    pub(super) fn refuse(&mut self, request: proto::Request, failure: Failure) {
        self.refused(request.key, request.request_id, failure);
    }

    /// A client is gone whose requests may wait for their adapters.
    pub(super) fn withdraw(&mut self, matches: impl Fn(&proto::Request) -> bool) {
        for request in self.adapters.withdraw(matches) {
            self.refuse(request, error::aborted());
        }
    }

    /// The workers are gone: who waited for adapters is told.
    pub(super) fn adapters_lost(&mut self, reason: &str) {
        self.to_workers.clear();
        let mut calls = Vec::new();
        for waiter in self.adapters.lost() {
            let failure = error::no_workers(reason);
            match waiter {
                Waiter::Request(request) => self.refuse(*request, failure),
                Waiter::Serve(_, reply) => drop(reply.send(Some(failure))),
                Waiter::Resolve(_, reply) => drop(reply.send(self.listed(Some(failure)))),
                Waiter::Static(_) | Waiter::Kept(_) => self.to_start.push(waiter),
                Waiter::Call(call) => calls.push(call),
            }
        }
        calls.into_iter().for_each(|call| self.about_adapters(call));
    }

    /// Lets the workers forget what the host need not keep.
    pub(super) fn evict_adapters(&mut self) {
        if self.args.lora.enable_lora {
            for adapter in self.adapters.evict() {
                self.to_workers.push(Command::DropAdapter(DropAdapter { adapter }));
            }
            self.metrics.hosted_adapters(self.adapters.num_hosted());
            self.say_adapters();
        }
    }

    /// Which adapters run and wait.
    pub(super) fn say_adapters(&self) {
        if let Some(core) = &self.core {
            let mut used = core.adapters();
            used.waiting.extend(self.adapters.awaited());
            self.metrics.lora_requests(self.args.lora.max_loras, &used, super::unix_seconds());
        }
    }

    /// Answers the control plane; its caller may be gone. What concerns a name that is being loaded is answered when
    /// that is over: loads and unloads of a name come one after the other.
    pub(super) fn about_adapters(&mut self, call: AdapterCall) {
        let loading = self.adapters.loading(call.name()).map(str::to_owned);
        let is_full = self.adapters.num_waiting().calls >= MOST_CALLS;
        match (call, loading) {
            // They would have to wait.
            (AdapterCall::Serve(_, reply), _) | (AdapterCall::Remove(_, reply), Some(_)) if is_full => {
                drop(reply.send(Some(error::busy_loading(MOST_CALLS))));
            }
            (call @ (AdapterCall::Serve(..) | AdapterCall::Remove(..)), Some(identity)) => {
                self.adapters.wait(&identity, Waiter::Call(call));
            }
            (AdapterCall::Serve(request, reply), None) => match self.check_to_serve(request) {
                Ok(adapter) => {
                    let identity = self.adapters.new_identity(&adapter.name);
                    self.wait(&identity, &adapter.path.clone(), Waiter::Serve(adapter, reply));
                }
                Err(failure) => drop(reply.send(Some(failure))),
            },
            (AdapterCall::Remove(name, reply), None) => {
                let listed = self.to_start.len();
                self.to_start.retain(|waiter| waiter.to_serve().is_none_or(|adapter| adapter.name != name));
                let is_listed = self.to_start.len() < listed;
                let is_known = self.adapters.remove(&name) || is_listed;
                if is_known {
                    self.keep_adapters();
                }
                let _ = reply.send((!is_known).then(|| error::no_such_adapter(&name)));
                self.evict_adapters();
            }
            (AdapterCall::List(name, reply), loading) => match self.to_resolve(&name) {
                Some(_) if is_full => drop(reply.send(self.listed(Some(error::busy_loading(MOST_CALLS))))),
                Some(adapter) => {
                    // Others may have asked for it just now.
                    let identity = loading.unwrap_or_else(|| self.adapters.new_identity(&name));
                    self.wait(&identity, &adapter.path.clone(), Waiter::Resolve(adapter, reply));
                }
                None => drop(reply.send(self.listed(None))),
            },
        }
    }

    fn check_to_serve(&self, request: ServeAdapterRequest) -> Result<ServedAdapter, Failure> {
        let ServeAdapterRequest { adapter, in_place } = request;
        let adapter = adapter.unwrap_or_default();
        if !self.args.lora.enable_lora {
            return Err(error::invalid("adapters are not enabled: start with --enable-lora".into()));
        }
        if !self.group.is_formed() {
            return Err(error::no_workers(&self.group.waits_for()));
        }
        match !in_place && self.adapters.find(&adapter.name).is_some() {
            true => Err(error::already_loaded(&adapter.name)),
            false => Ok(adapter),
        }
    }

    /// The adapter that a name stands for in the folder of adapters, if it is not served yet.
    fn to_resolve(&self, name: &str) -> Option<ServedAdapter> {
        let dir = self.args.lora_dir.as_ref().filter(|_| self.args.lora.enable_lora && self.group.is_formed())?;
        let inside = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
        if name.is_empty() || !inside || self.adapters.find(name).is_some() {
            return None;
        }
        let path = dir.join(name);
        path.join("adapter_config.json").is_file().then(|| ServedAdapter {
            name: name.to_owned(),
            path: path.display().to_string(),
            ..ServedAdapter::default()
        })
    }
}
