//! The adapters that an engine serves, in a file for the scheduler that is started after this one: those that were
//! loaded while it served are on no command line.

use std::{fs, io, path::PathBuf};

use proto::ServedAdapter;
use serde_json::{Value, json};
use tracing::warn;

/// The file, if there is to be one.
pub(crate) struct KeptAdapters {
    file: Option<PathBuf>,
}

impl KeptAdapters {
    pub(crate) fn new(file: Option<PathBuf>) -> Self {
        Self { file }
    }

    /// What the scheduler before this one served; absent: there was none, or the file cannot be read.
    pub(crate) fn read(&self) -> Option<Vec<ServedAdapter>> {
        let file = self.file.as_ref()?;
        let text = match fs::read_to_string(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            text => text,
        };
        let adapters = text.and_then(|text| Ok(serde_json::from_str::<Vec<Value>>(&text)?));
        let unreadable = |error: &io::Error| {
            warn!(file = %file.display(), %error, "adapters that were served before are not known");
        };
        let adapters = adapters.inspect_err(unreadable).ok()?;
        let member = |adapter: &Value, name: &str| adapter[name].as_str().unwrap_or_default().to_owned();
        let adapter = |adapter: &Value| ServedAdapter {
            name: member(adapter, "name"),
            path: member(adapter, "path"),
            base_model_name: member(adapter, "base_model_name"),
            ..ServedAdapter::default()
        };
        Some(adapters.iter().map(adapter).collect())
    }

    /// Replaces what the file says. One that cannot be written costs the next scheduler these adapters, no more.
    pub(crate) fn write(&self, adapters: &[ServedAdapter]) {
        let Some(file) = &self.file else { return };
        let adapter = |adapter: &ServedAdapter| {
            let ServedAdapter { name, path, base_model_name, .. } = adapter;
            json!({"name": name, "path": path, "base_model_name": base_model_name})
        };
        let text = Value::Array(adapters.iter().map(adapter).collect()).to_string();
        // A scheduler that is killed meanwhile leaves the old file or the new one.
        let new = file.with_extension("new");
        if let Err(error) = fs::write(&new, text).and_then(|()| fs::rename(&new, file)) {
            warn!(file = %file.display(), %error, "the adapters that are served were not written down");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let dir = tempfile::tempdir().expect("a folder");
        let kept = KeptAdapters::new(Some(dir.path().join("adapters.json")));
        assert_eq!(kept.read(), None);
        let adapter = |name: &str| ServedAdapter { name: name.into(), path: "/a \"b\"".into(), ..Default::default() };
        for adapters in [vec![adapter("x"), adapter("y")], vec![]] {
            kept.write(&adapters);
            assert_eq!(kept.read(), Some(adapters));
        }
        fs::write(dir.path().join("adapters.json"), "{").expect("a file");
        assert_eq!(kept.read(), None);
        assert_eq!(KeptAdapters::new(None).read(), None);
    }
}
