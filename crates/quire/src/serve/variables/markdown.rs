//! The environment's part of docs/configuration.md.

use std::fmt::Write;

use super::table::{Fate, GROUPS};

const READ: &str = "
## Environment

Variables in the tables above stand for their flags. These are read too; empty ones count as absent.

| variable | effect |
|---|---|
";

const OTHERS: &str = "
### Variables of vLLM that Quire does not have

*Reported* means that the variable makes no difference, which is logged at the start. *Silent* means that what it asks
for holds anyway. Values under *accepted* are what Quire does; any other value is refused. A variable `VLLM_…` that is
nowhere here is reported as unknown.

| variables | accepted | why, or what instead |
|---|---|---|
";

/// The section.
pub fn section() -> String {
    let mut section = READ.to_owned();
    let mut others = OTHERS.to_owned();
    for group in GROUPS {
        let names: Vec<_> = group.names.iter().map(|name| format!("`{name}`")).collect();
        let names = names.join(", ");
        match group.fate {
            Fate::Flag(flag) => writeln!(section, "| {names} | as `--{flag}` |"),
            Fate::Read(effect) => writeln!(section, "| {names} | {effect} |"),
            Fate::Holds(reason) => writeln!(others, "| {names} | any; silent | {reason} |"),
            Fate::Moot(reason) => writeln!(others, "| {names} | any; reported | {reason} |"),
            Fate::Refused(fine, note) => {
                let fine: Vec<_> = fine.iter().map(|value| format!("`{value}`")).collect();
                writeln!(others, "| {names} | {} | {note} |", fine.join(", "))
            }
        }
        .unwrap();
    }
    section + &others
}
