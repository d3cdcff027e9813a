//! Which processes an engine has, and how each is called.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use model_source::Model;
use service_kit::Address;

use super::{
    flags::{Settings, To, passed_to},
    gateways::Gateways,
    nodes::Nodes,
    port::Port,
    replicas::Replicas,
    runtime_dir::RuntimeDir,
    supervisor::Spec,
};

/// One process of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Turns tokens into text.
    Detokenizer,
    /// Plans steps; by engine.
    Scheduler(u32),
    /// Turns text into tokens.
    Tokenizer,
    /// Runs the model; by number: those of an engine follow those of the one before it.
    Worker(u32),
    /// Speaks HTTP; by number.
    Gateway(u32),
}

/// What an engine is made from.
pub struct Engine<'a> {
    /// The user's flags.
    pub settings: &'a Settings,
    /// The model, found.
    pub model: &'a Model,
    /// Another tokenizer: its folder, or a GGUF file.
    pub tokenizer: Option<PathBuf>,
    /// Tells this model from others; processes with different ones refuse each other.
    pub fingerprint: &'a str,
    /// Where sockets lie.
    pub runtime_dir: &'a RuntimeDir,
    /// Where gateways listen; none when they listen at a Unix socket.
    pub port: Option<&'a Port>,
    /// This program, which is every process too.
    pub program: &'a Path,
    /// The nodes that the workers are spread over, where there are several.
    pub nodes: Option<Nodes>,
    /// How many engines there are.
    pub replicas: Replicas,
    /// Who serves the API.
    pub gateways: Gateways,
}

/// How long a process other than a gateway may take to end.
const GRACE: Duration = Duration::from_secs(5);
/// What vLLM users call aborting is not the default here: running requests get this long.
const DRAIN_S: f64 = 30.0;

impl Role {
    /// The subcommand that runs it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Detokenizer => "detokenizer",
            Self::Scheduler(_) => "scheduler",
            Self::Tokenizer => "tokenizer",
            Self::Worker(_) => "worker",
            Self::Gateway(_) => "gateway",
        }
    }

    /// Which flags go to it.
    fn to(self) -> To {
        match self {
            Self::Detokenizer => To::DETOKENIZER,
            Self::Scheduler(_) => To::SCHEDULER,
            Self::Tokenizer => To::TOKENIZER,
            Self::Worker(_) => To::WORKER,
            Self::Gateway(_) => To::GATEWAY,
        }
    }

    /// Flags to look at when it does not start.
    fn remedy(self) -> &'static str {
        match self {
            Self::Detokenizer => "look at MODEL and --tokenizer",
            Self::Scheduler(_) => "look at --max-model-len, --max-num-seqs and --max-num-batched-tokens",
            Self::Tokenizer => "look at MODEL, --tokenizer and --chat-template",
            Self::Worker(_) => {
                "look at MODEL, --dtype, --load-format, --tensor-parallel-size, --max-model-len, \
                 --kv-cache-memory-bytes and --gpu-memory-utilization"
            }
            Self::Gateway(_) => "look at --host, --port, --uds and the --ssl flags",
        }
    }
}

/// The number appears where there can be several.
impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scheduler(number) | Self::Worker(number) | Self::Gateway(number) if *number > 0 => {
                write!(f, "{} {number}", self.word())
            }
            _ => f.write_str(self.word()),
        }
    }
}

