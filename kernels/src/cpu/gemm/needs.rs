//! What a kernel for products asks of the pool before it begins.

/// What a kernel needs, and into how many tasks it cuts the product.
#[derive(Clone, Copy, Default)]
pub(super) struct Needs {
    /// Bytes of packed rows.
    pub(super) packed: usize,
    /// Bytes of sums, a thread.
    pub(super) sums: usize,
    /// Tasks that pack, and how much they do together (see `Pool::run_sized`).
    pub(super) pack_tasks: usize,
    pub(super) pack_work: usize,
    /// Tasks that multiply, and how much they do together.
    pub(super) tasks: usize,
    pub(super) work: usize,
}
