//! Who gets in over TCP: peers that show the engine's token, its certificates, or both where both are asked for.

use std::{io, net::SocketAddr, sync::Arc};

use futures::{Stream, StreamExt};
use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tonic::{Extensions, Request, Status, service::Interceptor};

use crate::{
    arrivals::accept_failed,
    options::LinkOptions,
    tcp::socket::{Peer, Socket},
    tcp::token::HEADER,
};

/// TCP connections that shake hands at a time.
const HANDSHAKES: usize = 256;

/// Guards a gRPC server: on TCP by token and certificates, on a Unix socket by the permissions of its folder. As an
/// interceptor it stands before all services of a server.
#[derive(Clone, Debug)]
pub struct Guard {
    /// What is served, for logs.
    channel: Arc<str>,
    options: LinkOptions,
}

impl Guard {
    /// Guards what is served under this name with the token and the certificates of `options`.
    pub fn new(channel: &str, options: &LinkOptions) -> Self {
        Self { channel: channel.into(), options: options.clone() }
    }

    /// Listens at `host` (`host:port`) and gives the connections that may speak, and the address with the real port.
    /// Says loudly when everybody who reaches the address gets in.
    ///
    /// # Errors
    /// When the address cannot be listened at.
    pub async fn listen(
        &self,
        host: &str,
    ) -> io::Result<(impl Stream<Item = io::Result<Socket>> + Send + use<>, SocketAddr)> {
        let listener = TcpListener::bind(host).await?;
        let bound = listener.local_addr()?;
        let (channel, LinkOptions { token, tls, .. }) = (&*self.channel, &self.options);
        if token.is_none() && tls.is_none() && !bound.ip().is_loopback() {
            tracing::warn!(
                channel,
                "{bound}: whoever reaches this address gets in; see --link-ssl-certfile, --link-token-file"
            );
        }
        let callers = futures::stream::unfold((listener, self.channel.clone()), |(listener, channel)| async {
            let caller = accept(&listener, &channel).await;
            Some((caller, (listener, channel)))
        });
        let guard = self.clone();
        let shaken = callers.map(move |caller| guard.clone().shake(caller)).buffer_unordered(HANDSHAKES);
        Ok((shaken.filter_map(|socket| std::future::ready(socket.map(Ok))), bound))
    }

    /// Finds out what a caller speaks. One that gets nothing is logged, with the reason.
    async fn shake(self, caller: TcpStream) -> Option<Socket> {
        let peer = caller.peer_addr().map_or_else(|_| "unknown".to_owned(), |address| address.to_string());
        let (channel, options) = (&*self.channel, &self.options);
        match timeout(options.connect_deadline, Socket::accept(caller, options.tls.as_ref())).await {
            Ok(Ok(socket)) => Some(socket),
            Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                tracing::debug!(channel, peer, "a caller left before it said anything");
                None
            }
            Ok(Err(error)) => {
                tracing::warn!(channel, peer, %error, "turned a peer away");
                None
            }
            Err(_) => {
                tracing::warn!(channel, peer, "turned a peer away, which does not shake hands in time");
                None
            }
        }
    }

    /// Turns strangers away, and logs them. `shown` is the header with the token.
    ///
    /// # Errors
    /// With what the peer lacks, for it to read.
    pub fn admit(&self, extensions: &Extensions, shown: Option<&[u8]>) -> Result<(), Status> {
        let Some(Peer { address, is_member }) = extensions.get::<Peer>() else { return Ok(()) };
        let channel = &*self.channel;
        if self.options.tls.is_some() && !is_member {
            tracing::warn!(channel, peer = %address, "turned a peer away, which speaks plain text to a port with TLS");
            return Err(Status::unauthenticated("it takes TLS: --link-ssl-certfile with a certificate of this engine"));
        }
        if self.options.token.as_ref().is_some_and(|token| !token.is_shown(shown)) {
            tracing::warn!(channel, peer = %address, "turned a peer away, which does not show this engine's token");
            return Err(Status::unauthenticated("it takes the token of this engine's --link-token-file"));
        }
        Ok(())
    }
}

impl Interceptor for Guard {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let shown = request.metadata().get(HEADER).map(|shown| shown.as_bytes());
        self.admit(request.extensions(), shown)?;
        Ok(request)
    }
}

/// The next connection: a failed `accept` is logged and tried again.
async fn accept(listener: &TcpListener, channel: &str) -> TcpStream {
    loop {
        match listener.accept().await.and_then(|(socket, _)| socket.set_nodelay(true).map(|()| socket)) {
            Ok(socket) => return socket,
            Err(error) => accept_failed(channel, &error).await,
        }
    }
}
