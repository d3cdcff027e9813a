//! The environment is read once, where flags are parsed; everything below gets values.

use super::sources::Source;

/// Where the environment may be read.
const ALLOWED: &[&str] = &["config.rs", "environment.rs", "build.rs", "args.rs"];

pub(super) fn check(files: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files {
        let path = file.path.to_string_lossy();
        let name = file.path.file_name().unwrap_or_default().to_string_lossy();
        // Tests, benches and chores are told where things lie by the environment.
        let outside = ["xtask/", "tests/"].iter().any(|folder| path.starts_with(folder))
            || ["/tests/", "/examples/", "/benches/"].iter().any(|folder| path.contains(folder));
        if outside || ALLOWED.contains(&name.as_ref()) {
            continue;
        }
        let production = file.text.split("#[cfg(test)]").next().unwrap_or_default();
        for (number, line) in production.lines().enumerate() {
            if ["env::var(", "env::var_os(", "env::vars("].iter().any(|read| line.contains(read)) {
                found.push(format!("{path}:{}", number + 1));
            }
        }
    }
    found
}
