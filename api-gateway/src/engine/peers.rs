//! The control planes of the other processes: are they ready, what do they count, and the tokenizer's own service.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    time::{Duration, Instant},
};

use futures::future::join_all;
use link::{Channel, LinkOptions, channel};
use proto::tokenizer_service_client::TokenizerServiceClient;
use service_kit::{Address, control::ControlClient, metrics::Description};
use tokio::sync::Mutex;

use crate::{config::PeerArgs, error::ApiError, metrics::PROCESS_READY};

/// How long a process may take to say that it is ready.
const READY_DEADLINE: Duration = Duration::from_secs(1);
/// Between two questions to a process that does not answer yet.
const RETRY: Duration = Duration::from_millis(20);
/// Largest `/tokenize` answer: a context of millions of tokens with their texts.
const MAX_REPLY_BYTES: usize = 256 << 20;

/// One process's control plane.
struct Peer {
    name: String,
    client: ControlClient,
    /// The engine that it is part of; absent of those that all engines share.
    engine: Option<usize>,
}

/// The other processes, by what they are.
pub struct Peers {
    pipeline: Vec<Peer>,
    gateways: Vec<ControlClient>,
    tokenizer: Option<ControlClient>,
    /// By data-parallel rank.
    schedulers: Vec<ControlClient>,
    tokenizer_service: Option<TokenizerServiceClient<Channel>>,
    last: Mutex<Option<(Instant, Result<(), String>)>>,
}

impl Peers {
    /// Connects lazily to every control plane that the flags name.
    pub fn new(args: &PeerArgs, links: &LinkOptions) -> anyhow::Result<Self> {
        let mut pipeline = Vec::new();
        let mut add = |name: String, address: &Address, engine: Option<usize>| -> anyhow::Result<ControlClient> {
            let client = ControlClient::new(address, links)?;
            pipeline.push(Peer { name, client: client.clone(), engine });
            Ok(client)
        };
        let tokenizer = match &args.tokenizer_control {
            Some(address) => Some(add("tokenizer".into(), address, None)?),
            None => None,
        };
        let mut schedulers = Vec::new();
        for (engine, address) in args.scheduler_control.iter().enumerate() {
            let name = if engine == 0 { "scheduler".to_owned() } else { format!("scheduler {engine}") };
            schedulers.push(add(name, address, Some(engine))?);
        }
        let workers = (args.worker_control.len() / schedulers.len().max(1)).max(1);
        for (number, address) in args.worker_control.iter().enumerate() {
            add(format!("worker {number}"), address, Some(number / workers))?;
        }
        if let Some(address) = &args.detokenizer_control {
            add("detokenizer".into(), address, None)?;
        }
        let gateway = |address| ControlClient::new(address, links);
        let service = |address: &Address| -> anyhow::Result<_> {
            let client = TokenizerServiceClient::new(channel(address, links)?);
            Ok(client.max_decoding_message_size(MAX_REPLY_BYTES).max_encoding_message_size(MAX_REPLY_BYTES))
        };
        Ok(Self {
            pipeline,
            gateways: args.gateway_control.iter().map(gateway).collect::<Result<_, _>>()?,
            tokenizer,
            schedulers,
            tokenizer_service: args.tokenizer_control.as_ref().map(service).transpose()?,
            last: Mutex::new(None),
        })
    }

    /// The tokenizer's control plane.
    pub fn tokenizer(&self) -> Option<&ControlClient> {
        self.tokenizer.as_ref()
    }

    /// The schedulers' control planes, by data-parallel rank.
    pub fn schedulers(&self) -> &[ControlClient] {
        &self.schedulers
    }

    /// The tokenizer's own service.
    pub fn tokenizer_service(&self) -> Result<TokenizerServiceClient<Channel>, ApiError> {
        self.tokenizer_service
            .clone()
            .ok_or_else(|| ApiError::unavailable("The tokenizer's address is not configured."))
    }

    /// Whether the processes that all engines share are ready, and all those of one engine; else what is not, and why.
    /// However many ask, one round of questions is under way at a time, and whoever waited for it takes the answer if
    /// its questions were asked after his own.
    pub async fn ready(&self) -> Result<(), String> {
        let arrived = Instant::now();
        let mut last = self.last.lock().await;
        if let Some((asked, verdict)) = &*last
            && *asked >= arrived
        {
            return verdict.clone();
        }
        let asked = Instant::now();
        let verdict = self.ask_all().await;
        *last = Some((asked, verdict.clone()));
        verdict
    }

    /// What is wrong where the flags say another number of engines than the tokenizer. Waits until it answers.
    pub async fn miscounted(&self) -> Option<String> {
        let tokenizer = self.tokenizer.as_ref()?;
        let info = loop {
            match tokenizer.info().await {
                Ok(info) => break info,
                // As with its model: there is no event for "it answers".
                Err(_) => tokio::time::sleep(RETRY).await,
            }
        };
        let facts: serde_json::Value = serde_json::from_str(&info.config_json).ok()?;
        let (said, there) = (self.schedulers.len(), facts["engines"].as_u64()?);
        let problem =
            || format!("--data-parallel-size {said}: --engine has {there}; pass --data-parallel-size {there}");
        (said as u64 != there).then(problem)
    }

    /// Ends a request at whichever other gateway took it.
    pub async fn abort_elsewhere(&self, request_id: &str) {
        join_all(self.gateways.iter().map(|gateway| gateway.abort(request_id))).await;
    }

