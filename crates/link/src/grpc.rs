//! Links over gRPC: one long-lived bidirectional stream each, whose first frames are the handshake.

use std::{error::Error, io, path::Path, sync::Arc, time::Duration};

use futures::StreamExt;
use hyper_util::rt::TokioIo;
use proto::{
    Frame, Hello, Welcome,
    frame::Kind,
    link_service_client::LinkServiceClient,
    link_service_server::{LinkService, LinkServiceServer},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{UnixListener, UnixStream},
    runtime::Handle,
    task::JoinHandle,
    time::timeout,
};
use tonic::{
    Request, Response, Status, Streaming,
    metadata::{Ascii, MetadataValue},
    transport::{Endpoint, Server, Uri, server::Connected},
};

use crate::{
    address::Address,
    arrivals::{Arrivals, Listening, accept_failed},
    error::LinkError,
    handshake,
    link::{Established, Incoming, Outgoing},
    options::LinkOptions,
    queue::{Frames, Writer, queue},
    stream::{Closing, Stream, ended, next, unexpected},
    tcp::guard::Guard,
    tcp::socket::{Socket, Trouble},
    tcp::token::HEADER,
    unix,
};

/// How often a silent TCP peer is asked whether it is there; on a Unix socket the kernel tells.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// How long it may take to answer.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes that a frame adds to its message.
const FRAME_BYTES: usize = 16;
/// Bytes on their way to a reader that does not read; past them the sender's queue fills.
const LARGEST_WINDOW: usize = 2 << 20;

/// Dials a listener.
pub(crate) async fn connect(address: &Address, hello: &Hello, options: &LinkOptions) -> Result<Established, LinkError> {
    let trouble = Trouble::default();
    let dialled = timeout(options.connect_deadline, dial(address, hello, options, &trouble))
        .await
        .unwrap_or(Err(LinkError::Deadline { doing: "connecting" }));
    dialled.map_err(|error| match trouble.text() {
        Some(problem) => LinkError::Tls { problem: problem.to_owned() },
        None => error,
    })
}

async fn dial(
    address: &Address,
    hello: &Hello,
    options: &LinkOptions,
    trouble: &Trouble,
) -> Result<Established, LinkError> {
    let endpoint = endpoint(address, options)?;
    let channel = match address {
        Address::Grpc(host) => endpoint.connect_with_connector(dialer(host, options, trouble)).await,
        _ => endpoint.connect().await,
    };
    let channel = channel.map_err(not_connected)?;
    let limit = options.message_limit() + FRAME_BYTES;
    let mut client = LinkServiceClient::new(channel).max_decoding_message_size(limit).max_encoding_message_size(limit);
    let (writer, frames) = queue(options.capacity(), Kind::Hello(hello.clone()));
    let mut request = Request::new(frames);
    if let (Address::Grpc(_), Some(token)) = (address, shown(options)?) {
        request.metadata_mut().insert(HEADER, token);
    }
    let mut incoming = client.open(request).await.map_err(ended)?.into_inner();
    match next(&mut incoming).await? {
        Kind::Welcome(welcome) => {
            let peer = handshake::judge(hello, welcome)?;
            let closing = Closing::Linger(options.send_deadline, Handle::current());
            let stream = Stream::new(incoming, writer.watch(), closing);
            Ok(established(peer, writer, stream, options))
        }
        other => Err(unexpected(&other)),
    }
}

/// The token as a header's value, if there is one.
pub(crate) fn shown(options: &LinkOptions) -> Result<Option<MetadataValue<Ascii>>, LinkError> {
    let value = options.token.as_ref().map(|token| token.header().parse());
    value.transpose().map_err(|_| LinkError::Address { text: "a token".to_owned() })
}

/// What makes connections to a host.
pub(crate) fn dialer(
    host: &str,
    options: &LinkOptions,
    trouble: &Trouble,
) -> impl tower_service::Service<Uri, Response = TokioIo<Socket>, Error = io::Error, Future: Send> + Send + use<> {
    let (host, tls, trouble) = (host.to_owned(), options.tls.clone(), trouble.clone());
    tower::service_fn(move |_| {
        let (host, tls, trouble) = (host.clone(), tls.clone(), trouble.clone());
        async move { Socket::connect(&host, tls.as_ref(), trouble).await.map(TokioIo::new) }
    })
}

fn endpoint(address: &Address, options: &LinkOptions) -> Result<Endpoint, LinkError> {
    let (uri, remote) = match address {
        Address::GrpcUnix(path) => (format!("unix:{}", path.display()), false),
        other => (other.to_string().replacen("grpc:", "http:", 1), true),
    };
    let endpoint = Endpoint::from_shared(uri).map_err(|_| LinkError::Address { text: address.to_string() })?;
    let window = window(options);
    let endpoint = endpoint.initial_stream_window_size(window).initial_connection_window_size(window).tcp_nodelay(true);
    Ok(if remote {
        endpoint.http2_keep_alive_interval(KEEPALIVE).keep_alive_timeout(KEEPALIVE_TIMEOUT).keep_alive_while_idle(true)
    } else {
        endpoint
    })
}

