//! Names and attributes in the head of a tag.

/// An attribute's value in the head of a tag; with no attribute's name the whole head, without quotes.
pub(crate) fn attribute(head: &str, name: &str) -> Option<String> {
    if name.is_empty() {
        return Some(unquoted(head).to_owned());
    }
    let mut rest = head;
    loop {
        let at = rest.find(name)?;
        let before = rest[..at].chars().next_back();
        let behind = rest[at + name.len()..].trim_start();
        rest = &rest[at + name.len()..];
        if before.is_some_and(|letter| letter.is_alphanumeric() || letter == '_') {
            continue;
        }
        if let Some(value) = behind.strip_prefix('=') {
            return Some(attribute_value(value.trim_start()));
        }
    }
}

fn attribute_value(text: &str) -> String {
    let quote = text.chars().next().filter(|letter| matches!(letter, '"' | '\''));
    let value = match quote {
        Some(quote) => text[1..].split(quote).next(),
        None => text.split_whitespace().next(),
    };
    value.unwrap_or_default().replace("&quot;", "\"").replace("&amp;", "&")
}

fn unquoted(text: &str) -> &str {
    let text = text.trim();
    let inside = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    inside('"').or_else(|| inside('\'')).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read() {
        let rows = [
            (r#" name="get" string="true""#, "name", Some("get")),
            (r#" name="get" string="true""#, "string", Some("true")),
            (" name = 'a b'", "name", Some("a b")),
            (" name=bare x", "name", Some("bare")),
            (r#" filename="x""#, "name", None),
            (r#" tool="a&quot;b&amp;""#, "tool", Some("a\"b&")),
            (" \"quoted\" ", "", Some("quoted")),
        ];
        for (head, name, expected) in rows {
            assert_eq!(attribute(head, name).as_deref(), expected, "{head} {name}");
        }
    }
}
