//! Bounded single-producer single-consumer rings of byte records in shared memory.
