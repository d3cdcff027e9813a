//! Messages that are larger than a link takes, as several.

use prost::Message;

/// The message as messages of at most `limit` bytes, in order. `halve` is given one that is larger, with its bytes: it
/// gives two for it, or one where it cannot be divided, which then stays as it is.
pub fn split<M: Message>(message: M, limit: usize, mut halve: impl FnMut(M, usize) -> (M, Option<M>)) -> Vec<M> {
    let mut fitting = Vec::with_capacity(1);
    let mut rest = vec![message];
    while let Some(message) = rest.pop() {
        let bytes = message.encoded_len();
        if bytes <= limit {
            fitting.push(message);
            continue;
        }
        match halve(message, bytes) {
            (first, Some(second)) => rest.extend([second, first]),
            (whole, None) => fitting.push(whole),
        }
    }
    fitting
}
