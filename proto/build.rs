//! Compiles the `.proto` files in pure Rust (protox), so that nobody installs protoc.

use std::{env, error::Error, fs, path::PathBuf};

const FILES: [&str; 6] = ["control", "link", "pooling", "request", "step", "stream"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=quire");
    let paths: Vec<String> = FILES.iter().map(|name| format!("quire/v1/{name}.proto")).collect();
    let descriptors = protox::compile(&paths, ["."])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("quire_descriptor.bin"), prost::Message::encode_to_vec(&descriptors))?;
    // An event is small: batches of thousands are built, grown and moved on each side.
    let rare = [".quire.v1.Event.kind.admitted", ".quire.v1.Delta.details"];
    let config = rare.iter().fold(tonic_prost_build::configure().bytes("."), |config, path| config.boxed(path));
    config.compile_fds(descriptors)?;
    Ok(())
}
