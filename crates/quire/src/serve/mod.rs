//! `quire serve`: finds the model, starts every process of an engine on this machine, and watches over them.

mod engine;
pub mod flags;
mod gateways;
mod interfaces;
mod limits;
mod nodes;
pub mod offline;
mod overrides;
mod port;
mod replicas;
mod runtime_dir;
pub mod screen;
mod service_manager;
pub mod show;
mod supervisor;
pub mod variables;

use std::{
    path::Path,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use link::LinkOptions;
use model_source::{Model, Need, Options};
use models::pooling::{PoolingOptions, PoolingTask};
use service_kit::{CancellationToken, CommonArgs, LogFormat, Process, Threads, control::ControlClient};

use crate::environment::Environment;
use engine::{Engine, Role};
use flags::{FlagError, Settings};
use gateways::Gateways;
use nodes::Nodes;
use port::Port;
use replicas::Replicas;
use runtime_dir::RuntimeDir;
use screen::{Form, Screen};
use service_manager::ServiceManager;
use supervisor::{Member, StartReport, Supervisor};

/// Runs `quire serve` with the words that follow it on the command line.
pub fn run(words: &[String], environment: &Environment) -> ExitCode {
    let start = Instant::now();
    if words.iter().any(|word| word == "--help" || word == "-h") {
        print!("{}", flags::help());
        return ExitCode::SUCCESS;
    }
    let settings = match read(words, environment) {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("error: {error}\n\nFor all flags, try `quire serve --help`.");
            return ExitCode::from(2);
        }
    };
    let common = common(&settings);
    let mut failure = None;
    // One thread: the processes' lives are tied to the thread that starts them.
    let ended = service_kit::run("quire", &common, Threads::One, async |process| {
        match serve(&settings, &common, environment, &process, start).await {
            // People read the cause as a plain last line, programs as a log line.
            Err(error) if common.log_format == LogFormat::Text => failure = Some(error),
            ended => return ended,
        }
        Ok(())
    });
    match failure {
        None => ended,
        Some(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The flags that were given, on the command line, in a file or in the environment.
fn read(words: &[String], environment: &Environment) -> Result<Settings, FlagError> {
    let mut settings = flags::parse(words)?;
    variables::apply(&mut settings, &environment.variables)?;
    Ok(settings)
}

/// What the supervisor's own log looks like.
fn common(settings: &Settings) -> CommonArgs {
    let mut common = CommonArgs::default();
    if let Some(level) = settings.text("log-level") {
        level.clone_into(&mut common.log_level);
    }
    if settings.text("log-format") == Some("json") {
        common.log_format = LogFormat::Json;
    }
    common
}

async fn serve(
    settings: &Settings,
    common: &CommonArgs,
    environment: &Environment,
    process: &Process,
    start: Instant,
) -> anyhow::Result<()> {
    let form = if common.log_format == LogFormat::Json { Form::Json } else { Form::Text };
    let screen = Arc::new(Screen::new(form));
    report_without_effect(settings);
    let replicas = Replicas::read(settings)?;
    let nodes = Nodes::read(settings)?;
    let serves_http = nodes.as_ref().is_none_or(Nodes::is_head);
    let port = if serves_http { hold_port(settings)? } else { None };
    let gateways = if serves_http { Gateways::read(settings)? } else { Gateways::default() };
    gateways.check_ports(replicas.engines)?;
    let runtime_dir =
        RuntimeDir::create(environment.runtime_dir.as_deref()).context("cannot make a folder for sockets")?;
    let found = tokio::select! {
        found = find(settings, environment, runtime_dir.path(), &screen) => found?,
        () = process.shutdown.cancelled() => return Ok(()),
    };
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let engine = Engine {
        settings,
        model: &found.model,
        tokenizer: found.tokenizer,
        fingerprint: &found.fingerprint,
        runtime_dir: &runtime_dir,
        port: port.as_ref(),
        program: &program,
        nodes,
        replicas,
        gateways,
    };
    let found_after = start.elapsed();
    let mut supervisor = Supervisor::start(members(&engine, engine.roles())?, screen.clone());
    let report = match ready_in_time(settings, &mut supervisor, &process.shutdown).await {
        Ok(Some(report)) => report,
        Ok(None) => return supervisor.end().await,
        Err(error) => {
            supervisor.abort().await;
            return Err(error);
        }
    };
    let parts = [vec![("model".to_owned(), found_after)], report].concat();
    let manager = ServiceManager::new(environment.notify_socket.as_deref());
    screen.say(&ready_text(&engine, start, &parts));
    let serving = if serves_http { "serving " } else { "" };
    manager.tell(&format!("READY=1\nSTATUS={serving}{}", place(&engine)));
    let ended = supervisor.watch(&process.shutdown).await;
    manager.tell("STOPPING=1\nSTATUS=finishing what runs");
    if ended.is_ok() {
        screen.say("Finishing what runs; Ctrl-C again ends at once.");
    }
    ended.and(supervisor.end().await)
}

/// Waits until all processes are ready, as long as `--engine-ready-timeout` says.
async fn ready_in_time(
    settings: &Settings,
    supervisor: &mut Supervisor,
    shutdown: &CancellationToken,
) -> anyhow::Result<Option<StartReport>> {
    let ready = supervisor.ready(shutdown);
    let Some(seconds) = settings.number("engine-ready-timeout") else { return ready.await };
    match tokio::time::timeout(Duration::from_secs_f64(seconds), ready).await {
        Ok(ended) => ended,
        Err(_) => bail!("the engine was not ready within --engine-ready-timeout {seconds} s"),
    }
}

/// Says which flags make no difference, so that none is ignored silently.
fn report_without_effect(settings: &Settings) {
    for flag in settings.without_effect() {
        tracing::warn!("{flag}");
    }
}

fn hold_port(settings: &Settings) -> anyhow::Result<Option<Port>> {
    if settings.text("uds").is_some() {
        return Ok(None);
    }
    let host = settings.text("host").unwrap_or("0.0.0.0");
    let number = settings.number::<u64>("port").unwrap_or(8000);
    let Ok(number) = u16::try_from(number) else { bail!("--port {number}: ports end at 65535") };
    Ok(Some(Port::hold(host, number)?))
}

/// What the engine is to serve.
struct Found {
    model: Model,
    tokenizer: Option<std::path::PathBuf>,
    fingerprint: String,
}

async fn find(
    settings: &Settings,
    environment: &Environment,
    runtime_dir: &Path,
    screen: &Screen,
) -> anyhow::Result<Found> {
    let options = options(settings, environment);
    let dummy = settings.text("load-format") == Some("dummy");
    let need = if dummy { Need::NoWeights } else { Need::Everything };
    let mut model = match model_source::resolve(settings.text("model"), need, &options, screen).await {
        // A read-only home is no reason not to serve what this program holds itself.
        Err(model_source::SourceError::BuiltIn(error)) => {
            tracing::warn!("{error}; using {} until the end", runtime_dir.display());
            let options = Options { quire_cache: runtime_dir.to_owned(), ..options.clone() };
            model_source::resolve(None, need, &options, screen).await?
        }
        found => found?,
    };
    let tokenizer = match settings.text("tokenizer") {
        None => None,
        Some(name) => {
            let found = model_source::resolve(Some(name), Need::Tokenizer, &options, screen).await;
            Some(found.with_context(|| format!("--tokenizer {name}"))?.path)
        }
    };
    model.path = overrides::overridden(&model.path, settings.text("hf-overrides"), runtime_dir)?;
    let fingerprint = model_spec::fingerprint(&model.path)?;
    limits::check(settings, &model.path)?;
    Ok(Found { model, tokenizer, fingerprint })
}

fn options(settings: &Settings, environment: &Environment) -> Options {
    let mut options = Options { check: Some(is_served), ..environment.models.clone() };
    if settings.text("hf-overrides").is_some_and(|overrides| overrides.trim() != "{}") {
        // What the repository's own config.json says may not count.
        options.check = None;
    }
    if let Some(revision) = settings.text("revision") {
        revision.clone_into(&mut options.revision);
    }
    if let Some(token) = settings.text("hf-token") {
        options.token = Some(token.to_owned());
    }
    if let Some(folder) = settings.text("download-dir") {
        options.hub_cache = folder.into();
    }
    options
}

/// Refuses a model by its small files, before its weights are downloaded: its class, its quantization, its sizes.
pub fn is_served(folder: &Path) -> Result<(), String> {
    if !folder.join("config.json").is_file() {
        return Ok(()); // a GGUF file describes itself
    }
    models::read_spec(folder).map(drop).map_err(|error| error.to_string())
}

/// The engine's processes. Gateways end first, then whatever is behind them, in the direction of the requests. What
/// gateways of other hosts have asked for is the scheduler's to finish, which takes all other processes. Without an API
/// the HTTP port is there until the end.
fn members(engine: &Engine<'_>, roles: impl IntoIterator<Item = Role>) -> anyhow::Result<Vec<Member<ControlClient>>> {
    let from_elsewhere = engine.gateways.ports.is_some();
    let stage = |role| match role {
        Role::Gateway(_) if !engine.gateways.operations_only() => 0,
        Role::Tokenizer if !from_elsewhere => 1,
        Role::Scheduler(_) if from_elsewhere => 1,
        Role::Tokenizer | Role::Scheduler(_) => 2,
        Role::Worker(_) => 3,
        Role::Detokenizer => 4,
        Role::Gateway(_) => 5,
    };
    let member = |role| {
        // A Unix socket in a folder of this user: nothing is to be shown.
        let probe = ControlClient::new(&engine.control(role), &LinkOptions::default())?;
        Ok(Member { spec: engine.spec(role), probe, stage: stage(role) })
    };
    roles.into_iter().map(member).collect()
}

/// The lines that end a start: where, what, how long, and something to try.
fn ready_text(engine: &Engine<'_>, start: Instant, parts: &StartReport) -> String {
    let seconds = start.elapsed().as_secs_f64();
    if let Some(node) = engine.nodes.as_ref().filter(|nodes| !nodes.is_head()) {
        return format!("Ready after {seconds:.2} s: {node}");
    }
    let times: Vec<_> = parts.iter().map(|(name, time)| format!("{name} {:.2}", time.as_secs_f64())).collect();
    let ready = format!("Ready after {seconds:.2} s ({}): {}", times.join(", "), place(engine));
    let tried = (!engine.gateways.operations_only()).then(|| format!("\nTry it:\n  {}", example(engine)));
    let command = engine.gateways.command(engine).map(|command| format!("\nGateways of other hosts:\n  {command}"));
    [Some(ready), tried, command].into_iter().flatten().collect()
}

/// What is served, and where.
fn place(engine: &Engine<'_>) -> String {
    if let Some(node) = engine.nodes.as_ref().filter(|nodes| !nodes.is_head()) {
        return node.to_string();
    }
    let (name, http) = (engine.served_name(), address(engine));
    match engine.gateways.ports.as_ref().filter(|_| engine.gateways.operations_only()) {
        Some(ports) => format!("{name} for gateways at {ports}; /health and /metrics at {http}"),
        None => format!("{name} at {http}"),
    }
}

fn address(engine: &Engine<'_>) -> String {
    let Some(port) = engine.port else { return engine.settings.text("uds").unwrap_or_default().to_owned() };
    let scheme = if engine.settings.text("ssl-certfile").is_some() { "https" } else { "http" };
    let mut address = port.address;
    if address.ip().is_unspecified() {
        address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    format!("{scheme}://{address}")
}

/// Whether a model's files seem to hold a chat template.
fn has_template(model: &Path) -> bool {
    let config = std::fs::read_to_string(model.join("tokenizer_config.json")).unwrap_or_default();
    let gguf = || model_files::gguf_of(model).ok().flatten().and_then(|file| model_files::Gguf::read(&file).ok());
    model.join("chat_template.jinja").is_file()
        || config.contains("\"chat_template\"")
        || gguf().is_some_and(|gguf| gguf.get("tokenizer.chat_template").is_some())
}

/// Whether the model seems to give embeddings, by its files and by what the flags say of it.
fn pools(engine: &Engine<'_>) -> bool {
    let asked = |flag: &str, word: &str| engine.settings.text(flag) == Some(word);
    let embeds = asked("runner", "pooling") || asked("convert", "embed") || asked("task", "embed");
    let plan = || models::pooling::plan(&engine.model.path, &PoolingOptions::default());
    let by_files = || plan().is_ok_and(|plan| plan.is_some_and(|plan| plan.spec.task == PoolingTask::Embed));
    embeds || (!asked("runner", "generate") && by_files())
}

fn example(engine: &Engine<'_>) -> String {
    let (name, path) = (engine.served_name(), &engine.model.path);
    let chats =
        has_template(engine.tokenizer.as_deref().unwrap_or(path)) || engine.settings.text("chat-template").is_some();
    let key = match engine.settings.list("api-key") {
        [] => "",
        _ => " -H 'Authorization: Bearer YOUR-KEY'",
    };
    let (base, socket) = match engine.port {
        Some(_) => (address(engine), String::new()),
        None => ("http://localhost".to_owned(), format!(" --unix-socket {}", address(engine))),
    };
    let (route, body) = if pools(engine) {
        ("embeddings", serde_json::json!({"model": name, "input": "Once upon a time"}))
    } else if chats {
        let question = "Tell me a story about a brave robot named Bolt.";
        let messages = serde_json::json!([{"role": "user", "content": question}]);
        ("chat/completions", serde_json::json!({"model": name, "messages": messages}))
    } else {
        ("completions", serde_json::json!({"model": name, "prompt": "Once upon a time"}))
    };
    format!("curl{socket} {base}/v1/{route} -H 'Content-Type: application/json'{key} -d '{body}'")
}
