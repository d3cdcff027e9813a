//! Reads server-sent events out of a byte stream, copying only what crosses the border of two reads.

/// Splits a stream into the payloads of its `data:` lines.
#[derive(Default)]
pub struct Events {
    /// The beginning of a line whose end has not arrived.
    carry: Vec<u8>,
}

/// The payload that ends an OpenAI stream.
pub const DONE: &[u8] = b"[DONE]";

impl Events {
    /// Takes the next bytes and hands over every payload that they complete.
    ///
    /// OpenAI's servers send one line per event, so a line's end is taken for the event's.
    pub fn feed(&mut self, mut bytes: &[u8], mut payload: impl FnMut(&[u8])) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = bytes.split_at(end);
            bytes = &rest[1..];
            if self.carry.is_empty() {
                data(line).into_iter().for_each(&mut payload);
            } else {
                self.carry.extend_from_slice(line);
                data(&self.carry).into_iter().for_each(&mut payload);
                self.carry.clear();
            }
        }
        self.carry.extend_from_slice(bytes);
    }
}

fn data(line: &[u8]) -> Option<&[u8]> {
    let payload = line.strip_prefix(b"data:")?.trim_ascii();
    (!payload.is_empty()).then_some(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_cut_gives_the_same_events() {
        let stream = b": hello\n\ndata: {\"a\": 1}\r\n\r\nevent: x\ndata:two\n\ndata: [DONE]\n\n";
        for size in 1..stream.len() {
            let (mut events, mut found) = (Events::default(), Vec::new());
            for part in stream.chunks(size) {
                events.feed(part, |payload| found.push(payload.to_vec()));
            }
            assert_eq!(found, [&b"{\"a\": 1}"[..], b"two", DONE], "cut every {size} bytes");
        }
    }
}
