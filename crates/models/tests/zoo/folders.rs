//! Where the reference models lie.

use std::path::{Path, PathBuf};
use std::sync::Once;

/// The folder of a reference model; says once which collection is in use. The fixtures are a selection: what they lack
/// is not checked, which is said too.
pub fn zoo(name: &str) -> Option<PathBuf> {
    static SAY: Once = Once::new();
    let repository = repository();
    let (what, zoo) = match std::env::var_os("QUIRE_ZOO") {
        Some(folder) => ("QUIRE_ZOO", PathBuf::from(folder)),
        None if repository.join("../shared/zoo/README.md").exists() => {
            ("../shared/zoo", repository.join("../shared/zoo"))
        }
        None => ("the fixtures", repository.join("tests/fixtures/zoo")),
    };
    SAY.call_once(|| eprintln!("reference models from {what}: {}", zoo.display()));
    let folder = zoo.join(name);
    // What no collection holds was made for this repository.
    let made = repository.join("tests/fixtures/made").join(name);
    if made.exists() {
        return Some(made);
    }
    if what == "the fixtures" && !folder.exists() {
        eprintln!("not checked, for it is not among the fixtures: {name}");
        return None;
    }
    Some(folder)
}

/// A folder of the model that ships.
pub fn shipped(name: &str) -> PathBuf {
    repository().join("crates/default-model/files").join(name)
}

/// The root of the repository.
pub fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("this crate lies two folders down").to_owned()
}
