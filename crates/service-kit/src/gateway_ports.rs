//! Where an engine's processes listen for gateways of other hosts: at ports that follow each other, so that one address
//! stands for all of them.

use std::{fmt, str::FromStr};

use link::Address;

/// Control planes of schedulers that there may be: the most that `--data-parallel-size` takes.
const MOST_SCHEDULERS: u16 = 1024;
/// Ports before those of the schedulers: requests, events, the tokenizer's control plane.
const SHARED: u16 = 3;
/// The last port that has room for the others behind it.
const LAST: u16 = u16::MAX - SHARED - MOST_SCHEDULERS;

/// Ports of one host, by their first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayPorts {
    host: String,
    first: u16,
}

/// A text that names no ports.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be grpc://HOST:PORT with a port from 1 to {LAST}: the ports behind it are used, too")]
pub struct NoGatewayPorts;

impl GatewayPorts {
    /// The tokenizer's `requests` link.
    pub fn requests(&self) -> Address {
        self.at(0)
    }

    /// The detokenizer's `events` link.
    pub fn events(&self) -> Address {
        self.at(1)
    }

    /// The tokenizer's control plane.
    pub fn tokenizer_control(&self) -> Address {
        self.at(2)
    }

    /// The control plane of an engine's scheduler, by the engine's place among those behind one tokenizer.
    pub fn scheduler_control(&self, engine: u32) -> Address {
        self.at(SHARED + u16::try_from(engine).unwrap_or(MOST_SCHEDULERS).min(MOST_SCHEDULERS))
    }

    /// The host and the numbers of all ports, for a number of engines.
    pub fn all(&self, engines: u32) -> (&str, std::ops::Range<u16>) {
        let engines = u16::try_from(engines).unwrap_or(MOST_SCHEDULERS).min(MOST_SCHEDULERS);
        (&self.host, self.first..self.first + SHARED + engines)
    }

    fn at(&self, offset: u16) -> Address {
        Address::Grpc(format!("{}:{}", self.host, self.first + offset))
    }
}

impl FromStr for GatewayPorts {
    type Err = NoGatewayPorts;

    fn from_str(text: &str) -> Result<Self, NoGatewayPorts> {
        let (host, port) = text.strip_prefix("grpc://").and_then(|rest| rest.rsplit_once(':')).ok_or(NoGatewayPorts)?;
        let first = port.parse().ok().filter(|port| (1..=LAST).contains(port)).ok_or(NoGatewayPorts)?;
        // Of an IPv6 address the colons stand between brackets.
        let is_host = !host.is_empty() && (host.starts_with('[') == host.ends_with(']'));
        let is_host = is_host && (host.starts_with('[') || !host.contains([':', '/']));
        is_host.then(|| Self { host: host.to_owned(), first }).ok_or(NoGatewayPorts)
    }
}

/// As it is read.
impl fmt::Display for GatewayPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "grpc://{}:{}", self.host, self.first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_stands_for_all() {
        let ports: GatewayPorts = "grpc://engine:9001".parse().unwrap();
        let addresses = [ports.requests(), ports.events(), ports.tokenizer_control(), ports.scheduler_control(0)];
        let texts = addresses.map(|address| address.to_string());
        assert_eq!(texts, [1, 2, 3, 4].map(|port| format!("grpc://engine:900{port}")));
        assert_eq!(ports.all(2), ("engine", 9001..9006));
        assert_eq!(ports.to_string(), "grpc://engine:9001");
        let last: GatewayPorts = format!("grpc://[::1]:{LAST}").parse().unwrap();
        assert_eq!(last.scheduler_control(u32::from(MOST_SCHEDULERS)).to_string(), "grpc://[::1]:65535");
    }

    #[test]
    fn what_names_no_ports_is_refused() {
        for text in [
            "",
            "9001",
            "engine:9001",
            "grpc://engine",
            "grpc://:9001",
            "grpc://engine:0",
            "grpc://engine:65535",
            "grpc://engine:x",
            "ring:/a",
            "grpc://::1:9001",
            "grpc://[::1:9001",
            "grpc://a/b:9001",
        ] {
            assert_eq!(text.parse::<GatewayPorts>(), Err(NoGatewayPorts), "{text}");
        }
    }
}
