//! Figures on disk: what a run wrote, for this table and for later ones.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::{figure::Figure, shape::Shape, side::Side, work};

/// A figure of a server, and whose it is.
#[derive(Serialize, Deserialize)]
struct Served {
    side: String,
    model: String,
    #[serde(flatten)]
    figure: Figure,
}

/// Figures of both sides, by model; rows in the order of the work.
pub type Figures = BTreeMap<(Shape, Side), Vec<Figure>>;

/// What the folder of results holds.
pub struct Read {
    pub figures: Figures,
    /// What the runs were made on.
    pub notes: Vec<String>,
}

/// The folder of results.
pub struct Results {
    folder: PathBuf,
}

impl Results {
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// Where a side's lines go.
    pub fn lines_of(&self, side: Side, shape: Shape) -> PathBuf {
        self.folder.join(format!("{side}-{shape}.jsonl"))
    }

    /// Adds figures of a server.
    pub fn served(&self, side: Side, shape: Shape, figures: Vec<Figure>) -> anyhow::Result<()> {
        for figure in figures {
            println!("{}: {:.2} {}", figure.row, figure.value, figure.unit);
            let served = Served { side: side.to_string(), model: shape.to_string(), figure };
            self.append("online.jsonl", &serde_json::to_string(&served)?)?;
        }
        Ok(())
    }

    /// Adds what a reader of the table must know.
    pub fn note(&self, name: &str, value: &str) -> anyhow::Result<()> {
        self.append("notes.txt", &format!("{name}: {value}"))
    }

    fn append(&self, name: &str, line: &str) -> anyhow::Result<()> {
        let path = self.folder.join(name);
        let opened = OpenOptions::new().create(true).append(true).open(&path);
        writeln!(opened.with_context(|| path.display().to_string())?, "{line}")
            .with_context(|| path.display().to_string())
    }

    /// Everything that is there; `plain`: lines of a side's report are rows as they are.
    pub fn read(&self, plain: bool) -> anyhow::Result<Read> {
        let mut figures = Figures::new();
        for shape in <Shape as clap::ValueEnum>::value_variants() {
            for side in <Side as clap::ValueEnum>::value_variants() {
                let lines = lines(&self.lines_of(*side, *shape))?;
                let found = if plain { work::plain_figures(&lines) } else { work::figures(*shape, &lines) };
                if !found.is_empty() {
                    figures.insert((*shape, *side), found);
                }
            }
        }
        for served in lines::<Served>(&self.folder.join("online.jsonl"))? {
            let (Some(side), Some(shape)) = (Side::named(&served.side), Shape::named(&served.model)) else { continue };
            let rows = figures.entry((shape, side)).or_default();
            // A later run replaces an earlier one.
            rows.retain(|figure| figure.row != served.figure.row);
            rows.push(served.figure);
        }
        let notes = fs::read_to_string(self.folder.join("notes.txt")).unwrap_or_default();
        let mut notes: Vec<String> = notes.lines().map(str::to_owned).collect();
        notes.dedup();
        Ok(Read { figures, notes })
    }
}

/// The JSON lines of a file; none if there is no file.
fn lines<T: serde::de::DeserializeOwned>(path: &Path) -> anyhow::Result<Vec<T>> {
    let Ok(text) = fs::read_to_string(path) else { return Ok(Vec::new()) };
    let parsed = text.lines().map(serde_json::from_str).collect::<Result<_, _>>();
    parsed.with_context(|| path.display().to_string())
}