    /// What every other process that answers says of itself.
    pub async fn infos(&self) -> Vec<proto::InfoReply> {
        join_all(self.all().map(ControlClient::info)).await.into_iter().filter_map(Result::ok).collect()
    }

    /// Begins a profile in every other process; which one does not, and why.
    pub async fn start_profile(&self, request: proto::StartProfileRequest) -> Result<(), String> {
        let begun = join_all(self.all().map(|client| client.start_profile(request))).await;
        let refused = begun.into_iter().find_map(Result::err);
        refused.map_or(Ok(()), |status| Err(format!("A process does not begin its profile: {}", status.message())))
    }

    /// Ends it; what those that answer have recorded. Of several of a kind, each has its number in its name.
    pub async fn stop_profile(&self) -> Vec<proto::StopProfileReply> {
        let mut replies = join_all(self.all().map(ControlClient::stop_profile)).await;
        for (peer, reply) in self.pipeline.iter().zip(&mut replies) {
            if let (Some((_, number)), Ok(reply)) = (peer.name.split_once(' '), reply) {
                reply.service = format!("{} {number}", reply.service);
            }
        }
        replies.into_iter().filter_map(Result::ok).collect()
    }

    /// Every other process.
    fn all(&self) -> impl Iterator<Item = &ControlClient> {
        self.pipeline.iter().map(|peer| &peer.client).chain(&self.gateways)
    }

    async fn ask_all(&self) -> Result<(), String> {
        let answers = join_all(self.pipeline.iter().map(Peer::ready)).await;
        let engines = self.pipeline.iter().map(|peer| peer.engine);
        verdict(&engines.zip(answers).collect::<Vec<_>>())
    }

    /// Which processes of the pipeline are ready now, as metrics.
    pub async fn readiness(&self) -> String {
        let answers = join_all(self.pipeline.iter().map(Peer::ready)).await;
        let Description { name, kind, help, .. } = PROCESS_READY;
        let mut text = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for (peer, answer) in self.pipeline.iter().zip(answers) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{name}{{process=\"{}\"}} {}", peer.name, u8::from(answer.is_ok()));
        }
        text
    }

    /// The metrics of every other process that answers.
    pub async fn metrics(&self) -> Vec<String> {
        let texts = join_all(self.all().map(ControlClient::metrics)).await;
        texts.into_iter().filter_map(Result::ok).collect()
    }
}

/// Whether a request would be served, by what each process says of itself and the engine that it is part of.
fn verdict(answers: &[(Option<usize>, Result<(), String>)]) -> Result<(), String> {
    let engines: BTreeSet<usize> = answers.iter().filter_map(|(engine, _)| *engine).collect();
    let is_well = |engine: &usize| answers.iter().all(|(of, answer)| *of != Some(*engine) || answer.is_ok());
    // What one engine lacks does not count where another serves.
    let serves = engines.iter().any(is_well);
    let counts = |engine: &Option<usize>| engine.is_none() || !serves;
    let reasons: Vec<&str> = answers
        .iter()
        .filter(|(engine, _)| counts(engine))
        .filter_map(|(_, answer)| answer.as_ref().err().map(String::as_str))
        .collect();
    if reasons.is_empty() { Ok(()) } else { Err(reasons.join("; ")) }
}

impl Peer {
    async fn ready(&self) -> Result<(), String> {
        let name = &self.name;
        match tokio::time::timeout(READY_DEADLINE, self.client.ready()).await {
            Ok(Ok(reply)) if reply.ready => Ok(()),
            Ok(Ok(reply)) => Err(format!("{name}: {}", reply.reason)),
            Ok(Err(status)) if status.code() == tonic::Code::Unauthenticated => {
                Err(format!("{name}: turns this process away: {}", status.message()))
            }
            Ok(Err(_)) => Err(format!("{name}: does not answer")),
            Err(_) => Err(format!("{name}: does not answer within {} ms", READY_DEADLINE.as_millis())),
        }
    }
}

/// A call that the tokenizer did not answer.
pub fn refused(status: tonic::Status) -> ApiError {
    match status.code() {
        tonic::Code::InvalidArgument | tonic::Code::OutOfRange => ApiError::body(status.message()),
        code => {
            tracing::warn!(?code, message = status.message(), "the tokenizer did not answer");
            ApiError::unavailable("The tokenizer is not available, try again.")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_engine_that_is_well_serves() {
        let check = |answers: &[(Option<usize>, &str)]| {
            let answer = |reason: &str| if reason.is_empty() { Ok(()) } else { Err(reason.to_owned()) };
            let answers: Vec<_> = answers.iter().map(|(engine, reason)| (*engine, answer(reason))).collect();
            verdict(&answers).err().unwrap_or_default()
        };
        let (shared, first, second) = (None, Some(0), Some(1));
        assert_eq!(check(&[(shared, ""), (first, ""), (first, ""), (second, "lost"), (second, "")]), "");
        assert_eq!(check(&[(shared, "loading"), (first, ""), (second, "lost")]), "loading");
        assert_eq!(check(&[(shared, ""), (first, ""), (first, "loading"), (second, "lost")]), "loading; lost");
        assert_eq!(check(&[(shared, ""), (first, "loading")]), "loading");
        assert_eq!(check(&[(shared, "")]), "");
    }
}
