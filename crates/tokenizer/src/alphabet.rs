//! GPT-2's byte alphabet, in which byte-level vocabularies write each byte as one printable character: printable
//! Latin-1 stands for itself, the 68 other bytes are U+0100 onwards in order.

/// The byte that a character stands for.
pub(crate) fn byte_of_char(character: char) -> Option<u8> {
    let code = u32::from(character);
    if is_printable(code) {
        return u8::try_from(code).ok();
    }
    let nth = usize::try_from(code.checked_sub(0x100)?).ok()?;
    (0..=255u8).filter(|&byte| !is_printable(u32::from(byte))).nth(nth)
}

/// The character that stands for each byte.
pub(crate) fn characters() -> [char; 256] {
    let mut others = ('\u{100}'..).take(256);
    std::array::from_fn(|byte| match char::from_u32(byte as u32) {
        Some(character) if is_printable(byte as u32) => character,
        _ => others.next().unwrap_or_default(),
    })
}

fn is_printable(code: u32) -> bool {
    matches!(code, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_bijection() {
        let mut found: Vec<u8> = (0..0x200).filter_map(char::from_u32).filter_map(byte_of_char).collect();
        found.sort_unstable();
        assert_eq!(found, (0..=255).collect::<Vec<u8>>());
        assert_eq!(byte_of_char('Ġ'), Some(b' '));
        assert_eq!(byte_of_char('Ċ'), Some(b'\n'));
        assert_eq!(byte_of_char('\u{144}'), None);
        for (byte, character) in characters().into_iter().enumerate() {
            assert_eq!(byte_of_char(character), Some(byte as u8));
        }
    }
}
