//! Holds the engine's port, so that a bad one shows before the model loads and nobody takes it while a gateway
//! restarts.

use std::{
    io,
    net::{SocketAddr, TcpListener, ToSocketAddrs},
    os::fd::OwnedFd,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};

/// A port that is bound but not listened to; gateways listen to it with `SO_REUSEPORT`.
#[derive(Debug)]
pub struct Port {
    /// Where gateways listen.
    pub address: SocketAddr,
    _socket: OwnedFd,
}

/// Why there is no port.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The host has no address.
    #[error("--host {host}: {cause}")]
    Host {
        /// As given.
        host: String,
        /// What the system said.
        cause: io::Error,
    },
    /// Another program listens there.
    #[error("port {port} of {host} is taken by another program; pass another --port, or --port 0 for any that is free")]
    Taken {
        /// As given.
        host: String,
        /// As given.
        port: u16,
    },
    /// The system refuses it.
    #[error("cannot listen at port {port} of {host}: {cause}")]
    Refused {
        /// As given.
        host: String,
        /// As given.
        port: u16,
        /// What the system said.
        cause: io::Error,
    },
}

impl Port {
    /// Takes a port; 0 takes any that is free.
    pub fn hold(host: &str, port: u16) -> Result<Self, PortError> {
        let unknown = |cause| PortError::Host { host: host.to_owned(), cause };
        let mut found = (host, port).to_socket_addrs().map_err(unknown)?;
        let address = found.next().ok_or_else(|| unknown(io::Error::other("the name has no address")))?;
        let failed = |cause: io::Error| match cause.kind() {
            io::ErrorKind::AddrInUse => PortError::Taken { host: host.to_owned(), port },
            _ => PortError::Refused { host: host.to_owned(), port, cause },
        };
        // Sharing would succeed beside another engine of this user, so look without sharing first.
        drop(TcpListener::bind(address).map_err(failed)?);
        // Without `SO_REUSEADDR` nobody else can bind it, but neither can we while connections of an earlier run
        // linger.
        let socket = share(address, Lingering::InTheWay).or_else(|_| share(address, Lingering::Ignored));
        let socket = socket.map_err(|error| failed(error.into()))?;
        let address = bound(&socket).map_err(failed)?;
        Ok(Self { address, _socket: socket })
    }
}

/// What connections of an earlier run do to binding.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lingering {
    InTheWay,
    Ignored,
}

fn share(address: SocketAddr, lingering: Lingering) -> rustix::io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, lingering == Lingering::Ignored)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    bind(&socket, &address)?;
    Ok(socket)
}

fn bound(socket: &OwnedFd) -> io::Result<SocketAddr> {
    let address = getsockname(socket)?;
    address.try_into().map_err(|_| io::Error::other("not an IP address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_named() {
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = other.local_addr().unwrap().port();
        let error = Port::hold("127.0.0.1", port).unwrap_err();
        assert!(matches!(error, PortError::Taken { .. }), "{error}");
        assert!(matches!(Port::hold("no host", 0).unwrap_err(), PortError::Host { .. }));
    }

    #[test]
    fn a_held_port_is_nobody_elses_but_gateways_can_share_it() {
        let port = Port::hold("127.0.0.1", 0).unwrap();
        assert!(TcpListener::bind(port.address).is_err());
        assert!(matches!(Port::hold("127.0.0.1", port.address.port()).unwrap_err(), PortError::Taken { .. }));
        let shared = share(port.address, Lingering::Ignored).unwrap();
        rustix::net::listen(&shared, 1).unwrap();
    }
}
