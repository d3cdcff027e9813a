//! What a worker says of its model.

use crate::WorkerReady;

impl WorkerReady {
    /// Whether some layer of the model has a recurrent state, of this rank's stage or of another.
    pub fn is_recurrent(&self) -> bool {
        self.recurrent || self.state_bytes > 0
    }
}
