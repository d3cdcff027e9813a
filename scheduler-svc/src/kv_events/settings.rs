//! `--kv-events-config`, in vLLM's words.

use std::{fmt, path::PathBuf, str::FromStr};

use serde::Deserialize;

/// Batches that may be kept, or wait, at most.
const MOST: usize = 1_000_000;

/// What is published, and where. Absent settings: nothing is.
#[derive(Clone, Debug, Default)]
pub struct KvEventsConfig(Option<Settings>);

/// Where events go, and what is kept of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where subscribers are, or come.
    pub endpoint: Endpoint,
    /// Where those come who missed something.
    pub replay_endpoint: Option<Place>,
    /// Batches that are kept for them.
    pub buffer_steps: usize,
    /// Batches that may wait for a subscriber.
    pub hwm: usize,
    /// Batches that may wait to be written.
    pub max_queue_size: usize,
    /// What batches begin with, for subscribers to choose by.
    pub topic: String,
}

/// An end of the subscribers' connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// They come here.
    Bind(Place),
    /// One is there.
    Connect(Place),
}

/// An address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Host and port.
    Tcp(String, u16),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Bind(place) | Self::Connect(place)) = self;
        place.fmt(f)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) => write!(f, "tcp://{host}:{port}"),
            Self::Unix(path) => write!(f, "ipc://{}", path.display()),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Members {
    enable_kv_cache_events: bool,
    publisher: Option<String>,
    endpoint: String,
    replay_endpoint: Option<String>,
    buffer_steps: usize,
    hwm: usize,
    max_queue_size: usize,
    topic: String,
}

impl Default for Members {
    fn default() -> Self {
        Self {
            enable_kv_cache_events: false,
            publisher: None,
            endpoint: "tcp://*:5557".to_owned(),
            replay_endpoint: None,
            buffer_steps: 10_000,
            hwm: 100_000,
            max_queue_size: 100_000,
            topic: String::new(),
        }
    }
}

impl KvEventsConfig {
    /// The settings of an engine of this data-parallel rank, each of which has ports of its own.
    pub(crate) fn of_rank(&self, rank: u32) -> Result<Option<Settings>, String> {
        let Some(settings) = self.0.clone() else { return Ok(None) };
        let endpoint = match settings.endpoint {
            Endpoint::Bind(place) => Endpoint::Bind(place.of_rank(rank)?),
            Endpoint::Connect(place) => Endpoint::Connect(place.of_rank(rank)?),
        };
        let replay_endpoint = settings.replay_endpoint.map(|place| place.of_rank(rank)).transpose()?;
        Ok(Some(Settings { endpoint, replay_endpoint, ..settings }))
    }
}

impl FromStr for KvEventsConfig {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let members: Members = serde_json::from_str(text).map_err(|error| format!("not vLLM's object: {error}"))?;
        match members.publisher.as_deref() {
            Some("null") => return Ok(Self(None)),
            None | Some("zmq") => {}
            Some(other) => return Err(format!("publisher: expected \"zmq\" or \"null\", not {other:?}")),
        }
        if !members.enable_kv_cache_events {
            return Ok(Self(None));
        }
        for (name, value) in
            [("buffer_steps", members.buffer_steps), ("hwm", members.hwm), ("max_queue_size", members.max_queue_size)]
        {
            if !(1..=MOST).contains(&value) {
                return Err(format!("{name}: must be 1 to {MOST}"));
            }
        }
        let replay_endpoint = members.replay_endpoint.as_deref().map(|text| place("replay_endpoint", text));
        Ok(Self(Some(Settings {
            endpoint: endpoint(&members.endpoint)?,
            replay_endpoint: replay_endpoint.transpose()?,
            buffer_steps: members.buffer_steps,
            hwm: members.hwm,
            max_queue_size: members.max_queue_size,
            topic: members.topic,
        })))
    }
}

