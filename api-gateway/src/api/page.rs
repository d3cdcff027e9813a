//! `/docs`: the API as a page for people. It needs nothing from elsewhere: no script, no font, no style sheet.

use std::fmt::Write;

use super::{
    fields::{self, Fate, Field},
    operation::{Answer, Body, Operation, Route},
    shape::Need,
};
use crate::{config::Config, error::Fault};

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em}\
    code{font:13px ui-monospace,monospace}h2{border-top:1px solid #ccc;padding-top:1em}\
    table{border-collapse:collapse;width:100%}td,th{border:1px solid #ddd;padding:.2em .5em;text-align:left;\
    vertical-align:top}.refused{color:#777}@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}\
    td,th{border-color:#444}a{color:#8cf}}";

/// The page of a server with these settings; `routes`: all that there are.
pub fn page(config: &Config, routes: &[Route]) -> String {
    let mut out = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <title>Quire API</title><style>{STYLE}</style><h1>Quire {}</h1>\
         <p>The routes of this server. <a href=\"openapi.json\">openapi.json</a> says the same for programs.</p>",
        service_kit::VERSION
    );
    for route in routes.iter().filter(|route| route.when.is_here(config)) {
        for operation in route.operations {
            write_operation(&mut out, route, operation);
        }
    }
    for body in Body::ALL {
        write_body(&mut out, body);
    }
    out.push_str("<h2>Errors</h2><table><tr><th>status<th>type<th>when");
    for fault in Fault::ALL {
        let (status, kind) = (fault.status().as_u16(), fault.name());
        let _ = write!(out, "<tr><td>{status}<td>{kind}<td>{}", escaped(fault.help()));
    }
    out.push_str("</table>");
    out
}

fn write_operation(out: &mut String, route: &Route, operation: &Operation) {
    let (method, path) = (operation.method.name(), escaped(&route.documented_path()));
    // Writing to a String cannot fail.
    let _ = write!(out, "<h2 id=\"{}\"><code>{method} {path}</code></h2>", operation.id);
    let when = if route.when.words.is_empty() { String::new() } else { format!(" ({})", route.when.words) };
    let _ = write!(out, "<p>{}{}.</p>", escaped(operation.summary), escaped(&when));
    let bodies: Vec<_> = operation.bodies.iter().map(|body| format!("<a href=\"#{0}\">{0}</a>", body.name())).collect();
    if !bodies.is_empty() {
        let _ = write!(out, "<p>Body: {}</p>", bodies.join(" or "));
    }
    let answer = match operation.answer {
        Answer::Empty => "no body".to_owned(),
        Answer::Json(name) => name.to_owned(),
        Answer::Text(media_type) => escaped(media_type),
        Answer::Streamable(whole, events) => format!("{}, or events: {}", whole.join(" or "), events.join(" or ")),
    };
    let mut statuses: Vec<_> =
        operation.errors.faults.iter().map(|fault| operation.errors.dialect.status(*fault)).collect();
    statuses.sort_unstable();
    let _ = write!(out, "<p>Answer: 200, {answer}");
    for status in statuses {
        let _ = write!(out, "; {status}");
    }
    out.push_str("</p>");
}

fn write_body(out: &mut String, body: Body) {
    let _ = write!(out, "<h2 id=\"{0}\">{0}</h2><table><tr><th>field<th>takes<th>default<th>effect", body.name());
    for field in fields::of(body) {
        write_field(out, &field);
    }
    out.push_str("</table>");
}

fn write_field(out: &mut String, field: &Field) {
    let (class, takes, effect) = match field.fate {
        Fate::Honoured => ("", field.shape.to_string(), field.help.to_owned()),
        Fate::WithoutEffect(reason) => ("", field.shape.to_string(), format!("No effect: {reason}")),
        Fate::Refused("") => (" class=refused", String::new(), "Refused".to_owned()),
        Fate::Refused(instead) => (" class=refused", String::new(), format!("Refused: {instead}")),
    };
    let needed = if field.need == Need::Always { " (required)" } else { "" };
    let [takes, default, effect] = [&takes, field.default, &effect].map(escaped);
    let _ = write!(out, "<tr{class}><td><code>{}</code>{needed}<td>{takes}<td>{default}<td>{effect}", field.name);
}

/// A text for HTML, with `code` marked.
fn escaped(text: &str) -> String {
    let mut out = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;");
    while let Some((before, after)) = out.clone().split_once('`')
        && let Some((code, rest)) = after.split_once('`')
    {
        out = format!("{before}<code>{code}</code>{rest}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_cannot_end_their_element() {
        assert_eq!(escaped("a < b & `\"c\"`"), "a &lt; b &amp; <code>&quot;c&quot;</code>");
        assert_eq!(escaped("one ` alone"), "one ` alone");
    }
}
