//! Opens what this worker computes on.

use anyhow::anyhow;
use kernels::{
    cpu::{CpuBackend, CpuOptions},
    ops::Backend,
};
use kernels_cuda::CudaBackend;
use tracing::info;

use crate::config::{Args, Device};

/// The device that the flags ask for. With `auto`, what speaks against a GPU is said in one line, and the CPU takes its place.
pub(crate) fn open(args: &Args) -> anyhow::Result<Box<dyn Backend>> {
    if args.device == Device::Cpu {
        return Ok(cpu(args));
    }
    match CudaBackend::open(&args.cuda_options()) {
        Ok(backend) => Ok(Box::new(backend)),
        Err(reason) if args.device == Device::Cuda => Err(anyhow!("--device cuda: {reason}")),
        Err(reason) => {
            info!("computing on the CPU: {reason}");
            Ok(cpu(args))
        }
    }
}

fn cpu(args: &Args) -> Box<dyn Backend> {
    Box::new(CpuBackend::new(CpuOptions { threads: args.threads(), isa: None }))
}
