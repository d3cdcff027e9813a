//! docs/api.md, made from the tables.

use std::fmt::Write;

use super::{
    absent::ABSENT,
    fields::{self, Fate},
    operation::{Answer, Body},
    shape::Need,
};
use crate::{error::Fault, routes::ROUTES};

const INTRO: &str = "\
# API

What the gateway serves: its routes, the fields of their bodies, its errors. This page is made from the gateway's own
tables by `cargo xtask docs`; a test keeps it fresh. A running server says the same at `/docs` and, for programs, at
`/openapi.json`.

## Routes

A test asks every route for every method (`api-gateway/tests/gateway/documentation.rs`). Where `--api-key` is given, the
routes marked *key* need one, as `Authorization: Bearer …` or `x-api-key: …`; `OPTIONS` does not.

| route | body | answer | key | what it does |
|---|---|---|---|---|
";

const FIELDS: &str = "
## Fields

*Honoured* fields do what the table says. *Refused* ones are a 400 that names the field, unless the value asks for
nothing (`null`, `false`, an empty list). *No effect*: the reason is given. A field that no table lists is ignored, as
in vLLM, and named in the log at `--log-level debug`. Every field may be `null`, which means the default.
";

const ERRORS: &str = "
## Errors

An error is `{\"error\": {\"message\", \"type\", \"param\", \"code\"}}`, `param` the field at fault or `null`. A stream
that has begun ends with one such object as an event and then `[DONE]`. `/v1/messages` writes Anthropic's
`{\"type\": \"error\", \"error\": {\"type\", \"message\"}}`, and 529 in place of 503. A missing or wrong key is
a 401 with the body `{\"error\":\"Unauthorized\"}`. A path that is no route is a 404, a method that a route lacks a 405,
both of the type that the status is called.

| status | type | when |
|---|---|---|
";

const LACKING: &str = "
## Routes of vLLM that Quire does not have

Each is a 404 whose message says why.

| route | why, or what instead |
|---|---|
";

fn page() -> String {
    let mut page = INTRO.to_owned();
    for route in ROUTES {
        for operation in route.operations {
            let bodies: Vec<_> = operation.bodies.iter().map(|body| body.name()).collect();
            let answer = match operation.answer {
                Answer::Empty => String::new(),
                Answer::Json(name) => name.to_owned(),
                Answer::Text(media_type) => media_type.to_owned(),
                Answer::Streamable(whole, _) => format!("{}, or events", whole.join(" or ")),
            };
            let key = if route.is_guarded() { "key" } else { "" };
            let when = if route.when.words.is_empty() { String::new() } else { format!("; {}", route.when.words) };
            let (method, path) = (operation.method.name(), route.documented_path());
            let (bodies, summary) = (bodies.join(" or "), operation.summary);
            writeln!(page, "| {method} `{path}` | {bodies} | {answer} | {key} | {summary}{when} |").unwrap();
        }
    }
    page.push_str(FIELDS);
    Body::ALL.iter().for_each(|body| write_body(&mut page, *body));
    page.push_str(ERRORS);
    for fault in Fault::ALL {
        writeln!(page, "| {} | {} | {} |", fault.status().as_u16(), fault.name(), fault.help()).unwrap();
    }
    page.push_str(LACKING);
    for (path, reason) in ABSENT {
        writeln!(page, "| `{path}` | {reason} |").unwrap();
    }
    write!(page, "\n## Clients\n\n{}", include_str!("clients.md")).unwrap();
    page
}

fn write_body(page: &mut String, body: Body) {
    let name = body.name();
    writeln!(page, "\n### {name}\n\n| field | takes | default | effect | test |\n|---|---|---|---|---|").unwrap();
    for field in fields::of(body) {
        let (takes, effect) = match field.fate {
            Fate::Honoured => (field.shape.to_string(), field.help.to_owned()),
            Fate::WithoutEffect(reason) => (String::new(), format!("*no effect*: {reason}")),
            Fate::Refused("") => (String::new(), "*refused*".to_owned()),
            Fate::Refused(instead) => (String::new(), format!("*refused*: {instead}")),
        };
        let needed = if field.need == Need::Always { " (required)" } else { "" };
        let test = field.test.rsplit('/').next().unwrap_or_default();
        let default = if field.default.is_empty() { String::new() } else { format!("`{}`", field.default) };
        writeln!(page, "| `{}`{needed} | {takes} | {default} | {effect} | {test} |", field.name).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `cargo xtask docs` runs this with leave to write.
    #[test]
    fn api_page_is_fresh() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/api.md");
        let page = page();
        if std::env::var_os("QUIRE_WRITE_DOCS").is_some() {
            std::fs::write(path, &page).unwrap();
        }
        let stored = std::fs::read_to_string(path).unwrap_or_default();
        assert!(stored == page, "docs/api.md is not what the tables say: run `cargo xtask docs`");
    }
}
