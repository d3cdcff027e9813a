//! Whether a template walks over the parts of a message's content.
//!
//! The rule is vLLM's: the template has a loop over `content` of a variable that itself runs over `messages`, possibly
//! through assignments, slices and filters. This reads the statements' text rather than a syntax tree, which is not
//! public in minijinja.

use crate::ContentFormat;

/// The content format that `template` expects.
pub(crate) fn content_format(template: &str) -> ContentFormat {
    let statements = statements(template);
    let lists = closure(&statements, vec!["messages".to_owned()], |expression, known| {
        known.iter().any(|name| reads(expression, name, None))
    });
    let mut message_names: Vec<String> = Vec::new();
    let mut loops: Vec<(&str, &str)> = Vec::new();
    for statement in &statements {
        match *statement {
            Statement::For { target, iter } if lists.iter().any(|name| reads(iter, name, None)) => {
                message_names.push(target.to_owned());
            }
            Statement::For { target, iter } => loops.push((target, iter)),
            Statement::Set { .. } => {}
        }
    }
    let contents = closure(&statements, Vec::new(), |expression, known| {
        known.iter().any(|name| reads(expression, name, None))
            || message_names.iter().any(|name| reads(expression, name, Some("content")))
    });
    let walks = loops.iter().any(|(_, iter)| {
        message_names.iter().any(|name| reads(iter, name, Some("content")))
            || contents.iter().any(|name| reads(iter, name, None))
    });
    if walks { ContentFormat::OpenAi } else { ContentFormat::String }
}

enum Statement<'a> {
    For { target: &'a str, iter: &'a str },
    Set { name: &'a str, value: &'a str },
}

/// The `for` and `set` statements of a template, in order.
fn statements(template: &str) -> Vec<Statement<'_>> {
    template
        .split("{%")
        .skip(1)
        .filter_map(|piece| {
            let inside = piece.split("%}").next()?.trim_matches(['-', '+']).trim();
            if let Some(rest) = inside.strip_prefix("for ") {
                let (target, iter) = rest.split_once(" in ")?;
                return Some(Statement::For { target: target.trim(), iter: iter.trim() });
            }
            let (name, value) = inside.strip_prefix("set ")?.split_once('=')?;
            Some(Statement::Set { name: name.trim(), value: value.trim() })
        })
        .collect()
}

/// All names that are assigned an expression for which `holds`, however indirectly.
fn closure(
    statements: &[Statement<'_>],
    mut known: Vec<String>,
    holds: impl Fn(&str, &[String]) -> bool,
) -> Vec<String> {
    loop {
        let before = known.len();
        for statement in statements {
            if let Statement::Set { name, value } = statement
                && !known.iter().any(|other| other == name)
                && holds(value, &known)
            {
                known.push((*name).to_owned());
            }
        }
        if known.len() == before {
            return known;
        }
    }
}

/// Whether `expression` is the variable `name` (or its item `key`), with nothing but slices, filters and tests behind.
fn reads(expression: &str, name: &str, key: Option<&str>) -> bool {
    let Some(mut rest) = expression.trim().strip_prefix(name) else { return false };
    if let Some(key) = key {
        let forms = [format!(".{key}"), format!("['{key}']"), format!("[\"{key}\"]")];
        match forms.iter().find_map(|form| rest.strip_prefix(form.as_str())) {
            Some(behind) => rest = behind,
            None => return false,
        }
    }
    let rest = rest.trim_start();
    let slice = rest.starts_with('[') && rest.split(']').next().is_some_and(|inside| inside.contains(':'));
    rest.is_empty() || slice || rest.starts_with('|') || rest.starts_with("if ") || rest.starts_with("is ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(template: &str, expected: ContentFormat) {
        assert_eq!(content_format(template), expected, "{template}");
    }

    #[test]
    fn loops_over_content_are_found() {
        for template in [
            "{% for message in messages %}{% for part in message.content %}{% endfor %}{% endfor %}",
            "{%- for m in messages[1:] -%}{%- for c in m['content'] | selectattr('type', 'equalto', 'text') -%}\
             {% endfor %}",
            "{% set loop_messages = messages %}{% for m in loop_messages %}{% set content = m[\"content\"] %}\
             {% for c in content %}",
            "{% for message in messages %}{% if message.content is string %}x{% else %}\
             {% for c in message.content if c.text %}",
        ] {
            check(template, ContentFormat::OpenAi);
        }
    }

    #[test]
    fn other_loops_are_not() {
        for template in [
            "{% for message in messages %}{{ message.content }}{% endfor %}",
            "{% for message in messages %}{% for call in message.tool_calls %}{% endfor %}{% endfor %}",
            "{% for tool in tools %}{% for x in tool.content %}{% endfor %}{% endfor %}",
            "{% for message in messages %}{% set content = message.content %}{% for c in contents %}{% endfor %}\
             {% endfor %}",
        ] {
            check(template, ContentFormat::String);
        }
    }
}
