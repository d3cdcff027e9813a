//! All-reduce and friends between the workers of one group.
