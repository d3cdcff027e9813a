//! Events as they go over the wire, each with its number.

use serde_json::Value;

use crate::json;

/// Events in the order of their numbers, as bytes.
#[derive(Clone, Debug, Default)]
pub struct Events {
    bytes: Vec<u8>,
    /// Where each of them ends.
    ends: Vec<usize>,
}

impl Events {
    /// Appends event `number`; `members` is an object of what it has besides its type and number.
    pub fn push(&mut self, kind: &str, number: u64, members: &Value) {
        self.write(kind, number, |out| {
            // Without the brace that opens it.
            out.extend_from_slice(&members.to_string().as_bytes()[1..]);
        });
    }

    /// Appends event `number`; `members` writes the rest of the object, its closing brace included.
    pub fn write(&mut self, kind: &str, number: u64, members: impl FnOnce(&mut Vec<u8>)) {
        let out = &mut self.bytes;
        json::raw(out, "event: ");
        json::raw(out, kind);
        json::raw(out, "\ndata: {\"type\":\"");
        json::raw(out, kind);
        json::raw(out, "\",\"sequence_number\":");
        json::number(out, number);
        json::raw(out, ",");
        members(out);
        json::raw(out, "\n\n");
        self.ends.push(self.bytes.len());
    }

    /// All of them as bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Where the events begin that follow number `number`; at the end where there are none yet.
    pub fn after(&self, number: u64) -> usize {
        let index = usize::try_from(number).unwrap_or(usize::MAX);
        self.ends.get(index).copied().unwrap_or(self.bytes.len())
    }

    /// Adds the events of `other` behind its own.
    pub fn append(&mut self, other: &Self) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&other.bytes);
        self.ends.extend(other.ends.iter().map(|end| start + end));
    }

    /// Forgets them; the buffers stay.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_follows_a_number_is_found() {
        let mut events = Events::default();
        events.push("a", 0, &json!({"x": 1}));
        let first = events.bytes().len();
        assert_eq!(events.bytes(), b"event: a\ndata: {\"type\":\"a\",\"sequence_number\":0,\"x\":1}\n\n");
        let mut more = Events::default();
        more.push("b", 1, &json!({"y": "z"}));
        events.append(&more);
        assert_eq!(events.after(0), first);
        assert_eq!(events.after(1), events.bytes().len());
        assert_eq!(events.after(u64::MAX), events.bytes().len());
        assert_eq!(&events.bytes()[first..], more.bytes());
    }
}
