//! Finds the markers of a format in text that arrives in pieces.

/// Texts that have a meaning in a format. What is found does not depend on how the text was cut.
#[derive(Clone, Debug, Default)]
pub(crate) struct Markers {
    /// Longest first, so that of two that begin alike the longer one is looked at first.
    texts: Vec<&'static str>,
}

/// What stands at the front of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// So many bytes without any marker; behind them stands one, or may stand one when more text comes.
    Text(usize),
    /// A marker.
    Marker(&'static str),
    /// Perhaps the beginning of a marker: more text must come.
    Unknown,
    /// The text is empty.
    Nothing,
}

impl Markers {
    /// Looks for these.
    pub(crate) fn new(texts: impl IntoIterator<Item = &'static str>) -> Self {
        let mut texts: Vec<&'static str> = texts.into_iter().filter(|text| !text.is_empty()).collect();
        texts.sort_by(|one, other| other.len().cmp(&one.len()).then(one.cmp(other)));
        texts.dedup();
        Self { texts }
    }

    /// Whether there is nothing to look for.
    pub(crate) fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// What stands at the front of `text`. With `end` no more text comes.
    pub(crate) fn find(&self, text: &str, end: bool) -> Found {
        if text.is_empty() {
            return Found::Nothing;
        }
        match self.at(text, end) {
            Found::Nothing => Found::Text(self.length_without(text, end)),
            found => found,
        }
    }

    /// Bytes at the front of `text`, whose first character begins no marker, before the first that may.
    fn length_without(&self, text: &str, end: bool) -> usize {
        let begins = |byte: u8| self.texts.iter().any(|marker| marker.as_bytes()[0] == byte);
        let mut places = text.char_indices().skip(1).filter(|(at, _)| begins(text.as_bytes()[*at]));
        places.find(|(at, _)| self.at(&text[*at..], end) != Found::Nothing).map_or(text.len(), |(at, _)| at)
    }

    /// The marker at the very front, if there is one.
    fn at(&self, text: &str, end: bool) -> Found {
        for marker in &self.texts {
            if text.starts_with(marker) {
                return Found::Marker(marker);
            }
            if !end && marker.starts_with(text) {
                return Found::Unknown;
            }
        }
        Found::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_of_two_markers_is_waited_for() {
        let markers = Markers::new(["<a>", "<a>b", "[X]"]);
        let rows = [
            ("", false, Found::Nothing),
            ("text <", false, Found::Text(5)),
            ("<", false, Found::Unknown),
            ("<", true, Found::Text(1)),
            ("<a>", false, Found::Unknown),
            ("<a>", true, Found::Marker("<a>")),
            ("<a>c", false, Found::Marker("<a>")),
            ("<a>b", false, Found::Marker("<a>b")),
            ("<<a>b", false, Found::Text(1)),
            ("\u{ff5c}[X", false, Found::Text(3)),
            ("[X]", false, Found::Marker("[X]")),
        ];
        for (text, end, expected) in rows {
            assert_eq!(markers.find(text, end), expected, "{text:?} {end}");
        }
    }
}
