//! The kernels' sources, embedded in the binary.

use super::special::Special;

/// One file of `kernels/cuda`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    /// Name without extension: the operation.
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
    /// What it is compiled for, if that is one type and shape.
    pub(crate) special: Option<Special>,
}

impl Source {
    /// The source of a kernel that is compiled for a shape.
    pub(crate) fn of(special: Special) -> Self {
        let found = SPECIAL.iter().find(|source| source.name == special.file);
        Self { special: Some(special), ..*found.expect("a file in the list of sources") }
    }
}

macro_rules! sources {
    ($($name:literal)*) => {
        &[$(Source { name: $name, text: include_str!(concat!("../", $name, ".cu")), special: None }),*]
    };
}

/// Every kernel file that is compiled as it is, sorted.
pub(crate) const KERNELS: &[Source] = sources! {
    "activate"
    "add"
    "add_positions"
    "attention"
    "cast"
    "causal_conv"
    "choose"
    "choose_cut"
    "choose_row"
    "choose_set"
    "clamp"
    "combine"
    "copy_columns"
    "delta_rule"
    "embed"
    "expert_matmul"
    "gate"
    "gate_rows"
    "gated"
    "gather"
    "head_matmul"
    "matmul"
    "noise"
    "norm"
    "place"
    "ranks"
    "rope_and_cache"
    "route"
    "rows_alone"
    "scale"
    "selective_scan"
    "soft_cap"
};

/// Those that are compiled for one type and shape at a time, sorted.
pub(crate) const SPECIAL: &[Source] = sources! {
    "attention_decode"
    "attention_prefill"
    "attention_prefill_hopper"
    "expert_matmul_few"
    "expert_matmul_hopper"
    "matmul_few"
    "matmul_few_gated"
    "matmul_hopper"
    "matmul_parts"
    "whole_step"
};

/// What they include: name and text.
pub(crate) const HEADERS: &[(&str, &str)] = &[
    ("activation.cuh", include_str!("../activation.cuh")),
    ("cached.cuh", include_str!("../cached.cuh")),
    ("choose.cuh", include_str!("../choose.cuh")),
    ("choose_rank.cuh", include_str!("../choose_rank.cuh")),
    ("decode.cuh", include_str!("../decode.cuh")),
    ("decode_parts.cuh", include_str!("../decode_parts.cuh")),
    ("experts.cuh", include_str!("../experts.cuh")),
    ("few.cuh", include_str!("../few.cuh")),
    ("gated_product.cuh", include_str!("../gated_product.cuh")),
    ("hopper.cuh", include_str!("../hopper.cuh")),
    ("hopper_rows.cuh", include_str!("../hopper_rows.cuh")),
    ("mma.cuh", include_str!("../mma.cuh")),
    ("ordered.cuh", include_str!("../ordered.cuh")),
    ("prefill.cuh", include_str!("../prefill.cuh")),
    ("prefill_block.cuh", include_str!("../prefill_block.cuh")),
    ("prefill_feed.cuh", include_str!("../prefill_feed.cuh")),
    ("prefill_feed_narrow.cuh", include_str!("../prefill_feed_narrow.cuh")),
    ("prefill_scores.cuh", include_str!("../prefill_scores.cuh")),
    ("product.cuh", include_str!("../product.cuh")),
    ("quire.cuh", include_str!("../quire.cuh")),
    ("ring.cuh", include_str!("../ring.cuh")),
    ("recurrent.cuh", include_str!("../recurrent.cuh")),
    ("split_norm.cuh", include_str!("../split_norm.cuh")),
    ("step.cuh", include_str!("../step.cuh")),
    ("step_attention.cuh", include_str!("../step_attention.cuh")),
    ("step_product.cuh", include_str!("../step_product.cuh")),
    ("stream.cuh", include_str!("../stream.cuh")),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_folder_is_listed_in_order() {
        let folder = env!("CARGO_MANIFEST_DIR");
        let mut names: Vec<String> = std::fs::read_dir(folder)
            .expect("kernels/cuda")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("a plain name"))
            .filter(|name| name.ends_with(".cu") || name.ends_with(".cuh"))
            .collect();
        names.sort();
        let file = |source: &Source| format!("{}.cu", source.name);
        let mut listed: Vec<String> = KERNELS.iter().map(file).collect();
        assert!(listed.is_sorted());
        listed.extend(SPECIAL.iter().map(file));
        listed.extend(HEADERS.iter().map(|(name, _)| (*name).to_owned()));
        listed.sort();
        assert_eq!(listed, names);
    }
}
