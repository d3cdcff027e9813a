//! Git LFS pointers: small text files that stand where a large file should be.

use std::{fs::File, io::Read, path::Path};

/// How a pointer begins (the Git LFS specification, version 1).
const BEGINNING: &[u8] = b"version https://git-lfs.github.com/spec/v1";

/// Whether the file is a Git LFS pointer. A file that cannot be read is none.
pub fn is_lfs_pointer(file: &Path) -> bool {
    let mut beginning = [0; BEGINNING.len()];
    File::open(file).and_then(|mut file| file.read_exact(&mut beginning)).is_ok() && beginning == BEGINNING
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_are_recognised() {
        let dir = tempfile::tempdir().unwrap();
        let check = |text: &str, expected| {
            let file = dir.path().join("model.safetensors");
            std::fs::write(&file, text).unwrap();
            assert_eq!(is_lfs_pointer(&file), expected, "{text}");
        };
        check("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", true);
        check("version https://git-lfs", false);
        check("", false);
        assert!(!is_lfs_pointer(&dir.path().join("nowhere")));
    }
}
