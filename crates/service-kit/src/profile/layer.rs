//! The spans that follow a request through a process (those that traces export), as spans of a profile.

use std::fmt::Debug;

use proto::ProfileSpan;
use tracing::{
    Id, Level, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span::{Attributes, Record},
    subscriber::Interest,
};
use tracing_subscriber::{
    Layer,
    layer::{Context, Filter},
    registry::LookupSpan,
};

use super::{Recorder, now_ns};

/// Whose spans are recorded.
const SERVICES: [&str; 5] = ["api_gateway", "detokenizer_svc", "scheduler_svc", "tokenizer_svc", "worker_svc"];

/// Records them while a profile runs; else they do not exist for it.
pub(crate) struct RequestSpans {
    recorder: Recorder,
}

/// The field `request_id` of a span.
#[derive(Default)]
struct RequestId(String);

impl RequestSpans {
    /// A layer with its filter.
    pub(crate) fn layer<S>(recorder: &Recorder) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let filter = WhileOn { recorder: recorder.clone() };
        Self { recorder: recorder.clone() }.with_filter(filter)
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for RequestSpans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, _: Context<'_, S>) {
        let mut request_id = RequestId::default();
        attributes.record(&mut request_id);
        let name = attributes.metadata().name().to_owned();
        let span = ProfileSpan { name, request_id: request_id.0, begin_ns: now_ns(), ..ProfileSpan::default() };
        self.recorder.open(id.into_u64(), span);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        let mut request_id = RequestId::default();
        values.record(&mut request_id);
        if !request_id.0.is_empty() {
            self.recorder.name_request(id.into_u64(), &request_id.0);
        }
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        self.recorder.close(id.into_u64());
    }
}

impl Visit for RequestId {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "request_id" {
            value.clone_into(&mut self.0);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "request_id" {
            self.0 = format!("{value:?}");
        }
    }
}

/// Lets requests' spans pass while a profile runs.
struct WhileOn {
    recorder: Recorder,
}

fn is_of_request(metadata: &Metadata<'_>) -> bool {
    let of_service = || SERVICES.iter().any(|service| metadata.target().starts_with(service));
    metadata.is_span() && *metadata.level() <= Level::INFO && of_service()
}

impl<S> Filter<S> for WhileOn {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        self.recorder.is_on() && is_of_request(metadata)
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if is_of_request(metadata) { Interest::sometimes() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::{Registry, layer::SubscriberExt};

    use super::*;
    use crate::profile::Steps;

    #[test]
    fn spans_of_requests_are_recorded_while_a_profile_runs() {
        let recorder = Recorder::default();
        let subscriber = Registry::default().with(RequestSpans::layer(&recorder));
        tracing::subscriber::with_default(subscriber, || {
            drop(tracing::info_span!(target: "worker_svc", "before", request_id = "a"));
            recorder.start(Steps::default());
            let span = tracing::info_span!(target: "worker_svc", "late", request_id = tracing::field::Empty);
            span.record("request_id", "b");
            drop(span);
            drop(tracing::info_span!(target: "h2", "frame"));
            drop(tracing::debug_span!(target: "worker_svc", "detail"));
            let on = tracing::info_span!(target: "worker_svc", "on", request_id = "c");
            let spans = recorder.stop().spans;
            let [late, open] = spans.as_slice() else { panic!("{spans:?}") };
            assert_eq!((late.name.as_str(), late.request_id.as_str()), ("late", "b"));
            assert_eq!((open.name.as_str(), open.request_id.as_str()), ("on", "c"));
            assert!(late.begin_ns <= late.end_ns && open.begin_ns <= open.end_ns);
            drop(on);
            assert!(recorder.stop().spans.is_empty());
        });
    }
}
