//! HTTP around the routes: listeners, the router and its middleware, keys, bodies, event streams.

pub mod auth;
pub mod body;
pub mod listeners;
pub mod middleware;
pub mod request_id;
pub mod router;
pub mod routing;
pub mod sse;