impl Engine<'_> {
    /// All processes. Listeners come first, so that dialers connect at the first try.
    pub fn roles(&self) -> Vec<Role> {
        let engines = 0..self.replicas.engines;
        let workers = 0..engines.end * self.world_size();
        let here = self.nodes.as_ref().map_or(workers, |nodes| nodes.workers.clone()).map(Role::Worker);
        if self.nodes.as_ref().is_some_and(|nodes| !nodes.is_head()) {
            return here.collect();
        }
        let mut roles = vec![Role::Detokenizer];
        roles.extend(engines.map(Role::Scheduler));
        roles.push(Role::Tokenizer);
        roles.extend(here);
        roles.extend((0..self.gateways.processes()).map(Role::Gateway));
        roles
    }

    /// Workers of an engine.
    fn world_size(&self) -> u32 {
        let size = |name| self.settings.number(name).unwrap_or(1);
        size("tensor-parallel-size") * size("pipeline-parallel-size")
    }

    /// The ring of this name of an engine.
    fn ring(&self, name: &str, engine: u32) -> Address {
        let name = if engine == 0 { name.to_owned() } else { format!("{name}-{engine}") };
        Address::Ring(self.runtime_dir.socket(&name))
    }

    /// The flag of an engine's data-parallel rank; absent of the first, which is the default.
    fn rank(&self, engine: u32) -> Option<String> {
        let rank = self.replicas.first + engine;
        (rank > 0).then(|| format!("--data-parallel-rank={rank}"))
    }

    /// Where a process serves its control plane.
    pub fn control(&self, role: Role) -> Address {
        let name = match role {
            Role::Worker(number) | Role::Gateway(number) => format!("{}-{number}-control", role.word()),
            Role::Scheduler(engine) if engine > 0 => format!("scheduler-{engine}-control"),
            _ => format!("{}-control", role.word()),
        };
        Address::GrpcUnix(self.runtime_dir.socket(&name))
    }

    /// How a process is run.
    pub fn spec(&self, role: Role) -> Spec {
        let mut args = vec![role.word().to_owned(), format!("--supervised-by={}", std::process::id())];
        let controls = [Some(self.control(role)), self.gateways.control(role)];
        args.extend(controls.iter().flatten().map(|address| format!("--control={address}")));
        args.push(format!("--model-fingerprint={}", self.fingerprint));
        args.extend(self.links(role));
        args.extend(passed_to(role.to(), self.settings));
        let mut env = Vec::new();
        if let Role::Tokenizer | Role::Detokenizer = role {
            // This supervisor's own number: its processes keep it when they are started again.
            args.push(format!("--server-id={}", link::hello("", "", "").instance));
        }
        if let Role::Gateway(_) = role {
            args.extend(self.gateway_keys(&mut env));
        }
        if let Role::Scheduler(_) = role {
            // It downloads adapters, to where models are and with the same token.
            let variables = [("download-dir", "HF_HUB_CACHE"), ("hf-token", "HF_TOKEN")];
            env.extend(variables.iter().filter_map(|(flag, variable)| {
                self.settings.text(flag).map(|value| ((*variable).to_owned(), value.to_owned()))
            }));
        }
        Spec {
            name: role.to_string(),
            program: self.program.to_owned(),
            args,
            env,
            remedy: role.remedy(),
            grace: self.grace(role),
        }
    }

    /// Flags that this engine's layout decides.
    fn links(&self, role: Role) -> Vec<String> {
        let ring = |name: &str| Address::Ring(self.runtime_dir.socket(name));
        let flag = |name: &str, value: &dyn fmt::Display| format!("--{name}={value}");
        let model = flag("model", &self.model.path.display());
        let tokenizer = self.tokenizer.iter().map(|path| flag("tokenizer", &path.display()));
        let remote = self.gateways.ports.as_ref();
        match role {
            Role::Detokenizer => {
                let mut flags =
                    vec![flag("listen-tokens", &ring("tokens")), flag("listen-events", &ring("events")), model];
                flags.extend(remote.map(|ports| flag("listen-events", &ports.events())));
                flags.extend(tokenizer);
                flags
            }
            Role::Scheduler(engine) => {
                let mut flags = vec![
                    flag("listen-requests", &self.ring("encoded", engine)),
                    flag("listen-workers", &self.ring("steps", engine)),
                    flag("detokenizer", &ring("tokens")),
                    flag("served-model-name", &self.served_name()),
                ];
                let adapters = self.runtime_dir.file(&format!("adapters-{engine}.json"));
                flags.push(flag("served-adapters-file", &adapters.display()));
                flags.extend(self.rank(engine));
                flags.extend(self.nodes.as_ref().map(|nodes| flag("listen-workers", &nodes.listen())));
                flags
            }
            Role::Tokenizer => {
                let mut flags = vec![flag("listen", &ring("requests")), model];
                flags.extend(remote.map(|ports| flag("listen", &ports.requests())));
                flags.extend((0..self.replicas.engines).map(|engine| flag("scheduler", &self.ring("encoded", engine))));
                flags.extend(self.rank(0));
                flags.extend(tokenizer);
                flags
            }
            Role::Worker(number) => {
                let mut flags = self.worker_links(number);
                flags.push(model);
                flags.extend(tokenizer);
                flags
            }
            Role::Gateway(_) => self.gateway_links(role),
        }
    }

    fn worker_links(&self, number: u32) -> Vec<String> {
        let ring = |name: &str| Address::Ring(self.runtime_dir.socket(name));
        let size = |name: &str| self.settings.number::<u32>(name).unwrap_or(1);
        let (engine, rank) = (number / self.world_size(), number % self.world_size());
        let (mut scheduler, mut stage) = (self.ring("steps", engine), ring(&format!("stage-{number}")));
        let mut flags = vec![format!("--rank={rank}")];
        if self.replicas.engines > 1 {
            // All engines share the machine.
            flags.push(format!("--local-rank={number}"));
            flags.push(format!("--local-world-size={}", self.replicas.engines * self.world_size()));
        }
        flags.extend(self.rank(engine));
        if let Some(nodes) = &self.nodes {
            if !nodes.is_head() {
                scheduler = nodes.dial();
            }
            if rank.checked_sub(size("tensor-parallel-size")).is_some_and(|before| !nodes.workers.contains(&before)) {
                stage = nodes.any_port();
            }
            flags.push(format!("--local-rank={}", rank - nodes.workers.start));
            flags.push(format!("--local-world-size={}", nodes.workers.len()));
        }
        flags.push(format!("--scheduler={scheduler}"));
        if size("pipeline-parallel-size") > 1 {
            flags.push(format!("--listen-stage={stage}"));
        }
        flags
    }

    fn gateway_links(&self, role: Role) -> Vec<String> {
        let mut flags = vec![
            format!("--tokenizer={}", Address::Ring(self.runtime_dir.socket("requests"))),
            format!("--detokenizer={}", Address::Ring(self.runtime_dir.socket("events"))),
            format!("--model={}", self.model.name),
        ];
        for other in self.roles().into_iter().filter(|other| *other != role) {
            flags.push(format!("--{}-control={}", other.word(), self.control(other)));
        }
        flags.extend(self.rank(0));
        flags.extend(self.gateways.operations_only().then(|| "--operations-only".to_owned()));
        if let Some(port) = self.port {
            flags.extend([format!("--port={}", port.address.port()), "--reuse-port".to_owned()]);
        }
        flags
    }

    /// One key travels in the environment, where other users cannot list it as they can command lines.
    fn gateway_keys(&self, env: &mut Vec<(String, String)>) -> Vec<String> {
        match self.settings.list("api-key") {
            [key] => {
                env.push(("QUIRE_API_KEY".to_owned(), key.clone()));
                Vec::new()
            }
            keys => keys.iter().map(|key| format!("--api-key={key}")).collect(),
        }
    }

    /// The name that answers carry.
    pub fn served_name(&self) -> &str {
        self.settings.list("served-model-name").first().map_or(self.model.name.as_str(), String::as_str)
    }

    fn grace(&self, role: Role) -> Duration {
        match role {
            // Requests of gateways elsewhere are in the scheduler's hands.
            Role::Scheduler(_) if self.gateways.ports.is_none() => GRACE,
            Role::Gateway(_) | Role::Scheduler(_) => {
                let drain = self.settings.number("shutdown-timeout").unwrap_or(DRAIN_S);
                Duration::from_secs_f64(drain) + GRACE
            }
            _ => GRACE,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use model_source::Origin;

    use super::*;
    use crate::serve::flags::parse;

    fn with_engine(line: &str, check: impl FnOnce(&Engine<'_>)) {
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        let folder = tempfile::tempdir().unwrap();
        let runtime_dir = RuntimeDir::create(Some(folder.path())).unwrap();
        let port = Port::hold(&IpAddr::V4(Ipv4Addr::LOCALHOST).to_string(), 0).unwrap();
        let model = Model { path: "/m".into(), name: "wren".to_owned(), origin: Origin::BuiltIn };
        let settings = parse(&words).unwrap();
        check(&Engine {
            settings: &settings,
            model: &model,
            tokenizer: None,
            fingerprint: "f",
            runtime_dir: &runtime_dir,
            port: Some(&port),
            program: Path::new("/quire"),
            nodes: None,
            replicas: Replicas::read(&settings).unwrap(),
            gateways: Gateways::read(&settings).unwrap(),
        });
    }

    /// The value of a flag in a process's arguments.
    fn value(engine: &Engine<'_>, role: Role, name: &str) -> Option<String> {
        let prefix = format!("--{name}=");
        engine.spec(role).args.iter().find_map(|arg| arg.strip_prefix(&prefix).map(str::to_owned))
    }

    #[test]
    fn five_kinds_by_default_and_more_on_request() {
        with_engine("", |engine| {
            let names: Vec<_> = engine.roles().iter().map(ToString::to_string).collect();
            assert_eq!(names, ["detokenizer", "scheduler", "tokenizer", "worker", "gateway"]);
        });
        with_engine("-tp 2 --api-server-count 3", |engine| {
            assert_eq!(engine.roles().len(), 8);
            assert_eq!(value(engine, Role::Worker(1), "rank").as_deref(), Some("1"));
            assert_eq!(value(engine, Role::Worker(1), "tensor-parallel-size").as_deref(), Some("2"));
            let others = engine.spec(Role::Gateway(2)).args;
            assert_eq!(others.iter().filter(|arg| arg.starts_with("--gateway-control=")).count(), 2);
        });
    }

    #[test]
    fn both_ends_of_a_link_have_one_address() {
        use Role::{Detokenizer, Gateway, Scheduler, Tokenizer, Worker};
        with_engine("", |engine| {
            for (listener, listens, dialer, dials) in [
                (Tokenizer, "listen", Gateway(0), "tokenizer"),
                (Scheduler(0), "listen-requests", Tokenizer, "scheduler"),
                (Scheduler(0), "listen-workers", Worker(0), "scheduler"),
                (Detokenizer, "listen-tokens", Scheduler(0), "detokenizer"),
                (Detokenizer, "listen-events", Gateway(0), "detokenizer"),
                (Scheduler(0), "control", Gateway(0), "scheduler-control"),
            ] {
                let address = value(engine, listener, listens);
                assert!(address.is_some());
                assert_eq!(address, value(engine, dialer, dials), "{listener} {listens}");
            }
        });
    }

    #[test]
    fn gateways_of_other_hosts_find_each_process() {
        use Role::{Detokenizer, Gateway, Scheduler, Tokenizer, Worker};
        with_engine("-asc 0 -dp 2 --listen-gateways grpc://0.0.0.0:9001", |engine| {
            let all = |role, name: &str| -> Vec<String> {
                let prefix = format!("--{name}=grpc://0.0.0.0:");
                let args = engine.spec(role).args;
                args.iter().filter_map(|arg| arg.strip_prefix(&prefix).map(str::to_owned)).collect()
            };
            assert_eq!(all(Tokenizer, "listen"), ["9001"]);
            assert_eq!(all(Detokenizer, "listen-events"), ["9002"]);
            assert_eq!([all(Tokenizer, "control"), all(Scheduler(1), "control")], [["9003"], ["9005"]]);
            assert!(all(Worker(0), "control").is_empty() && all(Gateway(0), "control").is_empty());
            assert!(engine.spec(Gateway(0)).args.iter().any(|arg| arg == "--operations-only"));
            assert_eq!(engine.spec(Scheduler(0)).grace, Duration::from_secs(35));
            assert_eq!(engine.roles().iter().filter(|role| matches!(role, Gateway(_))).count(), 1);
        });
        with_engine("", |engine| {
            assert!(!engine.spec(Gateway(0)).args.iter().any(|arg| arg == "--operations-only"));
            assert_eq!(engine.spec(Scheduler(0)).grace, GRACE);
        });
    }

    #[test]
    fn engines_have_processes_and_devices_of_their_own() {
        with_engine("-dp 2 -tp 2", |engine| {
            let names: Vec<_> = engine.roles().iter().map(ToString::to_string).collect();
            let workers = ["worker", "worker 1", "worker 2", "worker 3"];
            let shared = ["detokenizer", "scheduler", "scheduler 1", "tokenizer"];
            assert_eq!(names, [&shared[..], &workers, &["gateway"]].concat());
            let (second, last) = (Role::Scheduler(1), Role::Worker(3));
            assert_eq!(value(engine, second, "data-parallel-rank").as_deref(), Some("1"));
            assert_eq!(value(engine, second, "listen-workers"), value(engine, last, "scheduler"));
            assert_ne!(value(engine, Role::Scheduler(0), "listen-workers"), value(engine, last, "scheduler"));
            for (name, expected) in [("rank", "1"), ("local-rank", "3"), ("local-world-size", "4")] {
                assert_eq!(value(engine, last, name).as_deref(), Some(expected), "{name}");
            }
            let schedulers =
                engine.spec(Role::Tokenizer).args.into_iter().filter(|arg| arg.starts_with("--scheduler="));
            assert_eq!(schedulers.count(), 2);
        });
        with_engine("-dp 4 --data-parallel-rank 3", |engine| {
            assert_eq!(engine.roles().len(), 5);
            for role in [Role::Scheduler(0), Role::Tokenizer, Role::Gateway(0)] {
                assert_eq!(value(engine, role, "data-parallel-rank").as_deref(), Some("3"), "{role}");
            }
        });
    }

    #[test]
    fn names_and_keys_reach_who_needs_them() {
        with_engine("--served-model-name a b --api-key k --load-format dummy", |engine| {
            assert_eq!(value(engine, Role::Scheduler(0), "served-model-name").as_deref(), Some("a"));
            let gateway = engine.spec(Role::Gateway(0));
            assert_eq!(gateway.env, [("QUIRE_API_KEY".to_owned(), "k".to_owned())]);
            assert!(!gateway.args.iter().any(|arg| arg.contains("api-key")));
            assert_eq!(value(engine, Role::Worker(0), "load-format").as_deref(), Some("dummy"));
        });
        with_engine("--api-key k l --shutdown-timeout 2", |engine| {
            let gateway = engine.spec(Role::Gateway(0));
            assert_eq!(gateway.args.iter().filter(|arg| arg.starts_with("--api-key=")).count(), 2);
            assert_eq!(gateway.grace, Duration::from_secs(7));
        });
    }
}
