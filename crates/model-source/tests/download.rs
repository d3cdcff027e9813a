//! Downloads from a fake hub: layout, resumption, refusals.

mod fake_hub;

use std::{collections::BTreeMap, fs, path::Path, sync::Once};

use fake_hub::{Behaviour, COMMIT, FakeHub};
use model_source::{Event, Need, Options, Origin, Progress, Quiet, SourceError, resolve};

const ID: &str = "owner/name";

fn files() -> BTreeMap<&'static str, Vec<u8>> {
    let index = r#"{"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}"#;
    BTreeMap::from([
        ("README.md", b"not needed".to_vec()),
        ("config.json", b"{}".to_vec()),
        ("consolidated.safetensors", vec![9; 100]),
        ("m-1.safetensors", (0..200_000u32).map(|i| i as u8).collect()),
        ("m-2.safetensors", vec![7; 1000]),
        ("model.safetensors.index.json", index.as_bytes().to_vec()),
        ("tokenizer.json", b"{\"model\": 1}".to_vec()),
    ])
}

fn options(cache: &Path, endpoint: &str) -> Options {
    static PROVIDER: Once = Once::new();
    PROVIDER.call_once(|| rustls::crypto::ring::default_provider().install_default().unwrap());
    Options {
        revision: "main".to_owned(),
        hub_cache: cache.join("hub"),
        endpoint: endpoint.to_owned(),
        token: None,
        offline: false,
        quire_cache: cache.join("quire"),
        check: None,
    }
}

#[tokio::test]
async fn downloads_what_is_needed_in_the_hubs_layout() {
    let cache = tempfile::tempdir().unwrap();
    let hub = FakeHub::start(files(), Behaviour::default());
    let options = options(cache.path(), &hub.endpoint);
    let model = resolve(Some(ID), Need::Everything, &options, &Quiet).await.unwrap();
    assert_eq!((model.origin, model.name.as_str()), (Origin::Downloaded, ID));
    let folder = cache.path().join("hub/models--owner--name");
    assert_eq!(model.path, folder.join("snapshots").join(COMMIT));
    assert_eq!(fs::read_to_string(folder.join("refs/main")).unwrap(), COMMIT);
    let mut names: Vec<_> = fs::read_dir(&model.path).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    let expected =
        ["config.json", "m-1.safetensors", "m-2.safetensors", "model.safetensors.index.json", "tokenizer.json"];
    assert_eq!(names, expected);
    for name in expected {
        assert_eq!(fs::read(model.path.join(name)).unwrap(), files()[name], "{name}");
        assert!(fs::read_link(model.path.join(name)).unwrap().starts_with("../../blobs"), "{name}");
    }
    let requests = hub.requests.lock().unwrap().len();
    let again = resolve(Some(ID), Need::Everything, &options, &Quiet).await.unwrap();
    assert_eq!((again.origin, again.path), (Origin::Cache, model.path));
    assert_eq!(hub.requests.lock().unwrap().len(), requests, "the cache is complete: nobody is asked");
}

#[tokio::test]
async fn weights_are_left_out_when_not_needed() {
    let cache = tempfile::tempdir().unwrap();
    let hub = FakeHub::start(files(), Behaviour::default());
    let options = options(cache.path(), &hub.endpoint);
    let model = resolve(Some(ID), Need::NoWeights, &options, &Quiet).await.unwrap();
    assert!(!model.path.join("m-1.safetensors").exists());
    assert!(model.path.join("tokenizer.json").exists());
    let whole = resolve(Some(ID), Need::Everything, &options, &Quiet).await.unwrap();
    assert_eq!(whole.origin, Origin::Downloaded, "a snapshot without weights is not complete");
}

#[tokio::test]
async fn what_is_not_served_is_refused_before_its_weights_are_asked_for() {
    let cache = tempfile::tempdir().unwrap();
    let hub = FakeHub::start(files(), Behaviour::default());
    let check = |folder: &Path| {
        let config = fs::read_to_string(folder.join("config.json")).map_err(|error| error.to_string())?;
        Err(format!("its config is {config}"))
    };
    let options = Options { check: Some(check), ..options(cache.path(), &hub.endpoint) };
    let error = resolve(Some(ID), Need::Everything, &options, &Quiet).await.unwrap_err().to_string();
    assert!(error.contains("`owner/name` cannot be served") && error.contains("its config is {}"), "{error}");
    let asked = hub.requests.lock().unwrap().join(" ");
    assert!(asked.contains("config.json") && !asked.contains(".safetensors"), "{asked}");
    let tokenizer = resolve(Some(ID), Need::Tokenizer, &options, &Quiet).await;
    assert!(tokenizer.is_ok(), "another model's tokenizer may be used");
}

