//! Where the reference tokenizers lie.

use std::{env, path::PathBuf};

/// The folders of the reference tokenizers that can be found: `$QUIRE_ZOO`, else `../shared/zoo` beside the repository,
/// else the copies in `tests/fixtures/zoo`. Says which it was.
pub fn tokenizers() -> Vec<(String, PathBuf)> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let places = [
        env::var_os("QUIRE_ZOO").map(PathBuf::from),
        Some(root.join("../shared/zoo")),
        Some(root.join("tests/fixtures/zoo")),
    ];
    let zoo = places.into_iter().flatten().find(|place| place.join("tokenizer").is_dir());
    let mut found = Vec::new();
    if let Some(zoo) = zoo {
        println!("reference tokenizers: {}", zoo.display());
        for name in ["bpe", "spbpe", "unigram", "wordpiece"] {
            let dir = zoo.join("tokenizer").join(name);
            if dir.is_dir() {
                found.push((name.to_owned(), dir));
            }
        }
    }
    found.extend(default_model().map(|dir| ("default".to_owned(), dir)));
    assert!(!found.is_empty(), "no tokenizer found: set QUIRE_ZOO");
    found
}

/// The folder of the model that ships.
pub fn default_model() -> Option<PathBuf> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    ["crates/default-model/files/model", "../shared/default-model/model"]
        .into_iter()
        .map(|place| root.join(place))
        .find(|dir| dir.join("tokenizer.json").is_file())
}
