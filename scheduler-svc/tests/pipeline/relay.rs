//! A relay between two ends of a stream that can go silent, as a host does that drops off the network: nothing gets
//! through any more, and no connection ends.

use std::path::Path;

use link::Address;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};

/// A way to a gRPC address on a Unix socket.
pub struct Relay {
    /// Where to dial instead.
    pub address: Address,
    silent: watch::Sender<bool>,
}

impl Relay {
    /// Listens beside the socket that it leads to.
    pub fn to(address: &Address, name: &str) -> Self {
        let Address::GrpcUnix(target) = address.clone() else { panic!("{address} is no stream on a Unix socket") };
        let path = target.with_file_name(name);
        let listener = UnixListener::bind(&path).unwrap();
        let silent = watch::Sender::new(false);
        let watched = silent.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                join(near, &target, &watched).await;
            }
        });
        Self { address: Address::GrpcUnix(path), silent }
    }

    /// Swallows all bytes from here on.
    pub fn go_silent(&self) {
        self.silent.send_replace(true);
    }
}

async fn join(near: UnixStream, target: &Path, silent: &watch::Sender<bool>) {
    let far = UnixStream::connect(target).await.unwrap();
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
    tokio::spawn(copy(near_in, far_out, silent.subscribe()));
    tokio::spawn(copy(far_in, near_out, silent.subscribe()));
}

async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut silent: watch::Receiver<bool>) {
    let mut bytes = vec![0; 64 << 10];
    loop {
        let read = tokio::select! {
            biased;
            _ = silent.wait_for(|silent| *silent) => None,
            read = from.read(&mut bytes) => Some(read),
        };
        match read {
            None => std::future::pending().await,
            Some(Ok(length)) if length > 0 && to.write_all(&bytes[..length]).await.is_ok() => {}
            _ => return,
        }
    }
}
