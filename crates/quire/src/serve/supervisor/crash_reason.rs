//! Reads a process's log lines, forwards them, and finds the reason of its crash in the last ones.

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

use crate::serve::screen::Screen;

/// Passes lines on until the process closes its end; returns the cause of its end as its last lines tell it.
///
/// The last line of a process that fails is its error. While `hold` says so, error lines are held back until another
/// line follows, so that the error that ends a start is shown once: by the report of the failed start.
pub async fn follow(
    stderr: impl AsyncRead + Unpin,
    process: &str,
    screen: &Screen,
    hold: impl Fn() -> bool,
) -> Option<String> {
    let mut reader = BufReader::new(stderr);
    let (mut held, mut last) = (None::<String>, None::<String>);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        // An error here means the same as the end: nothing more comes.
        if reader.read_until(b'\n', &mut bytes).await.unwrap_or(0) == 0 {
            break;
        }
        let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        if let Some(held) = held.take() {
            screen.process_line(process, &held);
        }
        if hold() && is_error(&line) {
            held = Some(line);
        } else {
            screen.process_line(process, &line);
            last = Some(line).filter(|line| !line.trim().is_empty()).or(last);
        }
    }
    held.or(last).map(|line| cause(&line))
}

fn is_error(line: &str) -> bool {
    line.contains(" ERROR ") || line.contains("\"level\":\"ERROR\"") || line.starts_with("error: ")
}

/// The message of a log line, without time, level, place and fields.
fn cause(line: &str) -> String {
    if let Ok(json) = serde_json::from_str::<serde_json::Value>(line) {
        let message = json["message"].as_str().or_else(|| json["fields"]["message"].as_str());
        return message.unwrap_or(line).to_owned();
    }
    let Some((_, rest)) = line.split_once(" ERROR ") else { return line.to_owned() };
    let message = rest.split_once(": ").map_or(rest, |(_, message)| message);
    message.rsplit_once(" service=\"").map_or(message, |(message, _)| message).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::screen::Form;

    #[test]
    fn causes_are_plain() {
        for (line, message) in [
            ("2026-01-01T00:00:00Z ERROR service_kit::run: no config.json service=\"worker-svc\"", "no config.json"),
            (r#"{"level":"ERROR","message":"no config.json","service":"worker-svc"}"#, "no config.json"),
            ("error: unexpected argument '--x' found", "error: unexpected argument '--x' found"),
        ] {
            assert_eq!(cause(line), message);
        }
    }

    #[tokio::test]
    async fn the_last_error_is_the_cause() {
        let screen = Screen::new(Form::Text);
        let follow = |text: &'static str| follow(text.as_bytes(), "test", &screen, || true);
        assert_eq!(follow("a\nt ERROR x: bad\n").await.as_deref(), Some("bad"));
        assert_eq!(follow("t ERROR x: bad\nafter").await.as_deref(), Some("after"));
        assert_eq!(follow("").await, None);
    }
}