#[tokio::test]
async fn an_adapter_is_its_configuration_and_weights() {
    let config = || ("adapter_config.json", b"{}".to_vec());
    let others = || [("README.md", b"r".to_vec()), ("tokenizer.json", b"{}".to_vec())];
    for weights in ["adapter_model.safetensors", "adapter_model.bin"] {
        let cache = tempfile::tempdir().unwrap();
        let files = BTreeMap::from_iter([config(), (weights, vec![3; 500])].into_iter().chain(others()));
        let hub = FakeHub::start(files, Behaviour::default());
        let options = options(cache.path(), &hub.endpoint);
        let adapter = resolve(Some(ID), Need::Adapter, &options, &Quiet).await.unwrap();
        let mut names: Vec<_> = fs::read_dir(&adapter.path).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["adapter_config.json", weights]);
        let offline = Options { offline: true, ..options };
        let again = resolve(Some(ID), Need::Adapter, &offline, &Quiet).await.unwrap();
        assert_eq!((again.origin, again.path), (Origin::Cache, adapter.path));
    }
    let cache = tempfile::tempdir().unwrap();
    let hub = FakeHub::start(BTreeMap::from([config()]), Behaviour::default());
    let error = resolve(Some(ID), Need::Adapter, &options(cache.path(), &hub.endpoint), &Quiet).await.unwrap_err();
    assert!(error.to_string().contains("adapter_model.safetensors or adapter_model.bin is missing"), "{error}");
}

/// Adds up what a progress bar would show.
#[derive(Default)]
struct Sum(std::sync::Mutex<(u64, u64)>);

impl Progress for Sum {
    fn event(&self, event: Event<'_>) {
        let mut sum = self.0.lock().unwrap();
        match event {
            Event::Begin { total_bytes, have_bytes, .. } => {
                sum.0 += total_bytes;
                sum.1 += have_bytes;
            }
            Event::Advance { bytes, .. } => sum.1 += bytes,
            Event::Done { .. } => {}
        }
    }
}

#[tokio::test]
async fn a_broken_transfer_goes_on_where_it_broke() {
    let cache = tempfile::tempdir().unwrap();
    let hub = FakeHub::start(files(), Behaviour { breaks: 3, ..Behaviour::default() });
    let progress = Sum::default();
    let options = options(cache.path(), &hub.endpoint);
    let model = resolve(Some(ID), Need::Everything, &options, &progress).await.unwrap();
    assert_eq!(fs::read(model.path.join("m-1.safetensors")).unwrap(), files()["m-1.safetensors"]);
    assert!(hub.seen(" from ") >= 1, "ranges were asked for");
    let (total, seen) = *progress.0.lock().unwrap();
    assert_eq!(total, seen);
}

#[tokio::test]
async fn an_interrupted_download_is_taken_up_again() {
    let cache = tempfile::tempdir().unwrap();
    let hub = FakeHub::start(files(), Behaviour::default());
    let options = options(cache.path(), &hub.endpoint);
    let whole = resolve(Some(ID), Need::Everything, &options, &Quiet).await.unwrap();
    let blob = fs::canonicalize(whole.path.join("m-1.safetensors")).unwrap();
    let content = fs::read(&blob).unwrap();
    fs::remove_file(&blob).unwrap();
    fs::write(format!("{}.incomplete", blob.display()), &content[..150_000]).unwrap();
    resolve(Some(ID), Need::Everything, &options, &Quiet).await.unwrap();
    assert_eq!(fs::read(&blob).unwrap(), content);
    assert_eq!(hub.seen("m-1.safetensors from 150000"), 2, "the hub and the storage were asked for the rest");
}

