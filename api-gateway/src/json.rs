//! Writes JSON by hand where it is hot: once per streamed chunk.

use std::io::Write;

/// A byte needs no escape inside a JSON string. Bytes of multi-byte characters pass as they are.
const PLAIN: [bool; 256] = {
    let mut table = [true; 256];
    let mut byte = 0;
    while byte < 0x20 {
        table[byte] = false;
        byte += 1;
    }
    table[b'"' as usize] = false;
    table[b'\\' as usize] = false;
    table
};

/// Appends `text` as a JSON string, quotes included.
pub fn string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    string_part(out, text);
    out.push(b'"');
}

/// Appends `text` escaped, without quotes: strings may be written in parts.
pub fn string_part(out: &mut Vec<u8>, text: &str) {
    let bytes = text.as_bytes();
    let mut from = 0;
    for (index, byte) in bytes.iter().enumerate() {
        if !PLAIN[*byte as usize] {
            out.extend_from_slice(&bytes[from..index]);
            escape(out, *byte);
            from = index + 1;
        }
    }
    out.extend_from_slice(&bytes[from..]);
}

fn escape(out: &mut Vec<u8>, byte: u8) {
    let short = match byte {
        b'"' => b'"',
        b'\\' => b'\\',
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        0x08 => b'b',
        0x0c => b'f',
        _ => {
            const HEX: &[u8; 16] = b"0123456789abcdef";
            out.extend_from_slice(b"\\u00");
            out.extend_from_slice(&[HEX[(byte >> 4) as usize], HEX[(byte & 15) as usize]]);
            return;
        }
    };
    out.extend_from_slice(&[b'\\', short]);
}

/// Appends a whole number.
pub fn number(out: &mut Vec<u8>, value: impl Into<u64>) {
    let mut value: u64 = value.into();
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends a log-probability. Minus infinity becomes -9999, as vLLM has it, because JSON has no infinity.
pub fn logprob(out: &mut Vec<u8>, value: f32) {
    let value = if value.is_finite() { value.max(-9999.0) } else { -9999.0 };
    // Writing to a Vec cannot fail; the debug form always has a point, as floats have in JSON of Python.
    let _ = write!(out, "{value:?}");
}

/// Appends a list of whole numbers.
pub fn numbers<'a>(out: &mut Vec<u8>, values: impl IntoIterator<Item = &'a u32>) {
    list(out, values, |out, value| number(out, *value));
}

/// Appends a list, each item written by `write`.
pub fn list<T>(out: &mut Vec<u8>, items: impl IntoIterator<Item = T>, mut write: impl FnMut(&mut Vec<u8>, T)) {
    out.push(b'[');
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write(out, item);
    }
    out.push(b']');
}

/// Appends bytes as they are.
pub fn raw(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn strings_survive() {
        let mut all: String = (0..0x250u32).filter_map(char::from_u32).collect();
        all.push_str("\u{2028}日本\u{1f600}");
        for text in ["", "plain", "\"q\" \\ \n\r\t\u{8}\u{c}\u{0}\u{1f}\u{7f}", "é", all.as_str()] {
            let mut out = Vec::new();
            string(&mut out, text);
            assert_eq!(serde_json::from_slice::<String>(&out).expect("valid JSON"), text);
        }
    }

    #[test]
    fn numbers_are_numbers() {
        for value in [0u64, 7, 10, 99, 100, 1234567890, u64::MAX] {
            let mut out = Vec::new();
            number(&mut out, value);
            assert_eq!(out, value.to_string().into_bytes());
        }
        for value in [0.0f32, -0.5, -1e-30, -20.25, f32::NEG_INFINITY, f32::NAN, f32::MIN] {
            let mut out = Vec::new();
            logprob(&mut out, value);
            let parsed: Value = serde_json::from_slice(&out).expect("valid JSON");
            assert!(parsed.as_f64().expect("number") >= -9999.0, "{value}");
        }
    }

    #[test]
    fn lists_have_commas_between() {
        let mut out = Vec::new();
        numbers(&mut out, &[1, 2, 3]);
        numbers(&mut out, &[]);
        assert_eq!(out, b"[1,2,3][]");
    }
}
