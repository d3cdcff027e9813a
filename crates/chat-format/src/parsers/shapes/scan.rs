//! JSON one character at a time: where a value ends, and what a text in quotes says.

/// Follows a JSON object or array to its end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Nesting {
    depth: u32,
    in_string: bool,
    escaped: bool,
}

impl Nesting {
    /// Takes a character; tells whether the value ends with it.
    pub(crate) fn ends(&mut self, letter: char) -> bool {
        if self.in_string {
            match letter {
                _ if self.escaped => self.escaped = false,
                '\\' => self.escaped = true,
                '"' => self.in_string = false,
                _ => {}
            }
            return false;
        }
        match letter {
            '"' => self.in_string = true,
            '{' | '[' => self.depth = self.depth.saturating_add(1),
            '}' | ']' => self.depth = self.depth.saturating_sub(1),
            _ => return false,
        }
        self.depth == 0 && !self.in_string
    }
}

/// Decodes a JSON string behind its opening quote.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Quoted {
    escape: Escape,
    /// The first half of a pair of surrogates.
    high: Option<u16>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Escape {
    #[default]
    None,
    Backslash,
    /// Digits so far, and their value.
    Code(u8, u16),
}

/// What a character of a string says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Letter {
    /// A character.
    Plain(char),
    /// Nothing yet.
    Pending,
    /// The string ends.
    End,
}

impl Quoted {
    /// Takes a character of the string, quotes and escapes as they stand. What is no escape stands for itself.
    pub(crate) fn take(&mut self, letter: char) -> Letter {
        match (self.escape, letter) {
            (Escape::None, '"') => Letter::End,
            (Escape::None, '\\') => {
                self.escape = Escape::Backslash;
                Letter::Pending
            }
            (Escape::None, letter) => Letter::Plain(letter),
            (Escape::Backslash, 'u') => {
                self.escape = Escape::Code(0, 0);
                Letter::Pending
            }
            (Escape::Backslash, letter) => {
                self.escape = Escape::None;
                Letter::Plain(unescaped(letter))
            }
            (Escape::Code(digits, value), letter) => self.digit(digits, value, letter),
        }
    }

    fn digit(&mut self, digits: u8, value: u16, letter: char) -> Letter {
        let Some(digit) = letter.to_digit(16) else {
            self.escape = Escape::None;
            return Letter::Plain(char::REPLACEMENT_CHARACTER);
        };
        let value = (value << 4) | digit as u16;
        if digits < 3 {
            self.escape = Escape::Code(digits + 1, value);
            return Letter::Pending;
        }
        self.escape = Escape::None;
        let units = self.high.take().into_iter().chain([value]);
        match char::decode_utf16(units).next() {
            Some(Ok(letter)) => Letter::Plain(letter),
            _ if (0xD800..0xDC00).contains(&value) => {
                self.high = Some(value);
                Letter::Pending
            }
            _ => Letter::Plain(char::REPLACEMENT_CHARACTER),
        }
    }
}

fn unescaped(letter: char) -> char {
    match letter {
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        'b' => '\u{8}',
        'f' => '\u{c}',
        other => other,
    }
}

/// A text as it stands between the quotes of a JSON string.
pub(crate) fn escaped(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(text: &str) -> String {
        let mut quoted = Quoted::default();
        let letters = text.chars().map(|letter| quoted.take(letter));
        letters.filter_map(|letter| if let Letter::Plain(letter) = letter { Some(letter) } else { None }).collect()
    }

    #[test]
    fn strings_are_decoded() {
        for (text, expected) in [
            (r"a\nb\\\/\q", "a\nb\\/q"),
            (r"\u00e9\uD83D\uDE00!", "\u{e9}\u{1f600}!"),
            (r"\uDE00", "\u{fffd}"),
            (r"\u12xy", "\u{fffd}y"),
            (r#"\""#, "\""),
        ] {
            assert_eq!(decode(text), expected, "{text}");
        }
        assert_eq!(escaped("a\"\n\u{e9}"), "a\\\"\\n\u{e9}");
    }

    #[test]
    fn values_end_where_they_end() {
        for (text, expected) in [("{}x", 2), (r#"{"a":"}\"]"}]"#, 12), ("[[1],2]", 7)] {
            let mut nesting = Nesting::default();
            let end = text.char_indices().find(|(_, letter)| nesting.ends(*letter)).map(|(at, _)| at + 1);
            assert_eq!(end, Some(expected), "{text}");
        }
    }
}
