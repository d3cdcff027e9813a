//! Where to look for models and where to get them from. The caller passes the environment in.

use std::path::{Path, PathBuf};

/// Looks at a folder of small files; an error says why the model cannot be served.
pub type Check = fn(&Path) -> Result<(), String>;

/// Where to look for models and where to get them from.
#[derive(Clone, Debug)]
pub struct Options {
    /// Branch, tag or commit.
    pub revision: String,
    /// Folder of the Hugging Face hub cache.
    pub hub_cache: PathBuf,
    /// Base address of the hub, without a trailing slash.
    pub endpoint: String,
    /// Access token for gated and private models.
    pub token: Option<String>,
    /// Never ask the network.
    pub offline: bool,
    /// Quire's own cache; the built-in model is laid out here.
    pub quire_cache: PathBuf,
    /// Looks at a model's small files before its weights are downloaded, and says why they are not worth it.
    pub check: Option<Check>,
}

impl Options {
    /// The options that the environment describes; `variable` looks one up.
    ///
    /// Read: `HF_HUB_CACHE`, `HUGGINGFACE_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME`, `HOME`, `HF_ENDPOINT`, `HF_TOKEN`,
    /// `HUGGING_FACE_HUB_TOKEN`, `HF_TOKEN_PATH`, `HF_HUB_OFFLINE`, `QUIRE_CACHE`; and the token file that the hub's
    /// own login command writes.
    pub fn from_env(variable: impl Fn(&str) -> Option<String>) -> Self {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let home = PathBuf::from(variable("HOME").unwrap_or_else(|| "/".to_owned()));
        let user_cache = variable("XDG_CACHE_HOME").map_or_else(|| home.join(".cache"), PathBuf::from);
        let hf_home = variable("HF_HOME").map_or_else(|| user_cache.join("huggingface"), PathBuf::from);
        let hub_cache = variable("HF_HUB_CACHE").or_else(|| variable("HUGGINGFACE_HUB_CACHE"));
        let token_file = variable("HF_TOKEN_PATH").map_or_else(|| hf_home.join("token"), PathBuf::from);
        let token = variable("HF_TOKEN")
            .or_else(|| variable("HUGGING_FACE_HUB_TOKEN"))
            .or_else(|| std::fs::read_to_string(token_file).ok())
            .map(|token| token.trim().to_owned())
            .filter(|token| !token.is_empty());
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        Self {
            revision: "main".to_owned(),
            hub_cache: hub_cache.map_or_else(|| hf_home.join("hub"), PathBuf::from),
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token,
            offline: variable("HF_HUB_OFFLINE").is_some_and(|value| is_true(&value)),
            check: None,
            quire_cache: variable("QUIRE_CACHE").map_or_else(|| user_cache.join("quire"), PathBuf::from),
        }
    }
}

fn is_true(value: &str) -> bool {
    ["1", "on", "yes", "true"].contains(&value.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(variables: &[(&str, &str)]) -> Options {
        Options::from_env(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    #[test]
    fn folders_follow_the_environment() {
        for (variables, hub, quire) in [
            (&[("HOME", "/h")][..], "/h/.cache/huggingface/hub", "/h/.cache/quire"),
            (&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub", "/x/quire"),
            (&[("HOME", "/h"), ("HF_HOME", "/hf")], "/hf/hub", "/h/.cache/quire"),
            (&[("HOME", "/h"), ("HF_HOME", "/hf"), ("HUGGINGFACE_HUB_CACHE", "/c")], "/c", "/h/.cache/quire"),
            (&[("HOME", "/h"), ("HF_HUB_CACHE", "/c"), ("QUIRE_CACHE", "/q")], "/c", "/q"),
        ] {
            let options = options(variables);
            assert_eq!((options.hub_cache, options.quire_cache), (hub.into(), quire.into()), "{variables:?}");
        }
    }

    #[test]
    fn tokens_come_from_variables_then_the_login_file() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("token"), "from-file\n").unwrap();
        let hf_home = ("HF_HOME", home.path().to_str().unwrap());
        assert_eq!(options(&[hf_home]).token.as_deref(), Some("from-file"));
        assert_eq!(options(&[hf_home, ("HUGGING_FACE_HUB_TOKEN", "old")]).token.as_deref(), Some("old"));
        assert_eq!(options(&[hf_home, ("HF_TOKEN", "new")]).token.as_deref(), Some("new"));
        assert_eq!(options(&[("HOME", "/nowhere")]).token, None);
    }

    #[test]
    fn offline_is_a_truth_value() {
        assert!(options(&[("HF_HUB_OFFLINE", "1")]).offline);
        assert!(options(&[("HF_HUB_OFFLINE", "True")]).offline);
        assert!(!options(&[("HF_HUB_OFFLINE", "0")]).offline);
        assert!(!options(&[]).offline);
    }
}
