//! Flags, variables, names of parsers and of quantization methods, and subcommands, as the command takes them.

use std::process::{Command, Output};

use e2e_tests::quire_binary;

use super::{Misses, list, names, surface};

#[test]
fn flags_act_or_are_refused_by_name() -> anyhow::Result<()> {
    let (surface, mut misses) = (surface()?, Misses::default());
    let rows: Vec<_> = list(&surface["flags"]).map(|row| (text(&row[0]), row[1].as_str(), text(&row[2]))).collect();
    let defaults: Vec<String> =
        rows.iter().filter_map(|(name, default, _)| Some(words(name, (*default)?))).flatten().collect();
    let shown = show(&defaults, &[])?;
    misses.unless(shown.status.success(), || format!("vLLM's own defaults: {}", said(&shown)));
    for (name, _, other) in rows {
        let shown = show(&words(name, other), &[])?;
        misses.unless(is_accounted_for(&shown, name), || format!("--{name} {other}: {}", said(&shown)));
    }
    for line in names(&surface["spellings"]) {
        let shown = show(&line.split(' ').map(str::to_owned).collect::<Vec<_>>(), &[])?;
        misses.unless(!said(&shown).contains("there is no flag"), || format!("{line}: {}", said(&shown)));
    }
    misses.none()
}

#[test]
fn variables_act_or_are_refused_by_name() -> anyhow::Result<()> {
    let (surface, mut misses) = (surface()?, Misses::default());
    let documented = std::fs::read_to_string(e2e_tests::root().join("docs/configuration.md"))?;
    for (name, value) in names(&surface["variables"]).filter_map(|line| line.split_once('=')) {
        let shown = show(&[], &[(name, value)])?;
        let (page, error) = (String::from_utf8_lossy(&shown.stdout), String::from_utf8_lossy(&shown.stderr));
        let acts = page.contains(&format!("# environment {name}")) || documented.contains(&format!("`{name}`"));
        let told = match shown.status.success() {
            true => acts || page.contains(&format!("# environment: {name} ")),
            false => error.contains("environment") && error.contains(name) || error.contains(&value.to_lowercase()),
        };
        misses.unless(told, || format!("{name}={value}: {}", said(&shown)));
    }
    misses.none()
}

#[test]
fn names_of_formats_are_known() -> anyhow::Result<()> {
    let (surface, mut misses) = (surface()?, Misses::default());
    for (kind, flag) in [("tool_parsers", "tool-call-parser"), ("reasoning_parsers", "reasoning-parser")] {
        for name in names(&surface[kind]) {
            let shown = show(&words(flag, name), &[])?;
            misses.unless(shown.status.success(), || format!("--{flag} {name}: {}", said(&shown)));
        }
        let unknown = show(&words(flag, "nonsense"), &[])?;
        misses.unless(!unknown.status.success(), || format!("--{flag} nonsense is taken"));
    }
    for name in names(&surface["quantizations"]) {
        let shown = show(&words("quantization", name), &[])?;
        misses.unless(is_accounted_for(&shown, "quantization"), || format!("{name}: {}", said(&shown)));
    }
    misses.none()
}

#[test]
fn subcommands_are_there_or_say_why_not() -> anyhow::Result<()> {
    let (surface, mut misses) = (surface()?, Misses::default());
    for line in names(&surface["subcommands"]) {
        let help = Command::new(quire_binary()).args(line.split(' ')).arg("--help").output()?;
        let told = help.status.success() || said(&help).contains(&format!("there is no subcommand `{line}`: "));
        misses.unless(told, || format!("{line}: {}", said(&help)));
    }
    misses.none()
}

/// Whether a flag was applied, reported as making no difference, or refused by its name.
fn is_accounted_for(shown: &Output, flag: &str) -> bool {
    if !shown.status.success() {
        return said(shown).contains(&format!("--{flag} ")) && !said(shown).contains("there is no flag");
    }
    let page = String::from_utf8_lossy(&shown.stdout);
    page.lines().any(|line| {
        let applied = line.trim_start_matches("# ").starts_with(&format!("{flag}:"))
            && (line.contains("# command line") || line.contains("# given, not shown"));
        applied || line.contains(&format!("command line: --{flag} makes no difference"))
    })
}

/// A flag with its value as words of a command line; `on` and `off` are those of a switch.
fn words(flag: &str, value: &str) -> Vec<String> {
    match value {
        "on" => vec![format!("--{flag}")],
        "off" => vec![format!("--no-{flag}")],
        _ if flag == "served-model-name" => {
            [format!("--{flag}")].into_iter().chain(value.split(' ').map(str::to_owned)).collect()
        }
        _ => vec![format!("--{flag}"), value.to_owned()],
    }
}

fn text(value: &serde_json::Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Asks what flags and variables come to.
fn show(words: &[String], variables: &[(&str, &str)]) -> anyhow::Result<Output> {
    let mut show = Command::new(quire_binary());
    Ok(show.args(["config", "show"]).args(words).envs(variables.iter().copied()).output()?)
}

/// What a command said when it failed.
fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}
