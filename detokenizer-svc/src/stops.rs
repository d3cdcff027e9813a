//! Finds stop strings in a text that arrives in pieces.

/// The stop strings of a request, in the order in which the request gives them.
#[derive(Debug, Default)]
pub(crate) struct Stops {
    strings: Vec<String>,
    include: bool,
}

/// What a new piece of text brought.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// No stop string. The first `certain` bytes can be in none that is still to come.
    Nothing { certain: usize },
    /// Stop string number `index`; the text ends after `end` bytes.
    Stop { index: usize, end: usize },
}

impl Stops {
    /// `include`: the stop string stays in the text.
    pub(crate) fn new(strings: Vec<String>, include: bool) -> Self {
        Self { strings: strings.into_iter().filter(|string| !string.is_empty()).collect(), include }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.strings.is_empty()
    }

    pub(crate) fn get(&self, index: usize) -> &str {
        self.strings.get(index).map_or("", String::as_str)
    }

    /// Looks at `text`, whose first `old` bytes were looked at before. A stop string counts when it ends behind those,
    /// and only if `armed`. Of several, the one that the request gives first counts.
    pub(crate) fn find(&self, text: &str, old: usize, armed: bool) -> Found {
        if armed && text.len() > old {
            for (index, stop) in self.strings.iter().enumerate() {
                let from = floor_char_boundary(text, (old + 1).saturating_sub(stop.len()));
                let start = text[from..].match_indices(stop.as_str()).map(|(at, _)| from + at);
                // Rounding down may have brought in one that ended before.
                if let Some(start) = start.into_iter().find(|start| start + stop.len() > old) {
                    let end = if self.include { start + stop.len() } else { start };
                    return Found::Stop { index, end };
                }
            }
        }
        let open = self.strings.iter().map(|stop| open_suffix(text, stop)).max().unwrap_or(0);
        Found::Nothing { certain: text.len() - open }
    }
}

/// Length of the longest end of `text` that could be the beginning of `stop`.
fn open_suffix(text: &str, stop: &str) -> usize {
    let (text, stop) = (text.as_bytes(), stop.as_bytes());
    let longest = text.len().min(stop.len() - 1);
    // A character's last byte never equals another's first, so a match of bytes is a match of characters.
    (1..=longest).rev().find(|&len| text.ends_with(&stop[..len])).unwrap_or(0)
}

fn floor_char_boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stops(strings: &[&str], include: bool) -> Stops {
        Stops::new(strings.iter().map(|string| (*string).to_owned()).collect(), include)
    }

    /// Feeds `pieces`; gives the text that a client sees and the stop string that ended it.
    fn run(stops: &Stops, pieces: &[&str]) -> (String, Option<String>) {
        let (mut seen, mut held) = (String::new(), String::new());
        for piece in pieces {
            let old = held.len();
            held.push_str(piece);
            match stops.find(&held, old, true) {
                Found::Nothing { certain } => {
                    seen.push_str(&held[..certain]);
                    held.drain(..certain);
                }
                Found::Stop { index, end } => {
                    seen.push_str(&held[..end]);
                    return (seen, Some(stops.get(index).to_owned()));
                }
            }
        }
        (seen + &held, None)
    }

    fn check(strings: &[&str], pieces: &[&str], text: &str, stop: Option<&str>) {
        let expected = (text.to_owned(), stop.map(str::to_owned));
        assert_eq!(run(&stops(strings, false), pieces), expected, "{strings:?} {pieces:?}");
    }

    #[test]
    fn across_the_borders_of_pieces() {
        check(&["END"], &["the E", "N", "D and more"], "the ", Some("END"));
        check(&["END"], &["the E", "N", "E"], "the ENE", None);
        check(&["aab"], &["a", "a", "a", "b"], "a", Some("aab"));
        check(&["é!"], &["caf", "é", "!"], "caf", Some("é!"));
        check(&["x", "ab"], &["1ab2x"], "1ab2", Some("x"));
        check(&["\n\n"], &["a\n", "b\n", "\nc"], "a\nb", Some("\n\n"));
        check(&[], &["a", "b"], "ab", None);
    }

    #[test]
    fn the_stop_string_may_stay() {
        let (text, stop) = run(&stops(&["END"], true), &["the E", "ND and more"]);
        assert_eq!((text.as_str(), stop.as_deref()), ("the END", Some("END")));
    }

    #[test]
    fn unarmed_matches_are_over() {
        let stops = stops(&["ab", "bc"], false);
        assert_eq!(stops.find("xab", 0, false), Found::Nothing { certain: 2 });
        // `ab` ended before; `bc` ends in the new text.
        assert_eq!(stops.find("bc", 1, true), Found::Stop { index: 1, end: 0 });
        assert_eq!(stops.find("abd", 2, true), Found::Nothing { certain: 3 });
    }

    proptest! {
        /// However the text is cut, the client sees what comes before the first stop string.
        #[test]
        fn any_cut_is_the_same(
            text in "[abc]{0,24}",
            stop in "[abc]{1,4}",
            cuts in prop::collection::vec(0..24usize, 0..8),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| *cut <= text.len()).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&str> = cuts.windows(2).map(|ends| &text[ends[0]..ends[1]]).collect();
            let expected = text.find(&stop).map_or(text.as_str(), |at| &text[..at]);
            prop_assert_eq!(run(&stops(&[&stop], false), &pieces).0, expected);
        }
    }
}
