//! KV blocks: who holds them, which can be found again, and how many a sequence needs.

pub(crate) mod changes;
pub(crate) mod groups;
pub(crate) mod pool;
pub(crate) mod table;
