//! Reads the command line of `quire serve`, and joins it with a file of flags.

use super::{
    error::{FlagError, Source},
    file,
    reader::Reader,
    settings::Settings,
};

/// Reads a command line and the file that its `--config` names. The command line wins.
pub fn parse(words: &[String]) -> Result<Settings, FlagError> {
    let mut reader = Reader::new(Source::CommandLine);
    reader.command_line(words)?;
    let mut settings = reader.finish()?;
    if let Some(path) = settings.text("config").map(str::to_owned) {
        settings.add(file::read(&path)?);
    }
    Ok(settings)
}

#[cfg(test)]
mod tests;
