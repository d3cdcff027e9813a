//! Connections to readers of events: subscribers, which are sent what is new, and those who ask for what they missed.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::mpsc,
    task::JoinSet,
    time::{sleep, timeout},
};
use tracing::{debug, info, warn};

use super::{
    Endpoint, Kept, Place,
    zmtp::{self, Incoming, Incomings},
};

/// Readers of an endpoint at a time.
const MAX_PEERS: usize = 256;
/// Topics of one subscriber.
const MAX_TOPICS: usize = 64;
/// Within this a peer greets, and takes what it asked for.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two tries to reach a subscriber.
const REDIAL: Duration = Duration::from_secs(1);

/// The end marker of a replay.
const END: [u8; 8] = (-1_i64).to_be_bytes();

/// All who subscribe.
#[derive(Clone, Default)]
pub(super) struct Subscribers(Arc<Mutex<Vec<Subscriber>>>);

struct Subscriber {
    topics: Arc<Mutex<Vec<Vec<u8>>>>,
    queue: mpsc::Sender<Bytes>,
}

impl Subscribers {
    /// Gives a message to those who want its topic. One that does not keep up misses it, and sees so by the number.
    pub(super) fn send(&self, topic: &[u8], message: Bytes) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|subscriber| {
            if !subscriber.wants(topic) {
                return !subscriber.queue.is_closed();
            }
            !matches!(subscriber.queue.try_send(message.clone()), Err(mpsc::error::TrySendError::Closed(_)))
        });
    }

    fn add(&self, subscriber: Subscriber) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(subscriber);
    }
}

impl Subscriber {
    fn wants(&self, topic: &[u8]) -> bool {
        let topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        topics.iter().any(|wanted| topic.starts_with(wanted))
    }
}

/// Listens for subscribers, or dials one; the future serves them for ever. `most` messages may wait for each.
pub(super) async fn publish(
    endpoint: Endpoint,
    subscribers: Subscribers,
    most: usize,
) -> io::Result<impl Future<Output = ()> + Send> {
    let listening = match &endpoint {
        Endpoint::Bind(place) => Some(Listener::bind(place).await?),
        Endpoint::Connect(_) => None,
    };
    Ok(async move {
        match (listening, endpoint) {
            (Some(listener), _) => listener.serve(move |stream| subscriber(stream, subscribers.clone(), most)).await,
            (None, Endpoint::Connect(place) | Endpoint::Bind(place)) => dial(place, subscribers, most).await,
        }
    })
}

/// Listens for those who missed something; the future serves them for ever.
pub(super) async fn replay(place: Place, kept: Kept) -> io::Result<impl Future<Output = ()> + Send> {
    let listener = Listener::bind(&place).await?;
    Ok(listener.serve(move |stream| asker(stream, kept.clone())))
}

async fn dial(place: Place, subscribers: Subscribers, most: usize) {
    loop {
        let outcome = async {
            let stream = connect(&place).await?;
            info!(%place, "connected to a subscriber of KV cache events");
            subscriber(stream, subscribers.clone(), most).await
        };
        if let Err(error) = outcome.await {
            debug!(%place, "no subscriber of KV cache events: {error}");
        }
        sleep(REDIAL).await;
    }
}

/// Serves a subscriber until it is gone.
async fn subscriber(stream: Stream, subscribers: Subscribers, most: usize) -> io::Result<()> {
    let (mut incoming, mut writer) = in_time(zmtp::connect(stream, "PUB", &["SUB", "XSUB"])).await?;
    let topics = Arc::new(Mutex::new(Vec::new()));
    let (queue, mut messages) = mpsc::channel::<Bytes>(most);
    subscribers.add(Subscriber { topics: topics.clone(), queue: queue.clone() });
    let writing = async {
        while let Some(message) = messages.recv().await {
            writer.write_all(&message).await?;
        }
        Ok(())
    };
    tokio::select! {
        ended = read(&mut incoming, &topics, &queue) => ended,
        ended = writing => ended,
    }
}

async fn read<R: AsyncRead + Unpin>(
    incoming: &mut Incomings<R>,
    topics: &Mutex<Vec<Vec<u8>>>,
    queue: &mpsc::Sender<Bytes>,
) -> io::Result<()> {
    loop {
        match incoming.next().await? {
            Incoming::Message(frames) => subscribe(topics, &frames)?,
            // A peer that does not keep up is not told that this end lives.
            Incoming::Ping(context) => drop(queue.try_send(zmtp::pong(&context).into())),
        }
    }
}

