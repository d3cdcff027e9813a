//! A secret that processes of one engine share, so that no stranger gets a link.

use std::{fmt, fs, path::Path, sync::Arc};

/// Where a peer shows its token.
pub(crate) const HEADER: &str = "authorization";

/// Shorter ones can be guessed.
const SHORTEST: usize = 16;

/// A secret that peers on other hosts show. It keeps strangers out; it does not hide what travels.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Arc<str>);

/// Why a file holds no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// It cannot be read.
    #[error(transparent)]
    Unreadable(#[from] std::io::Error),
    /// It holds something else.
    #[error("a token is one line of {SHORTEST} or more visible ASCII characters")]
    Unfit,
}

impl Token {
    /// Reads a token from a file, whose last line may end or not.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        Self::new(fs::read_to_string(path)?.trim_end())
    }

    /// A token of this text.
    pub fn new(text: &str) -> Result<Self, TokenError> {
        let is_visible = text.bytes().all(|byte| byte.is_ascii_graphic());
        if is_visible && text.len() >= SHORTEST { Ok(Self(text.into())) } else { Err(TokenError::Unfit) }
    }

    /// As peers show it.
    pub(crate) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// Whether a peer shows it. Takes as long for any wrong one of its length.
    pub(crate) fn is_shown(&self, header: Option<&[u8]>) -> bool {
        let (expected, shown) = (self.header(), header.unwrap_or_default());
        let differences = expected.bytes().zip(shown).fold(0, |found, (a, b)| found | (a ^ b));
        expected.len() == shown.len() && std::hint::black_box(differences) == 0
    }
}

/// Never the secret itself.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_token_is_shown() {
        let token = Token::new("0123456789abcdef").unwrap();
        assert!(token.is_shown(Some(b"Bearer 0123456789abcdef")));
        for wrong in ["Bearer 0123456789abcdeg", "Bearer 0123456789abcdef0", "0123456789abcdef", "Bearer ", ""] {
            assert!(!token.is_shown(Some(wrong.as_bytes())), "{wrong:?}");
        }
        assert!(!token.is_shown(None));
        assert_eq!(format!("{token:?}"), "Token");
    }

    #[test]
    fn a_file_holds_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let read = |text: &str| {
            fs::write(&path, text).unwrap();
            Token::read(&path)
        };
        assert_eq!(read("0123456789abcdef\n").unwrap(), Token::new("0123456789abcdef").unwrap());
        for wrong in ["", "short", "0123456789abcdef\nanother line", "0123456789 abcdef", "0123456789abcdé"] {
            assert!(matches!(read(wrong), Err(TokenError::Unfit)), "{wrong:?}");
        }
        assert!(matches!(Token::read(&folder.path().join("none")), Err(TokenError::Unreadable(_))));
    }
}
