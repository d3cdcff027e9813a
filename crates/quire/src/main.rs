//! The `quire` command.
mod bench;
mod sse;
fn main() {
    let _ = bench::run;
}
