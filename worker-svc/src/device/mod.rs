//! Opens the worker's device: a GPU, or the CPU.

pub(crate) mod memory;
mod telemetry;

use anyhow::{anyhow, bail};
use kernels::{cpu::CpuBackend, ops::Backend};
use kernels_cuda::{Compilations, CudaBackend, CudaOptions, FirstKernels, OpenError};
use proto::DeviceKind;
use tracing::{info, warn};

use crate::config::{Args, AttentionKernel, Device};

pub(crate) use telemetry::{Telemetry, descriptions as gpu_metrics};

/// A device, ready to take a model.
pub(crate) struct Opened {
    pub backend: Box<dyn Backend>,
    pub kind: DeviceKind,
    /// Compilations of its kernels that are under way.
    pub compilations: Compilations,
}

/// The device that the flags ask for. With `auto` the CPU replaces a GPU that cannot be used, and one line of the log
/// says why.
pub(crate) fn open(args: &Args) -> anyhow::Result<Opened> {
    if args.attention_backend != AttentionKernel::Auto && args.single_kernel_decode == Some(true) {
        bail!("--attention-backend: a step that is one kernel attends by itself; leave out --single-kernel-decode");
    }
    if args.device == Device::Cpu {
        return cpu(args);
    }
    let options = args.cuda_options();
    let _libraries = options.folders.open_ahead();
    let gpus = kernels_cuda::gpus();
    // Every rank sees the same GPUs, so that all of them decide alike.
    if let Ok(gpus) = gpus {
        enough(gpus, args.local_world_size())?;
    }
    // A rank alone on the CPU could not work with others on GPUs.
    let must = args.device == Device::Cuda || (args.group.world_size() > 1 && gpus.is_ok());
    match gpus.and_then(|_| gpu(&options)) {
        Ok(backend) => {
            let compilations = backend.compilations();
            Ok(Opened { backend: Box::new(backend), kind: DeviceKind::Cuda, compilations })
        }
        Err(reason) if args.device == Device::Cuda => Err(anyhow!("--device cuda: {reason}")),
        Err(reason) if must => Err(anyhow!("{reason}; start with --device cpu to do without GPUs")),
        Err(reason) => {
            info!("computing on the CPU: {reason}");
            cpu(args)
        }
    }
}

/// Opens a GPU. Compiling its kernels may take long, once a machine; the log says so.
fn gpu(options: &CudaOptions) -> Result<CudaBackend, OpenError> {
    match &options.kernel_cache {
        Some(folder) => {
            info!("opening GPU {}; kernels that are not in {} are compiled now", options.ordinal, folder.display())
        }
        None => warn!(
            "opening GPU {}; its kernels are compiled now, and at every start: there is no home folder to \
             keep them in, and no --kernel-cache",
            options.ordinal
        ),
    }
    let backend = CudaBackend::open(options)?;
    let FirstKernels { compiling, cached, unkept } = backend.first_kernels();
    if *compiling > 0 {
        info!(compiling, cached, "GPU kernels are compiled while the model is loaded");
    }
    if let Some(reason) = unkept {
        warn!(
            "compiled GPU kernels cannot be kept, and every start compiles them: {reason}; --kernel-cache names \
             another folder"
        );
    }
    Ok(backend)
}

/// Refuses more ranks than there are GPUs.
fn enough(gpus: u32, ranks: u32) -> anyhow::Result<()> {
    if ranks > gpus {
        bail!(
            "--tensor-parallel-size times --pipeline-parallel-size needs {ranks} GPUs on this machine, but the NVIDIA \
             driver shows {gpus}; ask for at most {gpus}, show more with CUDA_VISIBLE_DEVICES, or start with --device \
             cpu"
        );
    }
    Ok(())
}

fn cpu(args: &Args) -> anyhow::Result<Opened> {
    if args.attention_backend != AttentionKernel::Auto {
        bail!("--attention-backend names kernels of GPUs; the CPU has one, and its only value here is auto");
    }
    let backend = CpuBackend::new(args.cpu_options());
    Ok(Opened { backend: Box::new(backend), kind: DeviceKind::Cpu, compilations: Compilations::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_needs_a_gpu() {
        assert!(enough(2, 2).is_ok() && enough(8, 1).is_ok());
        let error = enough(1, 2).unwrap_err().to_string();
        assert!(error.contains("needs 2 GPUs") && error.contains("at most 1"), "{error}");
    }
}
