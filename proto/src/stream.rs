//! The rare fields of a delta.

use crate::{Delta, DeltaDetails};

impl Delta {
    /// The rare fields, to write to.
    pub fn details_mut(&mut self) -> &mut DeltaDetails {
        self.details.get_or_insert_default()
    }
}
