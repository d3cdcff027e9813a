//! Gateways of other hosts: where they reach this engine, and what has no place here when they alone serve the API.

use std::net::TcpListener;

use anyhow::bail;
use service_kit::{Address, GatewayPorts};

use super::{
    engine::{Engine, Role},
    flags::{Settings, of_gateways_alone},
};

/// Who serves the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateways {
    /// Where gateways of other hosts come.
    pub ports: Option<GatewayPorts>,
    /// How many processes here serve it.
    pub here: u32,
}

/// Flags of gateways that also hold for the process that operators ask where there is no API.
const OF_OPERATIONS: [&str; 12] = [
    "disable-uvicorn-access-log",
    "host",
    "http-keep-alive",
    "max-connections",
    "profiler-config",
    "served-model-name",
    "server-dev-mode",
    "ssl-ca-certs",
    "ssl-cert-reqs",
    "ssl-certfile",
    "ssl-keyfile",
    "uds",
];

impl Default for Gateways {
    fn default() -> Self {
        Self { ports: None, here: 1 }
    }
}

impl Gateways {
    /// What the flags say.
    pub fn read(settings: &Settings) -> anyhow::Result<Self> {
        let gateways =
            Self { ports: settings.number("listen-gateways"), here: settings.number("api-server-count").unwrap_or(1) };
        if gateways.here == 0 {
            if gateways.ports.is_none() {
                bail!(
                    "--api-server-count 0: nothing could ask this engine; add --listen-gateways grpc://0.0.0.0:9001 \
                     for gateways of other hosts, or, on nodes other than the first, --headless"
                );
            }
            refuse_without_api(settings)?;
        }
        Ok(gateways)
    }

    /// Processes that listen at the HTTP port: without an API, one for operators.
    pub fn processes(&self) -> u32 {
        self.here.max(1)
    }

    /// Whether the HTTP port has no API.
    pub fn operations_only(&self) -> bool {
        self.here == 0
    }

    /// Where a process serves its control plane for gateways of other hosts.
    pub fn control(&self, role: Role) -> Option<Address> {
        let ports = self.ports.as_ref()?;
        match role {
            Role::Tokenizer => Some(ports.tokenizer_control()),
            Role::Scheduler(engine) => Some(ports.scheduler_control(engine)),
            Role::Detokenizer | Role::Worker(_) | Role::Gateway(_) => None,
        }
    }

    /// How a gateway of another host is started for this engine.
    pub fn command(&self, engine: &Engine<'_>) -> Option<String> {
        let (host, ports) = self.ports.as_ref()?.all(engine.replicas.engines);
        // Who listens at all addresses is dialled at one of them.
        let host = if ["0.0.0.0", "[::]"].contains(&host) { "HOST" } else { host };
        let mut words = vec![format!("quire gateway --engine grpc://{host}:{}", ports.start)];
        let replicas = engine.replicas;
        words.extend((replicas.engines > 1).then(|| format!("--data-parallel-size {}", replicas.engines)));
        words.extend((replicas.first > 0).then(|| format!("--data-parallel-rank {}", replicas.first)));
        words.push(match engine.settings.list("served-model-name") {
            [] => format!("--model {}", engine.model.name),
            names => format!("--served-model-name {}", names.join(" ")),
        });
        let shown = ["link-token-file", "link-ssl-certfile", "link-ssl-keyfile", "link-ssl-ca-certs"];
        words.extend(shown.iter().filter_map(|name| Some(format!("--{name} {}", engine.settings.text(name)?))));
        Some(words.join(" "))
    }

    /// Looks whether the ports can be listened at, so that one that cannot shows before the model loads.
    pub fn check_ports(&self, engines: u32) -> anyhow::Result<()> {
        let Some(ports) = &self.ports else { return Ok(()) };
        let (host, numbers) = ports.all(engines);
        for port in numbers {
            if let Err(error) = TcpListener::bind(format!("{host}:{port}")) {
                bail!(
                    "--listen-gateways {ports}: cannot listen at {host}:{port}, which it includes: {error}; pass \
                     another address, with {} free ports",
                    ports.all(engines).1.len()
                );
            }
        }
        Ok(())
    }
}

/// Refuses flags that would hold for gateways, of which there are none here.
fn refuse_without_api(settings: &Settings) -> anyhow::Result<()> {
    match of_gateways_alone(settings).find(|name| !OF_OPERATIONS.contains(name)) {
        Some(name) => {
            let source = settings.source(name).unwrap_or_default();
            bail!(
                "--{name} ({source}): with --api-server-count 0 gateways of other hosts serve the API; give it to each \
                 `quire gateway` instead"
            )
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::flags::{is_flag_of_serve, parse};

    fn read(line: &str) -> Result<Gateways, String> {
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        let settings = parse(&words).map_err(|error| error.to_string())?;
        Gateways::read(&settings).map_err(|error| error.to_string())
    }

    #[test]
    fn they_are_here_or_elsewhere() {
        assert_eq!(read(""), Ok(Gateways::default()));
        let elsewhere = read("-asc 0 --listen-gateways grpc://[::1]:9001 --host ::1 --port 9 -tp 2").unwrap();
        assert!(elsewhere.operations_only() && elsewhere.processes() == 1);
        let at = |role| elsewhere.control(role).map(|address| address.to_string());
        assert_eq!(at(Role::Tokenizer).as_deref(), Some("grpc://[::1]:9003"));
        assert_eq!(at(Role::Scheduler(1)).as_deref(), Some("grpc://[::1]:9005"));
        assert_eq!(at(Role::Worker(0)), None);
        assert_eq!(read("-asc 3 --listen-gateways grpc://a:9001").unwrap().processes(), 3);
    }

    #[test]
    fn what_nobody_would_hear_is_refused() {
        for (line, part) in [
            ("--api-server-count 0", "add --listen-gateways"),
            ("--listen-gateways 0.0.0.0:9001", "grpc://HOST:PORT"),
            ("-asc 0 --listen-gateways grpc://a:1 --tool-call-parser hermes", "--tool-call-parser (command line)"),
            ("-asc 0 --listen-gateways grpc://a:1 --api-key k", "--api-key"),
        ] {
            let error = read(line).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        assert!(OF_OPERATIONS.is_sorted() && OF_OPERATIONS.iter().all(|name| is_flag_of_serve(name)));
    }

    #[test]
    fn a_port_that_is_taken_is_named() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let gateways = read(&format!("--listen-gateways grpc://127.0.0.1:{}", port - 3)).unwrap();
        let error = gateways.check_ports(1).unwrap_err().to_string();
        assert!(error.contains(&format!("127.0.0.1:{port}")) || error.contains("in use"), "{error}");
        drop(taken);
    }
}
