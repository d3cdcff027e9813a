//! Where a link listens, and with that how it travels.

use std::{fmt, path::PathBuf, str::FromStr};

use crate::error::LinkError;

/// Where a link listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `ring:/path/to.sock`: shared-memory rings, handed over on this Unix socket.
    Ring(PathBuf),
    /// `grpc://host:port`.
    Grpc(String),
    /// `grpc+unix:/path/to.sock`.
    GrpcUnix(PathBuf),
}

impl FromStr for Address {
    type Err = LinkError;
    fn from_str(text: &str) -> Result<Self, LinkError> {
        let rest = |prefix| text.strip_prefix(prefix).filter(|rest| !rest.is_empty());
        let ring = rest("ring:").map(|path| Self::Ring(path.into()));
        let grpc = || rest("grpc://").map(|host| Self::Grpc(host.to_owned()));
        let grpc_unix = || rest("grpc+unix:").map(|path| Self::GrpcUnix(path.into()));
        ring.or_else(grpc).or_else(grpc_unix).ok_or_else(|| LinkError::Address { text: text.to_owned() })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ring(path) => write!(f, "ring:{}", path.display()),
            Self::Grpc(host) => write!(f, "grpc://{host}"),
            Self::GrpcUnix(path) => write!(f, "grpc+unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, address: Address) {
        assert_eq!(text.parse::<Address>().unwrap(), address);
        assert_eq!(address.to_string(), text);
    }

    #[test]
    fn addresses_are_read_and_written() {
        check("ring:/run/quire/x.sock", Address::Ring("/run/quire/x.sock".into()));
        check("grpc://127.0.0.1:9000", Address::Grpc("127.0.0.1:9000".into()));
        check("grpc+unix:/run/quire/y.sock", Address::GrpcUnix("/run/quire/y.sock".into()));
    }

    #[test]
    fn what_is_no_address_is_refused_with_its_text() {
        for text in ["", "ring", "ring:", "grpc://", "grpc+unix:", "http://x:1", "/run/x.sock"] {
            match text.parse::<Address>() {
                Err(LinkError::Address { text: given }) => assert_eq!(given, text),
                other => panic!("{text:?} gave {other:?}"),
            }
        }
    }
}
