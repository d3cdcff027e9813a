//! Layouts of the structs that kernels and the host share. Every kernel asserts them when it is compiled.
//!
//! A `#[repr(C)]` struct of the host says with [`twin!`] which members its CUDA twin has; [`header`] turns sizes and
//! offsets into macros of `layouts.cuh`, and the twin's file asserts them with `SAME_LAYOUT`
//! (`csrc/include/quire.cuh`).

use std::fmt::Write;
use std::sync::LazyLock;

use crate::{attention, comm, fusion, gemm, latent, layers, moe, recurrent, runtime, sampling, weights, whole_step};

/// Name that kernels include [`header`] by.
pub(crate) const NAME: &str = "layouts.cuh";

/// Layout of a struct of the host, bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// What kernels call it in `SAME_LAYOUT`.
    pub(crate) name: &'static str,
    pub(crate) size: usize,
    /// Members of the CUDA struct and where they begin.
    pub(crate) members: &'static [(&'static str, usize)],
}

/// A `#[repr(C)]` struct with a twin in CUDA. Implemented by [`twin!`].
pub(crate) trait Twin {
    const LAYOUT: Layout;
}

/// Implements [`Twin`]: `twin!(Function = "Activation" { number: "function", limit })` says that kernels assert the
/// layout of `Function` by the name `Activation`, whose member `function` is the host's `number`. All fields are
/// listed.
macro_rules! twin {
    ($type:ident = $name:literal { $($field:ident $(: $member:literal)?),+ $(,)? }) => {
        impl crate::jit::layouts::Twin for $type {
            const LAYOUT: crate::jit::layouts::Layout = crate::jit::layouts::Layout {
                name: $name,
                size: size_of::<$type>(),
                members: &[$((twin!(@member $field $($member)?), std::mem::offset_of!($type, $field))),+],
            };
        }
        // Does not compile where a field is left out.
        const _: fn($type) = |$type { $($field: _),+ }| ();
    };
    (@member $field:ident $member:literal) => { $member };
    (@member $field:ident) => { stringify!($field) };
}
pub(crate) use twin;

/// Every shared struct, sorted by name.
const LAYOUTS: &[Layout] = &[
    <layers::elementwise::Function as Twin>::LAYOUT,
    <layers::lora_mma::AdapterRows as Twin>::LAYOUT,
    <attention::layer::Layer as Twin>::LAYOUT,
    <runtime::batch::Pointers as Twin>::LAYOUT,
    <whole_step::BestTo as Twin>::LAYOUT,
    <attention::attention_cascade::Cascade as Twin>::LAYOUT,
    <moe::routing::Chosen as Twin>::LAYOUT,
    <recurrent::delta_chunks::Chunks as Twin>::LAYOUT,
    <gemm::matmul_wgmma::CodeScales as Twin>::LAYOUT,
    <recurrent::Columns as Twin>::LAYOUT,
    <recurrent::Conv as Twin>::LAYOUT,
    <sampling::layout::Cut as Twin>::LAYOUT,
    <sampling::layout::Details as Twin>::LAYOUT,
    <latent::rounds::Part as Twin>::LAYOUT,
    <latent::rounds::Round as Twin>::LAYOUT,
    <layers::expert_lora::ExpertAdapters as Twin>::LAYOUT,
    <moe::experts::ExpertShape as Twin>::LAYOUT,
    <layers::gated_norm::Gate as Twin>::LAYOUT,
    <gemm::product::GemmShape as Twin>::LAYOUT,
    <layers::groups::Columns as Twin>::LAYOUT,
    <fusion::head_norms::QkNorms as Twin>::LAYOUT,
    <gemm::matmul_wgmma::HopperShape as Twin>::LAYOUT,
    <gemm::matmul_packed::InputShape as Twin>::LAYOUT,
    <attention::rope_and_cache::Layer as Twin>::LAYOUT,
    <weights::noise::Part as Twin>::LAYOUT,
    <layers::norm::Params as Twin>::LAYOUT,
    <fusion::split_norm::After as Twin>::LAYOUT,
    <fusion::split_norm::Before as Twin>::LAYOUT,
    <weights::packed::PackedWeights as Twin>::LAYOUT,
    <gemm::prepared::PreparedRows as Twin>::LAYOUT,
    <comm::peers::Ranks as Twin>::LAYOUT,
    <whole_step::Rest as Twin>::LAYOUT,
    <moe::routing::Router as Twin>::LAYOUT,
    <recurrent::Rule as Twin>::LAYOUT,
    <sampling::layout::Params as Twin>::LAYOUT,
    <sampling::layout::Row as Twin>::LAYOUT,
    <recurrent::selective_scan::Scan as Twin>::LAYOUT,
    <attention::attention_decode::Shares as Twin>::LAYOUT,
    <recurrent::scan_chunks::Spans as Twin>::LAYOUT,
    <latent::attention_latent::Split as Twin>::LAYOUT,
    <whole_step::Step as Twin>::LAYOUT,
    <sampling::Tables as Twin>::LAYOUT,
];

