//! Writes a profile as a Chrome trace, which Perfetto and `chrome://tracing` open.
//!
//! <https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU> describes the format. Threads and
//! devices are tracks of complete events; a request's spans, which overlap, are asynchronous events.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use proto::{ProfileSpan, StopProfileReply};
use serde_json::{Value, json};

/// Writes what processes recorded.
pub(super) fn write(mut file: impl Write, processes: &[StopProfileReply]) -> io::Result<()> {
    file.write_all(b"{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n")?;
    let mut is_first = true;
    let mut event = |event: Value| {
        if !std::mem::take(&mut is_first) {
            file.write_all(b",\n")?;
        }
        serde_json::to_writer(&mut file, &event).map_err(io::Error::other)
    };
    let mut number = 0;
    for process in processes {
        let pid = process.pid;
        event(json!({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": process.service}}))?;
        let tracks = tracks(&process.spans);
        for (name, thread) in &tracks {
            event(json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": thread, "args": {"name": name}}))?;
        }
        for span in &process.spans {
            match tracks.get(span.track.as_str()) {
                Some(thread) => event(complete(span, pid, *thread))?,
                None => {
                    number += 1;
                    asynchronous(span, pid, number).into_iter().try_for_each(&mut event)?;
                }
            }
        }
    }
    file.write_all(b"\n]}\n")?;
    file.flush()
}

/// The tracks of a process, numbered from 1.
fn tracks(spans: &[ProfileSpan]) -> BTreeMap<&str, usize> {
    let names = spans.iter().map(|span| span.track.as_str()).filter(|track| !track.is_empty());
    let mut tracks: BTreeMap<&str, usize> = names.map(|name| (name, 0)).collect();
    tracks.values_mut().zip(1..).for_each(|(thread, number)| *thread = number);
    tracks
}

fn complete(span: &ProfileSpan, pid: u32, thread: usize) -> Value {
    let took = micros(span.end_ns.saturating_sub(span.begin_ns));
    json!({"ph": "X", "name": span.name, "pid": pid, "tid": thread, "ts": micros(span.begin_ns), "dur": took,
        "args": arguments(span)})
}

fn asynchronous(span: &ProfileSpan, pid: u32, number: u64) -> [Value; 2] {
    let event = |phase: &str, at_ns: u64| {
        json!({"ph": phase, "cat": "request", "name": span.name, "pid": pid, "tid": 0, "ts": micros(at_ns),
            "id2": {"local": number.to_string()}, "args": arguments(span)})
    };
    [event("b", span.begin_ns), event("e", span.end_ns)]
}

fn arguments(span: &ProfileSpan) -> Value {
    let mut arguments = json!({});
    if !span.request_id.is_empty() {
        arguments["request_id"] = json!(span.request_id);
    }
    if span.step > 0 {
        arguments["step"] = json!(span.step);
    }
    arguments
}

/// Microseconds, the unit of traces.
fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_has_processes_threads_and_requests() {
        let step = ProfileSpan {
            name: "plan".into(),
            track: "main".into(),
            begin_ns: 1_500,
            end_ns: 4_000,
            step: 7,
            ..ProfileSpan::default()
        };
        let request = ProfileSpan {
            name: "schedule".into(),
            request_id: "r\"1".into(),
            begin_ns: 1_000,
            end_ns: 9_000,
            ..ProfileSpan::default()
        };
        let reply = StopProfileReply { service: "s".into(), pid: 5, spans: vec![step, request], dropped: 0 };
        let mut text = Vec::new();
        write(&mut text, &[reply, StopProfileReply::default()]).unwrap();
        let trace: Value = serde_json::from_slice(&text).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let phases: Vec<_> = events.iter().map(|event| event["ph"].as_str().unwrap()).collect();
        assert_eq!(phases, ["M", "M", "X", "b", "e", "M"]);
        assert_eq!((events[2]["ts"].as_f64(), events[2]["dur"].as_f64()), (Some(1.5), Some(2.5)));
        assert_eq!((&events[2]["args"]["step"], &events[3]["args"]["request_id"]), (&json!(7), &json!("r\"1")));
        assert_eq!(events[3]["id2"], events[4]["id2"]);
    }
}
