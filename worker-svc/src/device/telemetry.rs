//! What NVML says of this worker's GPU: memory, load, power, temperature and throttling, as metrics. Absent where there
//! is no GPU or no NVML, and each figure where the GPU does not have it.

use std::{
    ffi::OsStr,
    sync::{Arc, OnceLock, atomic::AtomicU64},
};

use nvml_wrapper::{
    Device, Nvml, bitmasks::device::ThrottleReasons, enum_wrappers::device::TemperatureSensor, error::NvmlError,
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
};
use service_kit::metrics::{Description, Metrics};
use tracing::info;

/// The library's name on a machine with a driver alone; without it, the development package's name is tried.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// A GPU's telemetry once it is known; cloning shares.
#[derive(Clone, Default)]
pub(crate) struct Telemetry(Arc<OnceLock<Gpu>>);

/// One GPU, and its gauges.
struct Gpu {
    nvml: Nvml,
    uuid: String,
    figures: Vec<(&'static Figure, Gauge<f64, AtomicU64>)>,
    throttled: Option<Family<Reason, Gauge>>,
}

/// A number that NVML gives.
struct Figure {
    name: &'static str,
    help: &'static str,
    read: fn(&Device<'_>) -> Result<f64, NvmlError>,
}

const FIGURES: &[Figure] = &[
    Figure {
        name: "quire:gpu_memory_used_bytes",
        help: "Memory of the GPU that is in use, by any process",
        read: |gpu| Ok(gpu.memory_info()?.used as f64),
    },
    Figure {
        name: "quire:gpu_memory_total_bytes",
        help: "Memory of the GPU",
        read: |gpu| Ok(gpu.memory_info()?.total as f64),
    },
    Figure {
        name: "quire:gpu_utilization_ratio",
        help: "Share of the last sampling period in which a kernel ran, 0 to 1",
        read: |gpu| Ok(f64::from(gpu.utilization_rates()?.gpu) * 0.01),
    },
    Figure {
        name: "quire:gpu_power_watts",
        help: "Power that the GPU draws",
        read: |gpu| Ok(f64::from(gpu.power_usage()?) * 1e-3),
    },
    Figure {
        name: "quire:gpu_power_limit_watts",
        help: "Power that the GPU may draw",
        read: |gpu| Ok(f64::from(gpu.enforced_power_limit()?) * 1e-3),
    },
    Figure {
        name: "quire:gpu_temperature_celsius",
        help: "Temperature of the GPU",
        read: |gpu| Ok(f64::from(gpu.temperature(TemperatureSensor::Gpu)?)),
    },
];

const THROTTLED: &str = "quire:gpu_throttled";
const THROTTLED_HELP: &str = "Whether clocks are lower than they could be, for this reason: 1 or 0";

/// The metrics of a worker whose GPU gives all of them.
pub(crate) fn descriptions() -> Vec<Description> {
    let gauges = FIGURES.iter().map(|figure| Description::of::<Gauge>(figure.name, &["rank"], figure.help));
    gauges.chain([Description::of::<Gauge>(THROTTLED, &["rank", "reason"], THROTTLED_HELP)]).collect()
}

/// Why clocks are lower than they could be.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

/// Reasons by the names that the metric has for them. That a GPU is idle is none.
const REASONS: [(&str, ThrottleReasons); 3] = [
    ("power", ThrottleReasons::SW_POWER_CAP),
    ("thermal", ThrottleReasons::SW_THERMAL_SLOWDOWN.union(ThrottleReasons::HW_THERMAL_SLOWDOWN)),
    ("hardware", ThrottleReasons::HW_SLOWDOWN.union(ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN)),
];

impl Telemetry {
    /// Looks for NVML and the GPU with CUDA's number `rank`, and registers what they give. Takes some milliseconds.
    pub(crate) fn open(&self, metrics: &Metrics, rank: u32) {
        let uuid = kernels_cuda::gpu_uuid(rank).map_err(|error| error.to_string());
        match uuid.and_then(|uuid| Gpu::open(uuid).map_err(|error| error.to_string())) {
            Ok(gpu) if self.0.get().is_none() => {
                gpu.register(metrics, rank);
                // Nobody else sets it: a worker loads its model once.
                let _ = self.0.set(gpu);
            }
            Ok(_) => {}
            Err(reason) => info!("no metrics of the GPU: {reason}"),
        }
    }

    /// Brings the gauges up to date. On a thread where blocking does no harm: NVML may take milliseconds.
    pub(crate) async fn refresh(&self) {
        if self.0.get().is_none() {
            return;
        }
        let this = self.clone();
        // It ends early only with the runtime.
        let _ = tokio::task::spawn_blocking(move || this.0.get().map(Gpu::refresh)).await;
    }
}

impl Gpu {
    fn open(uuid: String) -> Result<Self, NvmlError> {
        let nvml = Nvml::builder().lib_path(OsStr::new(LIBRARY)).init().or_else(|_| Nvml::init())?;
        let gpu = nvml.device_by_uuid(uuid.as_str())?;
        let known = FIGURES.iter().filter(|figure| (figure.read)(&gpu).is_ok());
        let figures = known.map(|figure| (figure, Gauge::default())).collect();
        let throttled = gpu.current_throttle_reasons().is_ok().then(Family::default);
        Ok(Self { nvml, uuid, figures, throttled })
    }

    fn register(&self, metrics: &Metrics, rank: u32) {
        metrics.register(|registry| {
            let registry = registry.sub_registry_with_label(("rank".into(), rank.to_string().into()));
            for (figure, gauge) in &self.figures {
                registry.register(figure.name, figure.help, gauge.clone());
            }
            if let Some(throttled) = &self.throttled {
                registry.register(THROTTLED, THROTTLED_HELP, throttled.clone());
            }
        });
        self.refresh();
    }

    /// A figure that NVML does not give this time keeps its value.
    fn refresh(&self) {
        let Ok(gpu) = self.nvml.device_by_uuid(self.uuid.as_str()) else { return };
        for (figure, gauge) in &self.figures {
            if let Ok(value) = (figure.read)(&gpu) {
                gauge.set(value);
            }
        }
        if let (Some(throttled), Ok(now)) = (&self.throttled, gpu.current_throttle_reasons()) {
            for (reason, bits) in REASONS {
                throttled.get_or_create(&Reason { reason }).set(i64::from(now.intersects(bits)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn without_a_gpu_there_are_no_metrics() {
        if kernels_cuda::gpus().is_ok() {
            println!("skipped: there is a GPU");
            return;
        }
        let (telemetry, metrics) = (Telemetry::default(), Metrics::default());
        telemetry.open(&metrics, 0);
        telemetry.refresh().await;
        assert_eq!(metrics.text(), "");
    }
}
