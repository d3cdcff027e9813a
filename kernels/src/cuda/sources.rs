//! The kernels' sources, embedded in the binary.

/// One file of `kernels/cuda`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    /// Name without extension: the operation.
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
}

macro_rules! sources {
    ($($name:literal)*) => {
        &[$(Source { name: $name, text: include_str!(concat!("../../cuda/", $name, ".cu")) }),*]
    };
}

/// Every kernel file, sorted.
pub(crate) const KERNELS: &[Source] = sources! {
    "activate"
    "add"
    "attention"
    "cast"
    "embed"
    "gated"
    "gather"
    "matmul"
    "norm"
    "rope_and_cache"
    "scale"
    "soft_cap"
};

/// What they include: name and text.
pub(crate) const HEADERS: &[(&str, &str)] = &[
    ("activation.cuh", include_str!("../../cuda/activation.cuh")),
    ("quire.cuh", include_str!("../../cuda/quire.cuh")),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_folder_is_listed_in_order() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/cuda");
        let mut names: Vec<String> = std::fs::read_dir(folder)
            .expect("kernels/cuda")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("a plain name"))
            .filter(|name| !name.ends_with(".md"))
            .collect();
        names.sort();
        let mut listed: Vec<String> = KERNELS.iter().map(|source| format!("{}.cu", source.name)).collect();
        assert!(listed.is_sorted());
        listed.extend(HEADERS.iter().map(|(name, _)| (*name).to_owned()));
        listed.sort();
        assert_eq!(listed, names);
    }
}