#[tokio::test]
async fn damaged_weights_are_refused_and_removed() {
    let cache = tempfile::tempdir().unwrap();
    let hub = FakeHub::start(files(), Behaviour { damage: true, ..Behaviour::default() });
    let options = options(cache.path(), &hub.endpoint);
    let error = resolve(Some(ID), Need::Everything, &options, &Quiet).await.unwrap_err();
    assert!(matches!(error, SourceError::Damaged { what: "SHA-256", .. }), "{error}");
    assert!(!cache.path().join("hub/models--owner--name/refs/main").exists());
}

#[tokio::test]
async fn two_downloads_at_once_share_the_work() {
    let cache = tempfile::tempdir().unwrap();
    let hub = FakeHub::start(files(), Behaviour::default());
    let options = options(cache.path(), &hub.endpoint);
    let one = || resolve(Some(ID), Need::Everything, &options, &Quiet);
    let (a, b) = tokio::join!(one(), one());
    assert_eq!(a.unwrap().path, b.unwrap().path);
    assert_eq!(hub.seen("GET /storage/m-1"), 1);
}

#[tokio::test]
async fn gated_models_say_how_to_give_a_token() {
    let cache = tempfile::tempdir().unwrap();
    let hub = FakeHub::start(files(), Behaviour { token: Some("secret"), ..Behaviour::default() });
    let mut options = options(cache.path(), &hub.endpoint);
    let error = resolve(Some(ID), Need::Everything, &options, &Quiet).await.unwrap_err();
    assert!(matches!(error, SourceError::Gated { .. }), "{error}");
    assert!(error.to_string().contains("--hf-token"), "{error}");
    options.token = Some("wrong".to_owned());
    let error = resolve(Some(ID), Need::Everything, &options, &Quiet).await.unwrap_err();
    assert!(error.to_string().contains("access is granted"), "{error}");
    options.token = Some("secret".to_owned());
    resolve(Some(ID), Need::Everything, &options, &Quiet).await.unwrap();
}

#[tokio::test]
async fn every_refusal_is_told_apart() {
    let cache = tempfile::tempdir().unwrap();
    let hub = FakeHub::start(files(), Behaviour::default());
    let options = options(cache.path(), &hub.endpoint);
    let get = async |model: &str, options: &Options| {
        resolve(Some(model), Need::Everything, options, &Quiet).await.unwrap_err().to_string()
    };
    assert!(get("owner/other", &options).await.contains("was not found"));
    assert!(get("./owner/name", &options).await.contains("no model folder"));
    assert!(get("model.gguf", &options).await.contains("no GGUF file at `model.gguf`"));
    assert!(get("owner/name:", &options).await.contains("neither a folder nor"));
    assert!(get("owner name", &options).await.contains("neither a folder nor"));
    assert!(get(cache.path().to_str().unwrap(), &options).await.contains("config.json is missing"));
    let tag = Options { revision: "v9".to_owned(), ..options.clone() };
    assert!(get(ID, &tag).await.contains("no revision `v9`"));
    let offline = Options { offline: true, ..options.clone() };
    assert!(get(ID, &offline).await.contains("HF_HUB_OFFLINE"));
    let nowhere = Options { endpoint: "http://127.0.0.1:1".to_owned(), ..options.clone() };
    assert!(get(ID, &nowhere).await.contains("cannot reach http://127.0.0.1:1"));
    for (name, word) in
        [("flax_model.msgpack", "no weights that can be read"), ("adapter_config.json", "only a LoRA adapter")]
    {
        let hub = FakeHub::start(
            BTreeMap::from([("config.json", b"{}".to_vec()), (name, b"x".to_vec())]),
            Behaviour::default(),
        );
        assert!(get(ID, &Options { endpoint: hub.endpoint.clone(), ..options.clone() }).await.contains(word), "{name}");
    }
}

