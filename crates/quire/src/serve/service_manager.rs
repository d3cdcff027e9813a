//! Tells a service manager how far the engine is, as systemd's `Type=notify` wants it: lines in a datagram to the
//! socket that `NOTIFY_SOCKET` names. A name that begins with `@` is an abstract one.

use std::{
    ffi::OsStr,
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
};

/// The service manager that started this program, if one did.
pub(super) struct ServiceManager<'a> {
    socket: Option<&'a OsStr>,
}

impl<'a> ServiceManager<'a> {
    /// The one behind `socket`; without it nobody is told anything.
    pub(super) fn new(socket: Option<&'a OsStr>) -> Self {
        Self { socket }
    }

    /// Tells it `state`. That nobody hears it is no reason not to serve.
    pub(super) fn tell(&self, state: &str) {
        let Some(socket) = self.socket else { return };
        if let Err(error) = send(socket, state) {
            tracing::warn!("cannot tell the service manager at {}: {error}", socket.display());
        }
    }
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    // A manager whose queue is full must not hold the engine up.
    let sender = UnixDatagram::unbound()?;
    sender.set_nonblocking(true)?;
    sender.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn both_kinds_of_sockets_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        ServiceManager::new(Some(path.as_os_str())).tell("READY=1");
        assert_eq!(received(&manager), "READY=1");

        let name = format!("quire-test-{}", std::process::id());
        let manager = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        ServiceManager::new(Some(OsStr::new(&format!("@{name}")))).tell("STOPPING=1");
        assert_eq!(received(&manager), "STOPPING=1");
    }

    #[test]
    fn nobody_there_is_no_failure() {
        ServiceManager::new(None).tell("READY=1");
        ServiceManager::new(Some(OsStr::new("/nonexistent/socket"))).tell("READY=1");
    }
}