/// Listens on TCP, and does the handshake with each peer that connects.
pub(crate) async fn listen_tcp(host: &str, arrivals: Arrivals) -> Result<Listening, LinkError> {
    let guard = Guard::new(&arrivals.hello.channel, &arrivals.options);
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{host}: {error}"));
    let (sockets, bound) = guard.listen(host).await.map_err(named).map_err(LinkError::io("listening"))?;
    let accepting = serve(Gate { arrivals: Arc::new(arrivals), guard: Some(guard) }, sockets);
    Ok(Listening { accepting, address: Address::Grpc(bound.to_string()), file: None })
}

/// Listens on a Unix socket, and does the handshake with each peer that connects.
pub(crate) async fn listen_unix(path: &Path, arrivals: Arrivals) -> Result<Listening, LinkError> {
    let (listener, file) = unix::bind(path).await?;
    let arrivals = Arc::new(arrivals);
    let connections = connections(listener, arrivals.clone());
    let accepting = serve(Gate { arrivals, guard: None }, connections);
    Ok(Listening { accepting, address: Address::GrpcUnix(path.to_owned()), file: Some(file) })
}

/// Connections for ever: a failed `accept` is logged and tried again.
fn connections(
    listener: UnixListener,
    arrivals: Arc<Arrivals>,
) -> impl futures::Stream<Item = io::Result<UnixStream>> + Send {
    futures::stream::unfold((listener, arrivals), |(listener, arrivals)| async {
        loop {
            match listener.accept().await {
                Ok((socket, _)) => return Some((Ok(socket), (listener, arrivals))),
                Err(error) => accept_failed(&arrivals.hello.channel, &error).await,
            }
        }
    })
}

/// Aborting the task ends accepting; established links live on in their connections' own tasks.
fn serve<S>(gate: Gate, connections: impl futures::Stream<Item = io::Result<S>> + Send + 'static) -> JoinHandle<()>
where
    S: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let options = &gate.arrivals.options;
    let (limit, window) = (options.message_limit() + FRAME_BYTES, window(options));
    let keepalive = gate.guard.as_ref().map(|_| KEEPALIVE);
    let service = LinkServiceServer::new(gate).max_decoding_message_size(limit).max_encoding_message_size(limit);
    let server = Server::builder()
        .http2_keepalive_interval(keepalive)
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .initial_stream_window_size(window)
        .initial_connection_window_size(window)
        .add_service(service);
    tokio::spawn(async move {
        if let Err(error) = server.serve_with_incoming(connections).await {
            tracing::error!(error = chain(&error), "a link listener stopped");
        }
    })
}

/// The service: lets in whom the handshake lets in.
struct Gate {
    arrivals: Arc<Arrivals>,
    /// Turns strangers away; absent on Unix sockets, which the kernel watches too.
    guard: Option<Guard>,
}

/// What a stream sends back: the queue's frames, as the generated service wants them.
type Answers = futures::stream::Map<Frames, fn(Frame) -> Result<Frame, Status>>;

#[tonic::async_trait]
impl LinkService for Gate {
    type OpenStream = Answers;

    async fn open(&self, request: Request<Streaming<Frame>>) -> Result<Response<Answers>, Status> {
        if let Some(guard) = &self.guard {
            guard.admit(request.extensions(), request.metadata().get(HEADER).map(|shown| shown.as_bytes()))?;
        }
        let shaking = welcome(request.into_inner(), &self.arrivals);
        match self.arrivals.supervise(shaking).await {
            Ok(frames) => Ok(Response::new(frames.map(Ok as fn(Frame) -> _))),
            Err(LinkError::Refused { reason }) => {
                let (_, frames) = queue(0, Kind::Welcome(Welcome { reason, ..Welcome::default() }));
                Ok(Response::new(frames.map(Ok as fn(Frame) -> _)))
            }
            Err(error) => Err(Status::aborted(error.to_string())),
        }
    }
}

async fn welcome(mut incoming: Streaming<Frame>, arrivals: &Arrivals) -> Result<Frames, LinkError> {
    let theirs = match next(&mut incoming).await? {
        Kind::Hello(hello) => hello,
        other => return Err(unexpected(&other)),
    };
    let answer = handshake::answer(&arrivals.hello, &theirs);
    if !answer.accepted {
        return Err(LinkError::Refused { reason: answer.reason });
    }
    // A place first: a peer that is welcomed is one that `accept` will return.
    let place = arrivals.place().await?;
    let (writer, frames) = queue(arrivals.options.capacity(), Kind::Welcome(answer));
    let stream = Stream::new(incoming, writer.watch(), Closing::AtOnce);
    place.send(established(theirs, writer, stream, &arrivals.options));
    Ok(frames)
}

fn established(peer: Hello, writer: Writer, stream: Stream, options: &LinkOptions) -> Established {
    let outgoing = Outgoing::Grpc { queue: writer, limit: options.message_limit() };
    Established { peer, outgoing, incoming: Incoming::Grpc(Box::new(stream)) }
}

fn not_connected(error: tonic::transport::Error) -> LinkError {
    LinkError::Io { doing: "connecting", source: io::Error::other(chain(&error)) }
}

/// An error with its causes: tonic's own text is only "transport error".
fn chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |cause: &&(dyn Error + 'static)| (*cause).source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

fn window(options: &LinkOptions) -> u32 {
    options.capacity().min(LARGEST_WINDOW) as u32
}
