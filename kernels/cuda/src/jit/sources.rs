//! The kernels' sources, embedded in the binary.

use std::hash::{Hash, Hasher};

use crate::jit::layouts;
use crate::jit::specialization::Special;

/// One file of `kernels/cuda`. Its name and what it is compiled for tell it from all others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    /// Name without extension: the operation.
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
    /// What it is compiled for, if that is one type and shape.
    pub(crate) special: Option<Special>,
}

/// Files that take the longest to compile, these first: 1 to 3 s of a core, where most others take a few tenths. What
/// is begun first ends while the short ones are compiled.
const LONG: [&str; 14] = [
    "rope_and_cache_narrow",
    "expert_lora",
    "lora",
    "delta_rule",
    "sample_cut",
    "add_norm",
    "norm",
    "attention",
    "rope_and_cache",
    "saved",
    "sample",
    "causal_conv",
    "prepare_input",
    "expert_matmul",
];

/// Files that most starts run without, and that take long: they are compiled last, and only who needs one waits for it.
const SELDOM: [&str; 4] = ["attention", "matmul", "norm_add_norm", "two_norms"];

impl PartialEq for Source {
    fn eq(&self, other: &Self) -> bool {
        (self.name, self.special) == (other.name, other.special)
    }
}

impl Eq for Source {}

impl Hash for Source {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.name, self.special).hash(state);
    }
}

/// What a model has that kernels of a start without it are not for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Need {
    Adapters,
    Experts,
    LatentAttention,
    NarrowCache,
    PackedWeights,
    Ranks,
    RecurrentStates,
}

impl Need {
    const ALL: [Self; 7] = [
        Self::Adapters,
        Self::Experts,
        Self::LatentAttention,
        Self::NarrowCache,
        Self::PackedWeights,
        Self::Ranks,
        Self::RecurrentStates,
    ];

    /// The files, the longest first.
    const fn files(self) -> &'static [&'static str] {
        match self {
            Self::Adapters => &["expert_lora", "lora", "saved"],
            Self::Experts => &["expert_matmul", "expert_matmul_packed_plain", "route", "combine"],
            Self::LatentAttention => &["latent_expand", "head_matmul"],
            Self::NarrowCache => &["rope_and_cache_narrow"],
            Self::PackedWeights => &["prepare_input", "matmul_packed_plain", "unpack"],
            Self::Ranks => &["ranks"],
            Self::RecurrentStates => &["delta_rule", "causal_conv", "gated_norm", "selective_scan"],
        }
    }

    pub(crate) fn sources(self) -> impl Iterator<Item = Source> {
        self.files().iter().filter_map(|name| Source::as_it_is(name))
    }
}

/// What every start has from the beginning.
pub(crate) fn first() -> Vec<Source> {
    let later = |source: &Source| Need::ALL.iter().any(|need| need.files().contains(&source.name));
    KERNELS.iter().copied().filter(|source| !later(source)).collect()
}

impl Source {
    /// A file that is compiled as it is.
    pub(crate) fn as_it_is(name: &str) -> Option<Self> {
        KERNELS.iter().find(|source| source.name == name).copied()
    }

    /// For people: the file, and the macros it is compiled with.
    pub(crate) fn title(&self) -> String {
        let options = self.special.map(|special| special.options()).unwrap_or_default();
        std::iter::once(self.name.to_owned()).chain(options).collect::<Vec<_>>().join(" ")
    }

    /// Whether most starts run without it.
    pub(crate) fn is_seldom(&self) -> bool {
        SELDOM.contains(&self.name)
    }

    /// When it is compiled, of several: as a key to sort by.
    pub(crate) fn turn(&self) -> usize {
        LONG.iter().position(|name| *name == self.name).unwrap_or(LONG.len())
    }

    /// The source of a kernel that is compiled for a shape.
    pub(crate) fn of(special: Special) -> Self {
        let found = SPECIAL.iter().find(|source| source.name == special.file);
        Self { special: Some(special), ..*found.expect("a file in the list of sources") }
    }
}

macro_rules! sources {
    ($($name:literal in $room:literal)*) => {
        &[$(Source {
            name: $name,
            text: include_str!(concat!("../../csrc/", $room, "/", $name, ".cu")),
            special: None,
        }),*]
    };
}