/// One byte and a topic: 1 to subscribe, 0 to do so no longer.
fn subscribe(topics: &Mutex<Vec<Vec<u8>>>, frames: &[Vec<u8>]) -> io::Result<()> {
    let mut topics = topics.lock().unwrap_or_else(PoisonError::into_inner);
    // Other messages of a subscriber have no meaning.
    let [frame] = frames else { return Ok(()) };
    match frame.split_first() {
        Some((1, _)) if topics.len() == MAX_TOPICS => return Err(io::Error::other("too many topics")),
        Some((1, topic)) => topics.push(topic.to_vec()),
        Some((0, topic)) => {
            if let Some(at) = topics.iter().position(|known| known == topic) {
                topics.swap_remove(at);
            }
        }
        _ => {}
    }
    Ok(())
}

/// Answers who asks for what it missed, until it is gone.
async fn asker(stream: Stream, kept: Kept) -> io::Result<()> {
    let (mut incoming, mut writer) = in_time(zmtp::connect(stream, "ROUTER", &["REQ", "DEALER", "ROUTER"])).await?;
    loop {
        let frames = match incoming.next().await? {
            Incoming::Message(frames) => frames,
            Incoming::Ping(context) => {
                writer.write_all(&zmtp::pong(&context)).await?;
                continue;
            }
        };
        // A REQ socket puts an empty frame in front of what it sends, and wants it back.
        let envelope = usize::from(frames.first().is_some_and(Vec::is_empty) && frames.len() > 1);
        let Some(from) = frames.get(envelope).and_then(|frame| frame.as_slice().try_into().ok()) else {
            warn!("who asks for KV cache events names none: the number of one is eight bytes");
            continue;
        };
        let answer = |number: &[u8], batch: &[u8]| match envelope {
            0 => zmtp::message(&[number, batch]),
            _ => zmtp::message(&[b"", number, batch]),
        };
        for (number, batch) in kept.since(u64::from_be_bytes(from)) {
            in_time(writer.write_all(&answer(&number.to_be_bytes(), &batch))).await?;
        }
        in_time(writer.write_all(&answer(&END, b""))).await?;
    }
}

/// Fails with `TimedOut` after [`PATIENCE`].
async fn in_time<T>(what: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(PATIENCE, what).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// A socket of either kind.
trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}
type Stream = Box<dyn Socket>;

async fn connect(place: &Place) -> io::Result<Stream> {
    Ok(match place {
        Place::Tcp(host, port) => Box::new(TcpStream::connect((host.as_str(), *port)).await?),
        Place::Unix(path) => Box::new(UnixStream::connect(path).await?),
    })
}

/// Where peers come.
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    async fn bind(place: &Place) -> io::Result<Self> {
        match place {
            Place::Tcp(host, port) => {
                let listener = TcpListener::bind((host.as_str(), *port)).await?;
                info!(address = %listener.local_addr()?, "listening for readers of KV cache events");
                Ok(Self::Tcp(listener))
            }
            Place::Unix(path) => {
                // What a process that is gone has left.
                if UnixStream::connect(path).await.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
                {
                    std::fs::remove_file(path)?;
                }
                Ok(Self::Unix(UnixListener::bind(path)?))
            }
        }
    }

    async fn accept(&self) -> io::Result<Stream> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            Self::Unix(listener) => Box::new(listener.accept().await?.0),
        })
    }

    /// Serves each that comes, some at a time, until it is dropped.
    async fn serve<F>(self, peer: impl Fn(Stream) -> F)
    where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        // Dropping it ends them.
        let mut peers = JoinSet::new();
        loop {
            tokio::select! {
                Some(_) = peers.join_next() => {}
                stream = self.accept(), if peers.len() < MAX_PEERS => match stream {
                    Ok(stream) => {
                        let serving = peer(stream);
                        peers.spawn(async move {
                            if let Err(error) = serving.await {
                                debug!("a reader of KV cache events left: {error}");
                            }
                        });
                    }
                    Err(error) => {
                        warn!("accepting a reader of KV cache events: {error}");
                        // Out of file descriptors, most likely: others are to end first.
                        sleep(REDIAL).await;
                    }
                },
            }
        }
    }
}
