//! Newtypes for the ids and lengths that cross crate borders.
//!
//! They cost nothing and keep a slot from being used as a block.

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($int:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        #[repr(transparent)]
        pub struct $name(pub $int);

        impl $name {
            /// The id as an index into a table.
            #[inline]
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// A token of the model's vocabulary.
    TokenId(u32)
}
id! {
    /// A physical KV block, `0 .. num_blocks`.
    BlockId(u32)
}
id! {
    /// A worker-side place for one running sequence, `0 .. max_num_seqs`.
    SlotId(u32)
}
id! {
    /// One generated choice of one request; unique while its scheduler lives.
    SequenceId(u64)
}
id! {
    /// A forward pass, counted from 1 within an epoch.
    StepId(u64)
}
id! {
    /// One forming of a worker group; all state of older epochs is void.
    Epoch(u64)
}
