//! What the user sees of a start: progress bars at a terminal, plain lines elsewhere, and the processes' own log lines.

use std::{
    collections::HashMap,
    io::{IsTerminal, stderr},
    sync::{Mutex, MutexGuard, PoisonError},
};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use model_source::{Event, Progress};

/// How lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// For people.
    Text,
    /// One JSON object a line; the processes' lines are such objects already.
    Json,
}

/// Standard error, shared by everything that writes to it.
pub struct Screen {
    form: Form,
    /// At a terminal.
    bars: Option<MultiProgress>,
    shown: Mutex<HashMap<String, Shown>>,
}

/// The progress of one thing.
struct Shown {
    bar: Option<ProgressBar>,
    /// What was last said of it, without its percentage.
    phase: String,
}

impl Screen {
    /// Looks at standard error.
    pub fn new(form: Form) -> Self {
        let bars = (form == Form::Text && stderr().is_terminal()).then(MultiProgress::new);
        Self { form, bars, shown: Mutex::default() }
    }

    /// A log line of a process.
    pub fn process_line(&self, process: &str, line: &str) {
        match self.form {
            Form::Json => self.line(line),
            Form::Text => self.line(&format!("{process:<11} │ {line}")),
        }
    }

    /// A line for people; programs get it as a log line.
    pub fn say(&self, text: &str) {
        match self.form {
            Form::Text => self.line(text),
            Form::Json => tracing::info!("{text}"),
        }
    }

    /// What something is waiting for, and how far that is.
    pub fn progress(&self, what: &str, reason: &str, permille: Option<u32>) {
        let phase = reason.split(':').next().unwrap_or_default();
        let mut shown = self.shown();
        let entry = shown.entry(what.to_owned()).or_insert_with(|| self.begin(what, 1000));
        if let Some(bar) = &entry.bar {
            bar.set_position(u64::from(permille.unwrap_or(0)));
            bar.set_message(reason.to_owned());
        } else if entry.phase != phase {
            self.say(&format!("{what}: {phase}"));
        }
        phase.clone_into(&mut entry.phase);
    }

    /// It waits no longer.
    pub fn settle(&self, what: &str) {
        if let Some(Shown { bar: Some(bar), .. }) = self.shown().remove(what) {
            bar.finish_and_clear();
        }
    }

    fn begin(&self, what: &str, length: u64) -> Shown {
        let style = ProgressStyle::with_template("{prefix:<13} {bar:30} {msg}").ok();
        let bar = self.bars.as_ref().map(|bars| {
            let bar = bars.add(ProgressBar::new(length).with_prefix(what.to_owned()));
            bar.set_style(style.unwrap_or_else(ProgressStyle::default_bar));
            bar
        });
        Shown { bar, phase: String::new() }
    }

    /// Writes above the bars.
    fn line(&self, text: &str) {
        match &self.bars {
            Some(bars) => bars.suspend(|| eprintln!("{text}")),
            None => eprintln!("{text}"),
        }
    }

    fn shown(&self) -> MutexGuard<'_, HashMap<String, Shown>> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Downloads, as the model source reports them.
impl Progress for Screen {
    fn event(&self, event: Event<'_>) {
        match event {
            Event::Begin { file, total_bytes, have_bytes } => {
                let shown = self.begin(file, total_bytes);
                match &shown.bar {
                    Some(bar) => {
                        let style = ProgressStyle::with_template(
                            "{prefix} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta} left",
                        );
                        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
                        bar.set_position(have_bytes);
                        bar.reset_eta();
                    }
                    None => self.say(&format!("downloading {file} ({})", indicatif::HumanBytes(total_bytes))),
                }
                self.shown().insert(file.to_owned(), shown);
            }
            Event::Advance { file, bytes } => {
                if let Some(Shown { bar: Some(bar), .. }) = self.shown().get(file) {
                    bar.inc(bytes);
                }
            }
            Event::Done { file } => self.settle(file),
        }
    }
}
