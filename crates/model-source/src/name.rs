//! Names that come from outside.

/// Whether text that came from outside may be a file name.
pub(crate) fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 128
        && !text.starts_with('.')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}
