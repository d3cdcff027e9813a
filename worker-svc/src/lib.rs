//! One device: weights, KV memory, the forward pass, sampling, collectives.
