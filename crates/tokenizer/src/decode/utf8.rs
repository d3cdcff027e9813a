//! Joins pieces of bytes to text without ever splitting a character.

/// The first bytes of a character whose rest has not come yet.
#[derive(Default)]
pub(super) struct Carry {
    bytes: [u8; 4],
    len: u8,
}

impl Carry {
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends `bytes` as text; invalid sequences become U+FFFD, as many as `String::from_utf8_lossy` writes.
    pub(super) fn push(&mut self, bytes: &[u8], out: &mut String) {
        if self.is_empty() {
            return self.take(bytes, out);
        }
        let mut joined = Vec::with_capacity(4 + bytes.len());
        joined.extend_from_slice(&self.bytes[..usize::from(self.len)]);
        joined.extend_from_slice(bytes);
        self.len = 0;
        self.take(&joined, out);
    }

    fn take(&mut self, bytes: &[u8], out: &mut String) {
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            out.push_str(chunk.valid());
            let rest = chunk.invalid();
            if rest.is_empty() {
                continue;
            }
            if chunks.peek().is_none() && is_beginning(rest) {
                self.bytes[..rest.len()].copy_from_slice(rest);
                self.len = rest.len() as u8;
            } else {
                out.push(char::REPLACEMENT_CHARACTER);
            }
        }
    }

    pub(super) fn finish(&mut self, out: &mut String) {
        if !self.is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
            self.len = 0;
        }
    }
}

/// Whether more bytes could make a character of these (at most three then).
fn is_beginning(bytes: &[u8]) -> bool {
    matches!(std::str::from_utf8(bytes), Err(error) if error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pieces: &[&[u8]]) {
        let mut carry = Carry::default();
        let mut out = String::new();
        for piece in pieces {
            carry.push(piece, &mut out);
        }
        carry.finish(&mut out);
        assert_eq!(out, String::from_utf8_lossy(&pieces.concat()), "{pieces:?}");
    }

    #[test]
    fn any_cut_gives_the_same_text() {
        let bytes = "aä€😀z\u{FFFD}".as_bytes();
        for first in 0..bytes.len() {
            for second in first..bytes.len() {
                check(&[&bytes[..first], &bytes[first..second], &bytes[second..]]);
            }
        }
    }

    #[test]
    fn invalid_bytes_give_as_many_marks_as_at_once() {
        check(&[b"\xE2", b"\xE2\x82", b"\xAC\x80", b"a\xF0\x9F", b"b"]);
        check(&[b"\xF0", b"\x9F", b"\x98"]);
        check(&[b"\xED\xA0", b"\x80", b"\xFF", b""]);
    }

    #[test]
    fn nothing_incomplete_is_shown() {
        let mut carry = Carry::default();
        let mut out = String::new();
        for byte in &"€".as_bytes()[..2] {
            carry.push(&[*byte], &mut out);
        }
        assert_eq!(out, "");
        carry.push(b"\xAC", &mut out);
        assert_eq!(out, "€");
    }
}
