//! What this process says of itself.

use std::sync::OnceLock;

use proto::{Hello, PROTOCOL_VERSION};

/// The `Hello` of this process on a channel; `instance` is drawn once per process.
pub fn hello(service: &str, channel: &str, model_fingerprint: &str) -> Hello {
    static INSTANCE: OnceLock<u64> = OnceLock::new();
    Hello {
        protocol_version: PROTOCOL_VERSION,
        service: service.to_owned(),
        instance: *INSTANCE.get_or_init(rand::random),
        channel: channel.to_owned(),
        model_fingerprint: model_fingerprint.to_owned(),
        pid: std::process::id(),
        rank: 0,
        server: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_is_one_instance() {
        let (a, b) = (hello("worker-svc", "steps", ""), hello("worker-svc", "tokens", "abc"));
        assert_eq!(a.instance, b.instance);
        assert_eq!((a.protocol_version, a.pid), (PROTOCOL_VERSION, std::process::id()));
        assert_eq!((b.channel.as_str(), b.model_fingerprint.as_str()), ("tokens", "abc"));
    }
}
