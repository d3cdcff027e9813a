//! Which of several engines takes a request: what engines report comes in, choices go out.
//!
//! An engine is a scheduler with its workers; all of them serve one model. A choice looks at three things:
//!
//! 1. What the client asks for: a rank (`X-data-parallel-rank`), or a session (`X-Session-ID`), whose requests all go
//!    to one engine.
//! 2. What an engine can do: it is [`State::Ready`], or it is not.
//! 3. The [`Policy`]. `prefix` and `least-loaded` count the tokens that an engine has to compute before the request's
//!    first one.
//!
//! There is no clock, socket or thread inside. Engines are named by their data-parallel ranks, from 0 on.

mod engine;
mod policy;
mod router;

pub use engine::State;
pub use policy::Policy;
pub use router::{Arrival, NoEngine, Router};
