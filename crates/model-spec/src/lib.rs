//! What a model is, as data: the facts that one decoder needs to run any architecture.
