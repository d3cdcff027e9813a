//! Architectures as data, the one decoder that runs them, and the readers of their weights.
