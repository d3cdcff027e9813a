//! Calls other processes' control planes.

use std::time::Duration;

use link::{Address, Channel, LinkError, LinkOptions, channel};
use proto::control_client::ControlClient as GrpcClient;

/// Deadline of a control call, unless the call says otherwise: short, because people and probes wait for it.
const DEADLINE: Duration = Duration::from_secs(2);

/// How long a process may take to hand over its profile: a worker waits for its device.
const PROFILE_DEADLINE: Duration = Duration::from_secs(60);

/// How long an adapter may take to be read.
const ADAPTER_DEADLINE: Duration = Duration::from_secs(120);

/// A process's control plane, seen from another one. Cheap to clone.
#[derive(Clone)]
pub struct ControlClient {
    grpc: GrpcClient<Channel>,
}

impl ControlClient {
    /// Connects at the first call, and again whenever the process is back. Over TCP it shows the token and the
    /// certificates of `links`.
    ///
    /// # Errors
    /// When the address is none.
    pub fn new(address: &Address, links: &LinkOptions) -> Result<Self, LinkError> {
        // Metrics texts and profiles of busy processes are large.
        Ok(Self { grpc: GrpcClient::new(channel(address, links)?).max_decoding_message_size(64 << 20) })
    }

    /// Whether it lives.
    pub async fn health(&self) -> Result<proto::HealthReply, tonic::Status> {
        Ok(self.grpc.clone().health(timed(proto::HealthRequest {})).await?.into_inner())
    }

    /// Whether it can do its work, and why not.
    pub async fn ready(&self) -> Result<proto::ReadyReply, tonic::Status> {
        Ok(self.grpc.clone().ready(timed(proto::ReadyRequest {})).await?.into_inner())
    }

    /// What it is.
    pub async fn info(&self) -> Result<proto::InfoReply, tonic::Status> {
        Ok(self.grpc.clone().info(timed(proto::InfoRequest {})).await?.into_inner())
    }

    /// Its metrics as text, without an end mark.
    pub async fn metrics(&self) -> Result<String, tonic::Status> {
        Ok(self.grpc.clone().metrics(timed(proto::MetricsRequest {})).await?.into_inner().text)
    }

    /// Asks it to finish what runs and refuse new work; returns how many requests were left at the deadline.
    pub async fn drain(&self, deadline: Duration) -> Result<u32, tonic::Status> {
        let deadline_ms = u32::try_from(deadline.as_millis()).unwrap_or(u32::MAX);
        let mut request = tonic::Request::new(proto::DrainRequest { deadline_ms });
        request.set_timeout(deadline + DEADLINE);
        Ok(self.grpc.clone().drain(request).await?.into_inner().left)
    }

    /// Aborts a request by the id that its client saw; `false` when there is none.
    pub async fn abort(&self, request_id: &str) -> Result<bool, tonic::Status> {
        let request = proto::AbortRequestRequest { request_id: request_id.to_owned() };
        Ok(self.grpc.clone().abort_request(timed(request)).await?.into_inner().found)
    }

    /// Begins a profile.
    pub async fn start_profile(&self, request: proto::StartProfileRequest) -> Result<(), tonic::Status> {
        self.grpc.clone().start_profile(timed(request)).await.map(drop)
    }

    /// Ends it; what was recorded.
    pub async fn stop_profile(&self) -> Result<proto::StopProfileReply, tonic::Status> {
        let mut request = tonic::Request::new(proto::StopProfileRequest {});
        request.set_timeout(PROFILE_DEADLINE);
        Ok(self.grpc.clone().stop_profile(request).await?.into_inner())
    }

    /// Loads an adapter and serves it (scheduler only); why not.
    pub async fn serve_adapter(
        &self,
        request: proto::ServeAdapterRequest,
    ) -> Result<Option<proto::Failure>, tonic::Status> {
        let mut request = tonic::Request::new(request);
        request.set_timeout(ADAPTER_DEADLINE);
        Ok(self.grpc.clone().serve_adapter(request).await?.into_inner().failure)
    }

    /// Serves an adapter no longer (scheduler only); why not.
    pub async fn remove_adapter(&self, name: &str) -> Result<Option<proto::Failure>, tonic::Status> {
        let mut request = tonic::Request::new(proto::RemoveAdapterRequest { name: name.to_owned() });
        // One of that name that is being loaded is waited for.
        request.set_timeout(ADAPTER_DEADLINE);
        Ok(self.grpc.clone().remove_adapter(request).await?.into_inner().failure)
    }

    /// The adapters that are served (scheduler only). `resolve`: a name to look for first; empty: none.
    pub async fn adapters(&self, resolve: &str) -> Result<proto::ListAdaptersReply, tonic::Status> {
        let mut request = tonic::Request::new(proto::ListAdaptersRequest { resolve: resolve.to_owned() });
        request.set_timeout(ADAPTER_DEADLINE);
        Ok(self.grpc.clone().list_adapters(request).await?.into_inner())
    }

    /// Forgets all cached prefixes (scheduler only).
    pub async fn reset_prefix_cache(&self) -> Result<(), tonic::Status> {
        self.grpc.clone().reset_prefix_cache(timed(proto::ResetPrefixCacheRequest {})).await.map(drop)
    }
}

fn timed<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(DEADLINE);
    request
}