/// As vLLM: a wildcard is an address to listen at, another host is one to connect to.
fn endpoint(text: &str) -> Result<Endpoint, String> {
    let place = place("endpoint", text)?;
    let binds = text.contains('*') || text.contains("::") || matches!(place, Place::Unix(_));
    Ok(if binds { Endpoint::Bind(place) } else { Endpoint::Connect(place) })
}

fn place(member: &str, text: &str) -> Result<Place, String> {
    let expected = || format!("{member}: expected tcp://HOST:PORT, tcp://*:PORT or ipc://PATH, not {text:?}");
    if let Some(path) = text.strip_prefix("ipc://") {
        return if path.starts_with('/') { Ok(Place::Unix(path.into())) } else { Err(expected()) };
    }
    let (host, port) = text.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':')).ok_or_else(expected)?;
    let port = port.parse().map_err(|_| expected())?;
    match host {
        "" => Err(expected()),
        "*" => Ok(Place::Tcp("0.0.0.0".to_owned(), port)),
        host => Ok(Place::Tcp(host.trim_start_matches('[').trim_end_matches(']').to_owned(), port)),
    }
}

impl Place {
    fn of_rank(self, rank: u32) -> Result<Self, String> {
        match self {
            // Any free one.
            Self::Tcp(host, 0) => Ok(Self::Tcp(host, 0)),
            Self::Tcp(host, port) => {
                let own = u16::try_from(u32::from(port) + rank);
                let own = own.map_err(|_| format!("there is no port {port} + {rank}, the data-parallel rank"))?;
                Ok(Self::Tcp(host, own))
            }
            Self::Unix(path) if rank == 0 => Ok(Self::Unix(path)),
            Self::Unix(path) => {
                let mut name = path.into_os_string();
                name.push(format!("_dp{rank}"));
                Ok(Self::Unix(name.into()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(members: &str) -> Result<Option<Settings>, String> {
        let text = format!(r#"{{"enable_kv_cache_events": true{members}}}"#);
        text.parse::<KvEventsConfig>().and_then(|config| config.of_rank(2))
    }

    #[test]
    fn each_rank_has_a_port_of_its_own() {
        let tcp = |host: &str, port| Place::Tcp(host.to_owned(), port);
        let check = |members: &str, endpoint: Endpoint| {
            assert_eq!(settings(members).unwrap().unwrap().endpoint, endpoint, "{members}");
        };
        check("", Endpoint::Bind(tcp("0.0.0.0", 5559)));
        check(r#", "endpoint": "tcp://*:0""#, Endpoint::Bind(tcp("0.0.0.0", 0)));
        check(r#", "endpoint": "tcp://[::]:7""#, Endpoint::Bind(tcp("::", 9)));
        check(r#", "endpoint": "tcp://indexer:7000""#, Endpoint::Connect(tcp("indexer", 7002)));
        check(r#", "endpoint": "ipc:///run/events""#, Endpoint::Bind(Place::Unix("/run/events_dp2".into())));
        let replay = settings(r#", "replay_endpoint": "tcp://127.0.0.1:5558""#).unwrap().unwrap().replay_endpoint;
        assert_eq!(replay, Some(tcp("127.0.0.1", 5560)));
    }

    #[test]
    fn nothing_is_published_unless_asked_for() {
        for text in ["{}", r#"{"topic": "t"}"#, r#"{"enable_kv_cache_events": true, "publisher": "null"}"#] {
            assert_eq!(text.parse::<KvEventsConfig>().unwrap().of_rank(0), Ok(None), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (members, named) in [
            (r#", "endpoint": "inproc://x""#, "endpoint"),
            (r#", "endpoint": "tcp://*""#, "tcp://*"),
            (r#", "replay_endpoint": "tcp://*:x""#, "replay_endpoint"),
            (r#", "endpoint": "tcp://*:65535""#, "65535 + 2"),
            (r#", "hwm": 0"#, "hwm"),
            (r#", "publisher": "kafka""#, "kafka"),
            (r#", "steps": 1"#, "steps"),
        ] {
            let problem = settings(members).expect_err(members);
            assert!(problem.contains(named), "{problem}");
        }
    }
}
