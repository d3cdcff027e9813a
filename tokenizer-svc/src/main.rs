//! The process: see the library.
fn main() {}
