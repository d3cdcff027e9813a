//! Operations of a step as a list, which a pass of rules rewrites before anything is launched.
//!
//! ```text
//!  Backend::matmul, gated, norm, ...                  operations append what they are asked for
//!        │  CudaBackend::append(Op)
//!        ▼
//!  ┌───────────────────────────────┐   all of a step that is captured   ┌──────────────────────────────┐
//!  │ Pass: the list's end, and the │ ─────────────────────────────────▶ │ whole_step::plan: one kernel │
//!  │ norm that is split            │                                    └──────────────────────────────┘
//!  └───────────────────────────────┘
//!        │  Pass::next: rules rewrite the head of the list (gated_gemm, add_norm, …)
//!        ▼
//!  CudaBackend::launch(Op)                            to the stream, or into the CUDA graph that is captured
//! ```
//!
//! - **An operation** (`op`) is plain data: views of buffers, handles, parameters. It is defined by these alone. One
//!   that no rule knows is [`Op::Opaque`]: all before it is launched, and then its own code launches it.
//! - **A rule** is a function of the head of the list: it rewrites some operations to one, waits for what comes next,
//!   or says no. None looks at the device; what the kernels for a GEMM can do is a fact of the operation
//!   ([`op::Fits`]). So every rule is tested by itself.
//! - **Lookahead** is bounded: an operation leaves the list with the first one behind it that no rule combines it with.
//!   A GEMM, a norm, a gate and a sum over ranks wait for one operation, the norms of heads and a GEMM that
//!   ranks add up for two. Most operations wait for nothing, so the device is fed as early as without a list.
//! - **Order** is kept: operations are launched as they were appended. Only the second half of a split norm
//!   (`split_norm`) comes later, or never where nothing reads it.
//! - **The host** reads and writes activations, ends steps, and exchanges with other ranks behind an end of the list
//!   ([`CudaBackend::flush`]).
//!
//! [`CudaBackend::flush`]: crate::CudaBackend::flush

pub(crate) mod activated_gemm;
pub(crate) mod adapted_gemm;
pub(crate) mod add_norm;
pub(crate) mod all_reduce_add_norm;
pub(crate) mod gated_gemm;
pub(crate) mod gated_norm;
pub(crate) mod head_norms;
pub(crate) mod launch;
pub(crate) mod norm_add_norm;
pub(crate) mod op;
pub(crate) mod pass;
pub(crate) mod prepared_rows;
pub(crate) mod rounded_part;
pub(crate) mod split_norm;
pub(crate) mod two_norms;

#[cfg(test)]
pub(crate) mod samples;
