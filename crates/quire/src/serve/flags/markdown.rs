//! docs/configuration.md, made from the flags themselves.

use std::fmt::Write;

use super::{
    FLAGS, Flag, To, describe,
    table::NOT_OF_SERVE,
    unsupported::{Takes, UNSUPPORTED},
};

const INTRO: &str = "\
# Configuration

`quire serve` takes flags on the command line and in a YAML file (`--config`); a few have an environment variable.
The command line takes precedence over the file, and both over the environment. `quire config show` with the same flags
prints what they come to, and where each value was given. This page is made from the program's
own descriptions by `cargo xtask docs`; a test keeps it fresh.
";

const PROCESSES: &str = "
## Processes started by hand

Each process is also a command: `quire gateway`, `quire tokenizer`, `quire scheduler`, `quire worker`, `quire
detokenizer`. They take the flags above that name them, and these:

| flag | process | environment | default | effect |
|---|---|---|---|---|
";

const OTHERS: &str = "
## Flags of vLLM that Quire does not have

Values under *accepted* are what Quire does; any other value is refused. *Reported* means that the flag makes no
difference, which is logged at the start.

| flag | accepted | why, or what instead |
|---|---|---|
";

/// The whole page.
fn page() -> String {
    let mut page = INTRO.to_owned();
    let mut topic = "";
    for flag in FLAGS.iter() {
        if flag.topic != topic {
            topic = flag.topic;
            write!(
                page,
                "\n## {topic}\n\n| flag | environment | default | effect | process |\n|---|---|---|---|---|\n"
            )
            .unwrap();
        }
        page.push_str(&row(flag));
    }
    page.push_str(&crate::serve::variables::markdown::section());
    page.push_str(PROCESSES);
    page.push_str(&by_hand());
    page.push_str(OTHERS);
    for flag in UNSUPPORTED {
        let mut names = vec![format!("`--{}`", flag.name)];
        names.extend(flag.aliases.iter().map(|alias| format!("`{alias}`")));
        let accepted = match flag.takes {
            Takes::Off => "off".to_owned(),
            Takes::AnySwitch | Takes::AnyValue => "any; reported".to_owned(),
            Takes::Only(fine) | Takes::Moot(fine) => {
                let fine = fine.iter().filter(|value| !value.is_empty()).map(|value| format!("`{value}`"));
                let reported = if matches!(flag.takes, Takes::Moot(_)) { "; reported" } else { "" };
                fine.collect::<Vec<_>>().join(", ") + reported
            }
        };
        writeln!(page, "| {} | {accepted} | {} |", names.join(", "), flag.note).unwrap();
    }
    page
}

/// Flags that only processes have, from A to Z.
fn by_hand() -> String {
    let commands = describe::commands();
    let mut rows = String::new();
    for name in NOT_OF_SERVE {
        let has = |command: &clap::Command| command.get_arguments().any(|arg| arg.get_long() == Some(*name));
        let having: Vec<_> = commands.iter().filter(|(_, command)| has(command)).collect();
        let processes: Vec<_> = having.iter().map(|(_, command)| command.get_name()).collect();
        let (_, command) = having[0];
        let arg = command.get_arguments().find(|arg| arg.get_long() == Some(*name)).unwrap().clone();
        let shape = super::value::Shape::of(&arg);
        let flag = Flag { name, aliases: &[], topic: "", to: To::SERVE, arg, shape, checks: Vec::new() };
        let (variable, default, effect) = columns(&flag);
        let all = if processes.len() == 5 { "all".to_owned() } else { processes.join(", ") };
        writeln!(rows, "| `--{name}{}` | {all} | {variable} | {default} | {effect} |", flag.placeholder()).unwrap();
    }
    rows
}

fn row(flag: &Flag) -> String {
    let (variable, default, effect) = columns(flag);
    let short: String = flag.aliases.iter().map(|alias| format!(", `{alias}`")).collect();
    let processes: Vec<_> = describe::commands()
        .iter()
        .filter(|(to, _)| flag.to.includes(*to))
        .map(|(_, c)| c.get_name().to_owned())
        .collect();
    let all = if processes.len() == 5 { "all".to_owned() } else { processes.join(", ") };
    format!("| `--{}{}`{short} | {variable} | {default} | {effect} | {all} |\n", flag.name, flag.placeholder())
}

/// Variable, default and effect as cells of a table.
fn columns(flag: &Flag) -> (String, String, String) {
    let code = |text: &str| if text.is_empty() { String::new() } else { format!("`{text}`") };
    let mut help = flag.help().replace('|', "\\|");
    let mut default = code(&flag.default().unwrap_or_default());
    if let Some((before, after)) = help.clone().split_once(" [default: ")
        && let Some((words, rest)) = after.split_once(']')
    {
        (default, help) = (words.to_owned(), format!("{before}{rest}"));
    }
    let mut variable = code(&flag.variable().unwrap_or_default());
    if let Some((before, after)) = help.clone().split_once(" [env: ")
        && let Some((words, rest)) = after.split_once(']')
    {
        (variable, help) = (words.to_owned(), format!("{before}{rest}"));
    }
    let choices = match flag.choices() {
        words if words.is_empty() => String::new(),
        words => format!(" ({})", words.join(", ")),
    };
    (variable, default, help + &choices)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `cargo xtask docs` runs this with leave to write.
    #[test]
    fn configuration_page_is_fresh() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        let page = page();
        if std::env::var_os("QUIRE_WRITE_DOCS").is_some() {
            std::fs::write(path, &page).unwrap();
        }
        let stored = std::fs::read_to_string(path).unwrap_or_default();
        assert!(stored == page, "docs/configuration.md is not what the flags say: run `cargo xtask docs`");
    }
}
