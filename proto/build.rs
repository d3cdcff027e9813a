//! Compiles the `.proto` files in pure Rust (protox), so that nobody installs protoc.

use std::{env, error::Error, fs, path::PathBuf};

const FILES: [&str; 6] = ["control", "link", "pooling", "request", "step", "stream"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=quire");
    let paths: Vec<String> = FILES.iter().map(|name| format!("quire/v1/{name}.proto")).collect();
    let descriptors = protox::compile(&paths, ["."])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("quire_descriptor.bin"), prost::Message::encode_to_vec(&descriptors))?;
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}
