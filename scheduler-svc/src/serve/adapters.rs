//! Adapters: which request waits for which, and what the control plane asks for.

use std::path::{Component, Path};

use anyhow::bail;
use proto::{
    AdapterLoaded, DropAdapter, Failure, LoadAdapter, ServeAdapterRequest, ServedAdapter, failure::Kind,
    to_worker::Command,
};
use tracing::{info, warn};

use super::Engine;
use crate::{
    adapters::{AdapterCall, Answered, Waiter},
    error,
};

impl Engine {
    /// Loads the adapters of the command line that are not served yet. Others are loaded into a new group when a
    /// request names them.
    pub(super) fn load_modules(&mut self) {
        for module in std::mem::take(&mut self.modules) {
            let identity = self.adapters.new_identity(&module.name);
            self.wait(&identity, &module.path.clone(), Waiter::Static(module));
        }
        self.say_readiness();
    }

    /// Has a waiter wait for an adapter, which the workers load unless they do already.
    fn wait(&mut self, identity: &str, path: &str, waiter: Waiter) {
        if self.adapters.wait(identity, waiter) {
            let load = LoadAdapter { adapter: identity.to_owned(), path: path.to_owned() };
            self.to_workers.push(Command::LoadAdapter(load));
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
            self.wait(&identity, &path, Waiter::Request(Box::new(request)));
            return Ok(());
        }
        let key = request.key;
        self.admit_now(request)?;
        if let Some(key) = key {
            self.adapters.admitted(key, identity);
        }
        Ok(())
    }

    /// A worker has read an adapter, or could not. Fails where the command line names one that cannot be served.
    pub(super) fn adapter_loaded(&mut self, AdapterLoaded { adapter, error }: AdapterLoaded) -> anyhow::Result<()> {
        let Some(Answered { identity, error, waiters }) = self.adapters.answered(&adapter, error) else {
            return Ok(());
        };
        if !error.is_empty() {
            // Some ranks may have it.
            self.to_workers.push(Command::DropAdapter(DropAdapter { adapter: identity.clone() }));
        }
        for waiter in waiters {
            let failure = (!error.is_empty()).then(|| error::invalid(error.clone()));
            match (waiter, failure) {
                (Waiter::Request(request), None) => self.admit_hosted(*request, &identity),
                (Waiter::Request(request), Some(failure)) => self.refuse(*request, failure),
                (Waiter::Serve(adapter, reply), None) => {
                    info!(name = adapter.name, path = adapter.path, "adapter served");
                    self.adapters.serve(identity.clone(), adapter);
                    let _ = reply.send(None);
                }
                (Waiter::Serve(_, reply), failure) => drop(reply.send(failure)),
                (Waiter::Resolve(adapter, reply), None) => {
                    self.adapters.serve(identity.clone(), adapter);
                    let _ = reply.send(self.adapters.list());
                }
                (Waiter::Resolve(adapter, reply), Some(failure)) => {
                    warn!(name = adapter.name, path = adapter.path, "no adapter: {}", failure.message);
                    let _ = reply.send(self.adapters.list());
                }
                (Waiter::Static(adapter), None) => self.adapters.serve(identity.clone(), adapter),
                (Waiter::Static(adapter), Some(failure)) => {
                    bail!("--lora-modules {}={}: {}", adapter.name, adapter.path, failure.message)
                }
            }
        }
        self.say_readiness();
        Ok(())
    }

    fn admit_hosted(&mut self, request: proto::Request, identity: &str) {
        let (key, copy) = (request.key, (request.key, request.request_id.clone()));
        match self.admit_now(request) {
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
        for waiter in self.adapters.lost() {
            let failure = error::no_workers(reason);
            match waiter {
                Waiter::Request(request) => self.refuse(*request, failure),
                Waiter::Serve(_, reply) => drop(reply.send(Some(failure))),
                Waiter::Resolve(_, reply) => drop(reply.send(self.adapters.list())),
                Waiter::Static(module) => self.modules.push(module),
            }
        }
    }

    /// Lets the workers forget what the host need not keep.
    pub(super) fn evict_adapters(&mut self) {
        if self.args.lora.enable_lora {
            for adapter in self.adapters.evict() {
                self.to_workers.push(Command::DropAdapter(DropAdapter { adapter }));
            }
            self.metrics.hosted_adapters(self.adapters.num_hosted());
            if let Some(core) = &self.core {
                self.metrics.lora_requests(self.args.lora.max_loras, &core.adapters(), super::unix_seconds());
            }
        }
    }

    /// Answers the control plane; its caller may be gone.
    pub(super) fn about_adapters(&mut self, call: AdapterCall) {
        match call {
            AdapterCall::Serve(request, reply) => match self.check_to_serve(&request) {
                Ok(adapter) => {
                    let identity = self.adapters.new_identity(&adapter.name);
                    self.wait(&identity, &adapter.path.clone(), Waiter::Serve(adapter, reply));
                }
                Err(failure) => drop(reply.send(Some(failure))),
            },
            AdapterCall::Remove(name, reply) => {
                let failure = (!self.adapters.remove(&name)).then(|| error::no_such_adapter(&name));
                let _ = reply.send(failure);
            }
            AdapterCall::List(name, reply) => match self.to_resolve(&name) {
                Some(adapter) => {
                    // Others may have asked for it just now.
                    let loading = self.adapters.loading(&name).map(str::to_owned);
                    let identity = loading.unwrap_or_else(|| self.adapters.new_identity(&name));
                    self.wait(&identity, &adapter.path.clone(), Waiter::Resolve(adapter, reply));
                }
                None => drop(reply.send(self.adapters.list())),
            },
        }
    }

    fn check_to_serve(&self, request: &ServeAdapterRequest) -> Result<ServedAdapter, Failure> {
        let ServeAdapterRequest { adapter, in_place } = request;
        let adapter = adapter.clone().unwrap_or_default();
        if !self.args.lora.enable_lora {
            return Err(error::invalid("adapters are not enabled: start with --enable-lora".into()));
        }
        if !self.group.is_formed() {
            return Err(error::no_workers(&self.group.waits_for()));
        }
        if self.adapters.loading(&adapter.name).is_some() {
            return Err(error::invalid(format!("The lora adapter '{}' is being loaded.", adapter.name)));
        }
        if !in_place && self.adapters.find(&adapter.name).is_some() {
            return Err(error::invalid(format!(
                "The lora adapter '{}' has already been loaded. If you want to load the adapter in place, set \
                 'load_inplace' to True.",
                adapter.name
            )));
        }
        if !Path::new(&adapter.path).is_dir() {
            let message = format!("No adapter found for {}: it must be a folder.", adapter.path);
            return Err(Failure { kind: Kind::NotFound.into(), ..error::invalid(message) });
        }
        Ok(adapter)
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
            base_model_name: String::new(),
        })
    }
}
