//! Which of a machine's devices a run of tests is for: `QUIRE_TEST_DEVICE` says it, and `QUIRE_TEST_GPUS` how many GPUs
//! there are.

/// What servers of tests compute on: a `--device`, if the run says one.
pub(crate) fn device() -> Option<String> {
    std::env::var("QUIRE_TEST_DEVICE").ok()
}

/// Whether servers compute on a GPU.
pub fn is_on_gpu() -> bool {
    device().is_some_and(|device| device == "cuda")
}

/// What a test needs.
#[derive(Clone, Copy, Debug)]
pub enum Needs {
    /// A GPU.
    Gpu,
    /// That pretended GPUs are the only ones: the libraries of a real one's driver would come first.
    PretendedGpus,
}

/// Whether this run lacks what a test needs, and says so: the test is then to be left.
pub fn lacks(needs: Needs) -> bool {
    let reason = match (needs, is_on_gpu()) {
        (Needs::Gpu, true) | (Needs::PretendedGpus, false) => return false,
        (Needs::Gpu, false) => "QUIRE_TEST_DEVICE is not cuda",
        (Needs::PretendedGpus, true) => "the libraries of the GPU's driver come first",
    };
    println!("skipped: {reason}");
    true
}

/// The largest group that the model that ships can be split over: it has four heads.
pub const MOST_RANKS_OF_WREN: usize = 4;

/// Sizes of groups that a test tries, up to [`max_workers`].
pub fn group_sizes() -> impl Iterator<Item = usize> {
    let least = number("QUIRE_TEST_LEAST_GPUS").unwrap_or(1);
    [1, 2, 4, 8].into_iter().filter(move |ranks| (least..=max_workers()).contains(ranks))
}

/// Most workers of a group: each takes a GPU; on processors two are enough.
pub fn max_workers() -> usize {
    match is_on_gpu() {
        true => number("QUIRE_TEST_GPUS").unwrap_or(1),
        false => 2,
    }
}

fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.parse().ok()
}