/// The text of `layouts.cuh`: for each struct its size, and a macro that asserts the offsets of a type's members, which
/// begin at `base`.
pub(crate) fn header() -> &'static str {
    static HEADER: LazyLock<String> = LazyLock::new(|| LAYOUTS.iter().map(macros).collect());
    &HEADER
}

fn macros(layout: &Layout) -> String {
    let Layout { name, size, members } = layout;
    let mut text = format!("#define SIZE_OF_{name} {size}\n#define OFFSETS_OF_{name}(T, base)");
    for (member, offset) in *members {
        let says = format!("\"{member} of \" #T \" lies elsewhere than in the host's {name}\"");
        let _ = write!(text, " \\\n    static_assert(OFFSET_OF(T, {member}) == (base) + {offset}, {says});");
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    /// Every file below a folder of this crate: path and text.
    fn files(folder: &str) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
                match entry.is_dir() {
                    true => folders.push(entry),
                    false => found.push((entry.display().to_string(), fs::read_to_string(entry).expect("text"))),
                }
            }
        }
        found
    }

    /// Names of the structs of a file that are laid out as C does.
    fn c_structs(text: &str) -> Vec<&str> {
        let marker = "\n#[repr(C)]\n";
        text.split(marker)
            .skip(1)
            .filter_map(|rest| rest.split_once("struct ")?.1.split(|c: char| !c.is_alphanumeric()).next())
            .collect()
    }

    #[test]
    fn every_struct_laid_out_as_c_does_has_a_twin() {
        let mut count = 0;
        for (path, text) in files("src") {
            for name in c_structs(&text) {
                count += 1;
                assert!(text.contains(&format!("twin!({name} = ")), "{path}: {name} has no twin!");
            }
        }
        assert_eq!(count, LAYOUTS.len(), "structs with a twin, and lines of LAYOUTS");
    }

    #[test]
    fn every_layout_is_asserted_by_a_kernel_file() {
        let sources = files("csrc");
        for Layout { name, .. } in LAYOUTS {
            let whole = format!(", {name});");
            let asserts = |line: &str| line.starts_with("SAME_LAYOUT(") && line.contains(&whole);
            let part = format!(", {name}, ");
            let asserts_part = |line: &str| line.starts_with("SAME_PART(") && line.contains(&part);
            let found = sources.iter().any(|(_, text)| text.lines().any(|line| asserts(line) || asserts_part(line)));
            assert!(found, "no kernel file asserts the layout of {name}");
        }
    }

    #[test]
    fn layouts_are_sorted_and_their_header_says_where_members_lie() {
        assert!(LAYOUTS.is_sorted_by(|a, b| a.name < b.name));
        let activation = "#define SIZE_OF_Activation 8\n#define OFFSETS_OF_Activation(T, base) \\\n    \
             static_assert(OFFSET_OF(T, function) == (base) + 0, \"function of \" #T \" lies elsewhere than in the \
             host's Activation\"); \\\n    \
             static_assert(OFFSET_OF(T, limit) == (base) + 4, \"limit of \" #T \" lies elsewhere than in the \
             host's Activation\");\n";
        assert!(header().starts_with(activation), "{}", header());
    }
}
