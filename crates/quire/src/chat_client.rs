//! `quire chat` and `quire complete`: talk to a server from the terminal, or through a pipe.

use std::{
    io::{self, BufRead, IsTerminal, Write},
    thread,
};

use clap::Args;
use serde_json::{Value, json};
use tokio::{signal::unix, sync::mpsc};

use crate::client::{Answer, Client, ClientArgs};

/// Flags of `quire chat`.
#[derive(Args, Clone, Debug)]
pub struct ChatArgs {
    #[command(flatten)]
    pub client: ClientArgs,
    /// What the model is told before the conversation
    #[arg(long, value_name = "TEXT")]
    pub system_prompt: Option<String>,
}

/// Flags of `quire complete`.
#[derive(Args, Clone, Debug)]
pub struct CompleteArgs {
    #[command(flatten)]
    pub client: ClientArgs,
}

/// What the terminal session talks through.
struct Session {
    client: Client,
    interrupts: unix::Signal,
    lines: Lines,
}

/// Where the user's lines come from.
enum Lines {
    /// One, from `--quick`.
    Quick(Option<String>),
    /// Standard input, read by a thread of its own, because reading a terminal cannot be cancelled.
    Input { lines: mpsc::Receiver<io::Result<String>>, prompt: bool },
}

/// How an answer ended.
enum End {
    Complete,
    Stopped,
}

/// Chats until the input ends.
pub fn chat(args: &ChatArgs) -> anyhow::Result<()> {
    run(async {
        let mut session = Session::open(&args.client).await?;
        session.greet("/reset starts over, /quit ends, Ctrl-C stops an answer");
        let system = args.system_prompt.iter().map(|text| json!({"role": "system", "content": text}));
        let system: Vec<Value> = system.collect();
        let mut messages = system.clone();
        while let Some(line) = session.line().await? {
            match line.trim() {
                "" => {}
                "/quit" | "/exit" => break,
                "/reset" => messages.clone_from(&system),
                text => {
                    messages.push(json!({"role": "user", "content": text}));
                    let asked = session.client.ask("/chat/completions", "messages", json!(messages)).await;
                    match session.show(asked).await? {
                        Some(answer) => messages.push(json!({"role": "assistant", "content": answer})),
                        None => drop(messages.pop()),
                    }
                }
            }
        }
        Ok(())
    })
}

/// Completes each line until the input ends.
pub fn complete(args: &CompleteArgs) -> anyhow::Result<()> {
    run(async {
        let mut session = Session::open(&args.client).await?;
        session.greet("each line is continued; Ctrl-C stops, Ctrl-D ends");
        while let Some(line) = session.line().await? {
            if !line.is_empty() {
                let asked = session.client.ask("/completions", "prompt", json!(line)).await;
                session.show(asked).await?;
            }
        }
        Ok(())
    })
}

fn run(session: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    // Fails only when a provider is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(session)
}

impl Session {
    async fn open(args: &ClientArgs) -> anyhow::Result<Self> {
        let client = Client::connect(args).await?;
        let interrupts = unix::signal(unix::SignalKind::interrupt())?;
        let lines = match &args.quick {
            Some(text) => Lines::Quick(Some(text.clone())),
            None => Lines::Input { lines: read_input(), prompt: io::stdin().is_terminal() },
        };
        Ok(Self { client, interrupts, lines })
    }

    fn greet(&self, hint: &str) {
        if let Lines::Input { prompt: true, .. } = self.lines {
            eprintln!("Talking to {}: {hint}.", self.client.model());
        }
    }

    /// The user's next line; `None` at the end of the input, or at Ctrl-C.
    async fn line(&mut self) -> anyhow::Result<Option<String>> {
        match &mut self.lines {
            Lines::Quick(text) => Ok(text.take()),
            Lines::Input { lines, prompt } => {
                if *prompt {
                    eprint!("> ");
                }
                tokio::select! {
                    line = lines.recv() => Ok(line.transpose()?),
                    _ = self.interrupts.recv() => Ok(None),
                }
            }
        }
    }

    /// Prints an answer as it comes; returns its text, or nothing when there was none and the conversation can go on.
    async fn show(&mut self, asked: anyhow::Result<Answer>) -> anyhow::Result<Option<String>> {
        let mut text = String::new();
        let end = match asked {
            Ok(mut answer) => self.print(&mut answer, &mut text).await,
            Err(error) => Err(error),
        };
        println!();
        match end {
            Ok(End::Stopped) => eprintln!("(stopped)"),
            Ok(End::Complete) => {}
            // At a terminal one may try again; a script must see it.
            Err(error) if matches!(self.lines, Lines::Input { prompt: true, .. }) => eprintln!("{error:#}"),
            Err(error) => return Err(error),
        }
        Ok((!text.is_empty()).then_some(text))
    }

    async fn print(&mut self, answer: &mut Answer, text: &mut String) -> anyhow::Result<End> {
        loop {
            let piece = tokio::select! {
                piece = answer.text() => piece?,
                _ = self.interrupts.recv() => return Ok(End::Stopped),
            };
            let Some(piece) = piece else { return Ok(End::Complete) };
            print!("{piece}");
            io::stdout().flush()?;
            text.push_str(&piece);
        }
    }
}

fn read_input() -> mpsc::Receiver<io::Result<String>> {
    let (send, lines) = mpsc::channel(1);
    thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            if send.blocking_send(line).is_err() {
                return;
            }
        }
    });
    lines
}
