//! `out = x w^T (+ bias)`, stored or accumulated; one product, or many side by side.
//!
//! Every output element is one sum over k in ascending order, by whichever kernel the weights ask for; so rows never
//! influence each other.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod byte_tiles;
mod digits;
mod dots;
pub(crate) mod integers;
mod job;
mod lanes;
mod needs;
pub(crate) mod pack;
mod product;
pub(crate) mod round_input;
pub(crate) mod scales;
#[cfg(target_arch = "x86_64")]
mod skinny;

use crate::cpu::runtime::isa::Isa;
use crate::cpu::runtime::pool::Pool;
use job::Job;
pub(crate) use job::Scratch;
pub(crate) use product::{Product, Rows};

/// Computes products, all of them in one go: tasks of the next begin while the last ones of the one before still run.
///
/// # Safety
/// Every product's rows exist, no row of an output overlaps another or any input, and nobody else uses them meanwhile.
pub(crate) unsafe fn matmul<'a>(
    isa: Isa,
    pool: &mut Pool,
    scratch: &mut Scratch,
    products: impl Iterator<Item = Product<'a>>,
) {
    let threads = pool.threads();
    let jobs: Vec<Job<'a>> =
        products.filter(|product| product.rows > 0).map(|product| Job::new(isa, threads, product)).collect();
    // SAFETY: the caller's promise.
    unsafe { job::run(pool, scratch, &jobs) }
}