/// Every kernel file that is compiled as it is, sorted.
pub(crate) const KERNELS: &[Source] = sources! {
    "activate" in "layers"
    "add" in "layers"
    "add_norm" in "fusion"
    "add_positions" in "layers"
    "attention" in "attention"
    "cast" in "runtime"
    "causal_conv" in "recurrent"
    "clamp" in "layers"
    "combine" in "moe"
    "copy_columns" in "layers"
    "delta_rule" in "recurrent"
    "embed" in "layers"
    "expert_lora" in "moe"
    "expert_matmul" in "moe"
    "expert_matmul_packed_plain" in "moe"
    "gate" in "layers"
    "gate_rows" in "layers"
    "gated" in "layers"
    "gated_norm" in "layers"
    "gather" in "layers"
    "head_matmul" in "latent"
    "latent_expand" in "latent"
    "lora" in "layers"
    "matmul" in "gemm"
    "matmul_packed_plain" in "gemm"
    "noise" in "weights"
    "norm" in "layers"
    "norm_add_norm" in "fusion"
    "pack" in "weights"
    "place" in "runtime"
    "prepare_input" in "gemm"
    "ranks" in "comm"
    "rope_and_cache" in "attention"
    "rope_and_cache_narrow" in "attention"
    "route" in "moe"
    "rows_alone" in "runtime"
    "sample" in "sampling"
    "sample_cut" in "sampling"
    "sample_masks" in "sampling"
    "sample_params" in "sampling"
    "sample_row" in "sampling"
    "saved" in "layers"
    "scale" in "layers"
    "selective_scan" in "recurrent"
    "soft_cap" in "layers"
    "two_norms" in "fusion"
    "unpack" in "weights"
};

/// Those that are compiled for one type and shape at a time, sorted.
pub(crate) const SPECIAL: &[Source] = sources! {
    "attention_cascade" in "attention"
    "attention_decode" in "decode"
    "attention_decode_mqa" in "decode"
    "attention_expanded" in "latent"
    "attention_latent" in "latent"
    "attention_latent_merge" in "latent"
    "attention_latent_mma" in "latent"
    "attention_prefill" in "attention"
    "attention_prefill_hopper" in "attention"
    "delta_rule_inter" in "recurrent"
    "delta_rule_intra" in "recurrent"
    "delta_rule_step" in "recurrent"
    "expert_matmul_codes_wgmma" in "moe"
    "expert_matmul_packed" in "moe"
    "expert_matmul_packed_many" in "moe"
    "expert_matmul_packed_wgmma" in "moe"
    "expert_matmul_skinny" in "moe"
    "expert_matmul_wgmma" in "moe"
    "head_matmul_mma" in "latent"
    "lora_expand" in "layers"
    "lora_gate" in "layers"
    "lora_shrink" in "layers"
    "matmul_codes" in "gemm"
    "matmul_packed" in "gemm"
    "matmul_packed_wgmma" in "gemm"
    "matmul_skinny" in "gemm"
    "matmul_skinny_gated" in "gemm"
    "matmul_split_k" in "gemm"
    "matmul_wgmma" in "gemm"
    "norm_prepared" in "layers"
    "ranks_sum" in "comm"
    "ranks_sum_add_norm" in "comm"
    "selective_scan_chunks" in "recurrent"
    "selective_scan_step" in "recurrent"
    "whole_step" in "whole_step"
};

/// What they include: name and text.
pub(crate) fn headers() -> impl Iterator<Item = (&'static str, &'static str)> {
    HEADERS.iter().copied().chain([(layouts::NAME, layouts::header())])
}