/// What a repository's files lead to: the names in the snapshot, and the path that stands for the model inside it.
async fn fetched(files: &[(&'static str, &str)], model: &str) -> Result<(Vec<String>, String), SourceError> {
    let cache = tempfile::tempdir().unwrap();
    let files = files.iter().map(|(name, text)| (*name, text.as_bytes().to_vec())).collect();
    let hub = FakeHub::start(files, Behaviour::default());
    let options = options(cache.path(), &hub.endpoint);
    let model_name = model;
    let model = resolve(Some(model), Need::Everything, &options, &Quiet).await?;
    let again = resolve(Some(model_name), Need::Everything, &options, &Quiet).await?;
    assert_eq!((again.origin, &again.path), (Origin::Cache, &model.path));
    let snapshot = cache.path().join("hub/models--owner--name/snapshots").join(COMMIT);
    let mut names: Vec<_> =
        fs::read_dir(&snapshot).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    Ok((names, model.path.strip_prefix(&snapshot).unwrap().to_str().unwrap().to_owned()))
}

#[tokio::test]
async fn every_format_is_fetched_once() {
    let index = r#"{"weight_map": {"a": "pytorch_model-1-of-2.bin", "b": "pytorch_model-2-of-2.bin"}}"#;
    let bins = [
        ("config.json", "{}"),
        ("consolidated.00.pth", "x"),
        ("pytorch_model-1-of-2.bin", "one"),
        ("pytorch_model-2-of-2.bin", "and two"),
        ("pytorch_model.bin.index.json", index),
        ("tokenizer.model", "a model"),
    ];
    let (names, path) = fetched(&bins, ID).await.unwrap();
    let expected = bins.iter().map(|(name, _)| *name).filter(|name| !name.ends_with(".pth"));
    assert_eq!((names, path.as_str()), (expected.map(str::to_owned).collect(), ""));
    let both = [bins[0], ("model.safetensors", "weights"), ("pytorch_model.bin", "again"), ("qwen.tiktoken", "tokens")];
    let (names, _) = fetched(&both, ID).await.unwrap();
    assert_eq!(names, ["config.json", "model.safetensors", "qwen.tiktoken"]);
}

#[tokio::test]
async fn one_of_several_gguf_files_is_chosen() {
    let files =
        [("README.md", "x"), ("m-Q4_K_M.gguf", "four bits"), ("m-Q8_0.gguf", "eight"), ("mmproj-m.gguf", "images")];
    let error = fetched(&files, ID).await.unwrap_err().to_string();
    assert!(error.contains("m-Q4_K_M.gguf, m-Q8_0.gguf") && error.contains("owner/name:"), "{error}");
    let found = fetched(&files, "owner/name:q8_0").await.unwrap();
    assert_eq!(found, (vec!["m-Q8_0.gguf".to_owned()], "m-Q8_0.gguf".to_owned()));
    let error = fetched(&files, "owner/name:Q6_K").await.unwrap_err().to_string();
    assert!(error.contains("`Q6_K`") && error.contains("m-Q8_0.gguf"), "{error}");
    let (names, path) = fetched(&files[..2], ID).await.unwrap();
    assert_eq!((names, path.as_str()), (vec!["m-Q4_K_M.gguf".to_owned()], ""));
}

#[tokio::test]
async fn no_model_is_the_one_that_ships() {
    let cache = tempfile::tempdir().unwrap();
    let options = options(cache.path(), "http://127.0.0.1:1");
    let model = resolve(None, Need::Everything, &options, &Quiet).await.unwrap();
    assert_eq!((model.origin, model.name.as_str()), (Origin::BuiltIn, "wren"));
    assert!(model.path.starts_with(cache.path().join("quire")));
    let folder = resolve(model.path.to_str(), Need::Everything, &options, &Quiet).await.unwrap();
    assert_eq!(folder.origin, Origin::Folder);
}

#[tokio::test]
async fn modules_of_sentence_transformers_come_along() {
    let cache = tempfile::tempdir().unwrap();
    let mut files = files();
    for name in ["1_Pooling/config.json", "2_Dense/model.safetensors", "3_Dense/pytorch_model.bin", "modules.json"] {
        files.insert(name, name.as_bytes().to_vec());
    }
    for name in ["2_Dense/pytorch_model.bin", "onnx/model.onnx", "../4_Dense/model.safetensors", "4_../x/config.json"] {
        files.insert(name, b"not needed".to_vec());
    }
    let hub = FakeHub::start(files.clone(), Behaviour::default());
    let options = options(cache.path(), &hub.endpoint);
    let model = resolve(Some(ID), Need::Everything, &options, &Quiet).await.unwrap();
    for name in ["1_Pooling/config.json", "2_Dense/model.safetensors", "3_Dense/pytorch_model.bin", "modules.json"] {
        assert_eq!(fs::read(model.path.join(name)).unwrap(), files[name], "{name}");
    }
    for name in ["2_Dense/pytorch_model.bin", "onnx", "4_.."] {
        assert!(!model.path.join(name).exists(), "{name}");
    }
}
