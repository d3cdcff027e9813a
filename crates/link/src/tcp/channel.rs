//! Calls to a gRPC server behind a [`Guard`](crate::Guard): control planes, which are asked and not linked.

use std::time::Duration;

use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{self, Endpoint},
};

use crate::{
    address::Address,
    error::LinkError,
    grpc::{dialer, shown},
    options::LinkOptions,
    tcp::socket::Trouble,
    tcp::token::HEADER,
};

/// A gRPC channel whose calls show the engine's token, where there is one. It connects at its first call, and again
/// whenever the server is back.
pub type Channel = InterceptedService<transport::Channel, ShowToken>;

/// How long it may take to connect: people and probes wait for answers.
const CONNECT_DEADLINE: Duration = Duration::from_secs(2);

/// Shows a token with each call.
#[derive(Clone, Debug)]
pub struct ShowToken(Option<MetadataValue<Ascii>>);

impl Interceptor for ShowToken {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert(HEADER, token.clone());
        }
        Ok(request)
    }
}

/// A channel to the gRPC server at `address`. Over TCP it shows the token and the certificates of `options`.
///
/// # Errors
/// When the address is none.
pub fn channel(address: &Address, options: &LinkOptions) -> Result<Channel, LinkError> {
    let unusable = |_| LinkError::Address { text: address.to_string() };
    let endpoint = |uri: String| {
        Ok::<_, LinkError>(Endpoint::from_shared(uri).map_err(unusable)?.connect_timeout(CONNECT_DEADLINE))
    };
    let (channel, token) = match address {
        Address::Grpc(host) => {
            let dialer = dialer(host, options, &Trouble::default());
            (endpoint(format!("http://{host}"))?.connect_with_connector_lazy(dialer), shown(options)?)
        }
        Address::GrpcUnix(path) | Address::Ring(path) => {
            (endpoint(format!("unix://{}", path.display()))?.connect_lazy(), None)
        }
    };
    Ok(InterceptedService::new(channel, ShowToken(token)))
}
