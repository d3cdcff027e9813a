//! `quire kernels build`: compiles the GPU kernels ahead, without a GPU, so that an image or a first start need not.

use std::path::PathBuf;

use anyhow::{anyhow, bail};
use clap::{Args, Subcommand};
use kernels_cuda::{Arch, Folders, Surroundings, fill_cache};

use crate::environment::Environment;

/// What to do with kernels.
#[derive(Args)]
pub struct KernelsArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compile the GPU kernels into a folder; needs NVRTC (for example pip install nvidia-cuda-nvrtc) and no GPU
    Build(BuildArgs),
}

#[derive(Args)]
struct BuildArgs {
    /// Architectures, commas between them: sm_80, sm_90a, sm_100a
    #[arg(long, required = true, value_delimiter = ',')]
    arch: Vec<Arch>,

    /// Where to put them [default: QUIRE_KERNEL_CACHE, else quire/kernels in the user's cache folder]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
}

/// Runs it.
pub fn run(args: &KernelsArgs, environment: &Environment) -> anyhow::Result<()> {
    let Command::Build(BuildArgs { arch, cache }) = &args.command;
    let Some(cache) = cache.as_ref().or(environment.kernel_cache.as_ref()) else {
        bail!("no home folder to put kernels in; name a folder with --cache");
    };
    let folders = Folders::of(Surroundings {
        named: environment.cuda_library_path.as_deref(),
        virtual_env: environment.virtual_env.as_deref(),
        path: environment.path.as_deref(),
    });
    let begin =
        |arch, count| println!("{arch}: {count} kernels, compiled where they are not there yet; this may take minutes");
    let filled = fill_cache(&folders, cache, arch, begin).map_err(|reason| anyhow!("{reason}"))?;
    println!("{}: {} kernel files compiled, {} were there", cache.display(), filled.compiled, filled.cached);
    Ok(())
}