/// Headers that are files.
const HEADERS: &[(&str, &str)] = &[
    ("activation.cuh", include_str!("../../csrc/include/activation.cuh")),
    ("add_norm_row.cuh", include_str!("../../csrc/comm/add_norm_row.cuh")),
    ("after_sum.cuh", include_str!("../../csrc/comm/after_sum.cuh")),
    ("adapter_dots.cuh", include_str!("../../csrc/include/adapter_dots.cuh")),
    ("adapter_rows.cuh", include_str!("../../csrc/include/adapter_rows.cuh")),
    ("adapter_sums.cuh", include_str!("../../csrc/include/adapter_sums.cuh")),
    ("cached.cuh", include_str!("../../csrc/attention/cached.cuh")),
    ("cascade.cuh", include_str!("../../csrc/attention/cascade.cuh")),
    ("decode.cuh", include_str!("../../csrc/decode/decode.cuh")),
    ("decode_exchange.cuh", include_str!("../../csrc/decode/decode_exchange.cuh")),
    ("decode_heads.cuh", include_str!("../../csrc/decode/decode_heads.cuh")),
    ("decode_parts.cuh", include_str!("../../csrc/decode/decode_parts.cuh")),
    ("delta_chunks.cuh", include_str!("../../csrc/recurrent/delta_chunks.cuh")),
    ("delta_rule.cuh", include_str!("../../csrc/recurrent/delta_rule.cuh")),
    ("exchange.cuh", include_str!("../../csrc/comm/exchange.cuh")),
    ("expanded.cuh", include_str!("../../csrc/latent/expanded.cuh")),
    ("expanded_feed.cuh", include_str!("../../csrc/latent/expanded_feed.cuh")),
    ("expert_tiles.cuh", include_str!("../../csrc/moe/expert_tiles.cuh")),
    ("experts.cuh", include_str!("../../csrc/moe/experts.cuh")),
    ("packed_parts.cuh", include_str!("../../csrc/moe/packed_parts.cuh")),
    ("gate_deltas.cuh", include_str!("../../csrc/gemm/gate_deltas.cuh")),
    ("head_columns.cuh", include_str!("../../csrc/include/head_columns.cuh")),
    ("hopper.cuh", include_str!("../../csrc/include/hopper.cuh")),
    ("hopper_codes.cuh", include_str!("../../csrc/include/hopper_codes.cuh")),
    ("hopper_gemm.cuh", include_str!("../../csrc/gemm/hopper_gemm.cuh")),
    ("hopper_registers.cuh", include_str!("../../csrc/include/hopper_registers.cuh")),
    ("hopper_rows.cuh", include_str!("../../csrc/include/hopper_rows.cuh")),
    ("hopper_values.cuh", include_str!("../../csrc/attention/hopper_values.cuh")),
    ("latent_block.cuh", include_str!("../../csrc/latent/latent_block.cuh")),
    ("latent_list.cuh", include_str!("../../csrc/latent/latent_list.cuh")),
    ("latent_parts.cuh", include_str!("../../csrc/latent/latent_parts.cuh")),
    ("latent_rows.cuh", include_str!("../../csrc/latent/latent_rows.cuh")),
    ("mma.cuh", include_str!("../../csrc/include/mma.cuh")),
    ("mma_rows.cuh", include_str!("../../csrc/attention/mma_rows.cuh")),
    ("norm.cuh", include_str!("../../csrc/include/norm.cuh")),
    ("one_shot.cuh", include_str!("../../csrc/comm/one_shot.cuh")),
    ("ordered.cuh", include_str!("../../csrc/include/ordered.cuh")),
    ("packed.cuh", include_str!("../../csrc/gemm/packed.cuh")),
    ("packed_product.cuh", include_str!("../../csrc/gemm/packed_product.cuh")),
    ("packed_skinny.cuh", include_str!("../../csrc/gemm/packed_skinny.cuh")),
    ("packed_stream.cuh", include_str!("../../csrc/gemm/packed_stream.cuh")),
    ("packed_wgmma.cuh", include_str!("../../csrc/gemm/packed_wgmma.cuh")),
    ("packets.cuh", include_str!("../../csrc/comm/packets.cuh")),
    ("prefill.cuh", include_str!("../../csrc/attention/prefill.cuh")),
    ("prefill_block.cuh", include_str!("../../csrc/attention/prefill_block.cuh")),
    ("prefill_feed.cuh", include_str!("../../csrc/attention/prefill_feed.cuh")),
    ("prefill_feed_narrow.cuh", include_str!("../../csrc/attention/prefill_feed_narrow.cuh")),
    ("prefill_rows.cuh", include_str!("../../csrc/attention/prefill_rows.cuh")),
    ("prefill_scores.cuh", include_str!("../../csrc/attention/prefill_scores.cuh")),
    ("prepared.cuh", include_str!("../../csrc/gemm/prepared.cuh")),
    ("quire.cuh", include_str!("../../csrc/include/quire.cuh")),
    ("recurrent.cuh", include_str!("../../csrc/recurrent/recurrent.cuh")),
    ("ring.cuh", include_str!("../../csrc/decode/ring.cuh")),
    ("rope.cuh", include_str!("../../csrc/include/rope.cuh")),
    ("sample.cuh", include_str!("../../csrc/sampling/sample.cuh")),
    ("sample_rank.cuh", include_str!("../../csrc/sampling/sample_rank.cuh")),
    ("scan.cuh", include_str!("../../csrc/recurrent/scan.cuh")),
    ("simt_tile.cuh", include_str!("../../csrc/gemm/simt_tile.cuh")),
    ("skinny.cuh", include_str!("../../csrc/gemm/skinny.cuh")),
    ("split_norm.cuh", include_str!("../../csrc/fusion/split_norm.cuh")),
    ("state_piece.cuh", include_str!("../../csrc/recurrent/state_piece.cuh")),
    ("step.cuh", include_str!("../../csrc/whole_step/step.cuh")),
    ("step_attention.cuh", include_str!("../../csrc/whole_step/step_attention.cuh")),
    ("step_product.cuh", include_str!("../../csrc/whole_step/step_product.cuh")),
    ("stream.cuh", include_str!("../../csrc/whole_step/stream.cuh")),
    ("tf32.cuh", include_str!("../../csrc/recurrent/tf32.cuh")),
    ("two_shots.cuh", include_str!("../../csrc/comm/two_shots.cuh")),
    ("warp_dots.cuh", include_str!("../../csrc/include/warp_dots.cuh")),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Files of kernels, as "room/file", sorted.
    fn files() -> Vec<String> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/csrc");
        let names = |folder: &std::path::Path| -> Vec<String> {
            let entries = std::fs::read_dir(folder).expect("a folder of csrc").map(|entry| entry.expect("an entry"));
            entries.map(|entry| entry.file_name().into_string().expect("a plain name")).collect()
        };
        let rooms = names(folder.as_ref());
        let of_room = |room: &String| {
            let files = names(format!("{folder}/{room}").as_ref());
            files.into_iter().map(|file| format!("{room}/{file}")).collect::<Vec<_>>()
        };
        let mut found: Vec<String> = rooms.iter().flat_map(of_room).collect();
        found.sort();
        found
    }

    #[test]
    fn what_comes_later_is_files_that_are_compiled_as_they_are() {
        let later: usize = Need::ALL.iter().map(|need| need.sources().count()).sum();
        assert_eq!(later, Need::ALL.iter().map(|need| need.files().len()).sum::<usize>());
        assert_eq!(first().len() + later, KERNELS.len());
    }

    #[test]
    fn what_starts_do_without_seldom_is_of_the_first() {
        assert_eq!(first().iter().filter(|source| source.is_seldom()).count(), SELDOM.len());
    }

    #[test]
    fn long_ones_come_first() {
        let mut sources = KERNELS.to_vec();
        sources.sort_by_key(Source::turn);
        let first: Vec<&str> = sources[..LONG.len()].iter().map(|source| source.name).collect();
        assert_eq!(first, LONG, "each is a file");
    }

    #[test]
    fn every_file_of_the_rooms_is_listed_in_order() {
        assert!(KERNELS.iter().map(|source| source.name).is_sorted());
        assert!(SPECIAL.iter().map(|source| source.name).is_sorted());
        let kernels = KERNELS.iter().chain(SPECIAL).map(|source| format!("{}.cu", source.name));
        let mut listed: Vec<String> = kernels.chain(HEADERS.iter().map(|(name, _)| (*name).to_owned())).collect();
        listed.sort();
        let mut names: Vec<String> =
            files().iter().map(|path| path.split_once('/').expect("a room").1.to_owned()).collect();
        names.sort();
        assert_eq!(listed, names);
    }
}
