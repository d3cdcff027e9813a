//! What is counted of HTTP itself, under the names of the Prometheus instrumentator that vLLM uses.

use std::time::Duration;

use prometheus_client::{
    metrics::{
        counter::Counter,
        family::{Family, MetricConstructor},
        histogram::Histogram,
    },
    registry::Registry,
};
use service_kit::metrics::Description;

const COARSE_SECONDS: [f64; 3] = [0.1, 0.5, 1.0];
const FINE_SECONDS: [f64; 21] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0, 30.0, 60.0,
];

/// Handlers whose requests are not counted: they are asked all the time, by machines.
const EXCLUDED: [&str; 7] = ["/health", "/load", "/metrics", "/ping", "/server_info", "/version", "none"];

service_kit::labels! {
    struct Outcome {
        handler: &'static str,
        method: &'static str,
        status: &'static str,
    }

    struct Handled {
        handler: &'static str,
        method: &'static str,
    }

    struct Handler {
        handler: &'static str,
    }
}

#[derive(Clone, Copy)]
struct Buckets(&'static [f64]);

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

type Histograms<Labels> = Family<Labels, Histogram, Buckets>;

service_kit::metrics! {
    struct Table {
        by [] {
            requests: Family<Outcome, Counter>, "http_requests", "Requests by handler, method and status";
            duration: Histograms<Handled> = each(&COARSE_SECONDS), "http_request_duration_seconds",
                "Duration by handler";
            fine_duration: Histogram = Histogram::new(FINE_SECONDS), "http_request_duration_highr_seconds",
                "Duration of all requests";
            request_size: Histograms<Handler> = each(&[]), "http_request_size_bytes", "Size of requests by handler";
            response_size: Histograms<Handler> = each(&[]), "http_response_size_bytes", "Size of answers by handler";
        }
    }
}

fn each<Labels: Clone + Eq + std::hash::Hash>(buckets: &'static [f64]) -> Histograms<Labels> {
    Family::new_with_constructor(Buckets(buckets))
}

/// All of them, for documents.
pub(super) fn descriptions() -> Vec<Description> {
    Table::descriptions()
}

/// Counts requests; cloning shares.
#[derive(Clone)]
pub struct HttpMetrics(Table);

/// A request that was answered.
#[derive(Clone, Copy, Debug)]
pub struct Handling {
    /// The route's path; `none` for paths that are no route.
    pub handler: &'static str,
    /// The method; `OTHER` for unusual ones, of which clients can invent any number.
    pub method: &'static str,
    /// The status code.
    pub status: u16,
    /// Until the last byte of the answer.
    pub duration: Duration,
    /// Bytes of the request's body, as it announced them.
    pub request_bytes: u64,
    /// Bytes of the answer's body.
    pub response_bytes: u64,
}

impl HttpMetrics {
    /// Creates and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        Self(Table::register(registry, &[]))
    }

    /// Counts one request.
    pub fn handled(&self, handling: &Handling) {
        let Handling { handler, method, .. } = *handling;
        if EXCLUDED.contains(&handler) {
            return;
        }
        let seconds = handling.duration.as_secs_f64();
        self.0.requests.get_or_create(&Outcome { handler, method, status: status_class(handling.status) }).inc();
        self.0.duration.get_or_create(&Handled { handler, method }).observe(seconds);
        self.0.fine_duration.observe(seconds);
        self.0.request_size.get_or_create(&Handler { handler }).observe(handling.request_bytes as f64);
        self.0.response_size.get_or_create(&Handler { handler }).observe(handling.response_bytes as f64);
    }
}

fn status_class(status: u16) -> &'static str {
    match status / 100 {
        1 => "1xx",
        2 => "2xx",
        3 => "3xx",
        4 => "4xx",
        _ => "5xx",
    }
}

/// A bounded set of method names.
pub fn method_name(method: &http::Method) -> &'static str {
    const KNOWN: [&str; 7] = ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"];
    KNOWN.iter().find(|known| **known == method.as_str()).copied().unwrap_or("OTHER")
}
