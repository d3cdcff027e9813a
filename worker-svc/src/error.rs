//! Errors of a step, by who can mend them.

use models::ForwardError;

/// Why a plan was not executed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    /// The plan contradicts what the worker knows: one of the two has a bug, and going on would give wrong tokens.
    #[error("the plan of step {step} is malformed: {reason}")]
    Malformed {
        /// The step.
        step: u64,
        /// What contradicts what.
        reason: String,
    },
    /// Another rank is gone: the epoch is over, the weights are intact.
    #[error("the group is lost: {0}")]
    GroupLost(String),
    /// The devices of the ranks cannot work together.
    #[error("the devices of the ranks cannot be connected: {0}; --tensor-parallel-size 1 needs no connection")]
    InitComm(ForwardError),
    /// The forward pass refused its input.
    #[error("the forward pass failed: {0}")]
    Forward(ForwardError),
}

impl StepError {
    /// Of ranks that connect their devices.
    pub(crate) fn of_init(error: ForwardError) -> Self {
        match error {
            ForwardError::Collective(cause) => Self::GroupLost(cause.to_string()),
            other => Self::InitComm(other),
        }
    }
}

impl From<ForwardError> for StepError {
    fn from(error: ForwardError) -> Self {
        match error {
            ForwardError::Collective(cause) => Self::GroupLost(cause.to_string()),
            other => Self::Forward(other),
        }
    }
}
