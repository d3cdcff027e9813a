//! Loads a model: weights, KV memory, and the facts that the scheduler is told.

use std::time::Instant;

use anyhow::bail;
use kernels::ops::{AttentionKernels, Backend};
use models::{LoadOptions, Memory, Model, SlotBytes, pooling::PoolingPlan};
use proto::WorkerReady;
use service_kit::{LoadProgress, StepDefaults};
use tokio::sync::mpsc;
use tracing::{debug, info};

use super::{Reply, pooling_info::pooling_info, watchdog::Activity};
use crate::{
    adapters::AdapterSource,
    config::{Args, CachePrecision},
    device::{
        self, Opened,
        memory::{self, Capacity},
    },
    idle::rehearsal::log_waits,
};

/// Loads the weights and allocates the KV memory. Sizes of a step that `args` leaves open become the device's.
pub(crate) fn load(
    args: &mut Args,
    pooling: Option<&PoolingPlan>,
    replies: &mpsc::Sender<Reply>,
    activity: &Activity,
) -> anyhow::Result<(Model, WorkerReady)> {
    args.check_stages()?;
    let in_stages = args.group.pipeline_parallel_size > 1;
    if in_stages && pooling.is_some() {
        bail!("a model that pools runs in one stage; leave out --pipeline-parallel-size");
    }
    let Opened { backend, kind, compilations } = device::open(args)?;
    activity.compiles(compilations);
    choose_sizes(args, &*backend);
    let mut model = load_weights(args, pooling, backend, replies)?;
    // Before the cache takes the rest of the memory.
    model.runner.set_slots(args.group.max_num_seqs() as usize);
    model.runner.set_capture_sizes(&args.capture_sizes());
    let capacity = size_memory(args, &model)?;
    model.runner.allocate(Memory {
        num_blocks: capacity.num_blocks as usize,
        block_size: args.block_size as usize,
        max_sequences: capacity.max_num_seqs as usize,
    });
    // Who says that it is ready answers at once.
    let start = Instant::now();
    model.runner.await_first_kernels();
    model.runner.check_device()?;
    debug!(seconds = start.elapsed().as_secs_f64(), "first kernels are loaded");
    log_waits(&mut *model.runner, "start");
    let mut ready = WorkerReady { device_kind: kind.into(), ..describe(args, &model, capacity) };
    if let Some(plan) = pooling {
        ready.max_model_len =
            plan.spec.max_len.map_or(ready.max_model_len, |most| ready.max_model_len.min(most as u32));
        ready.whole_prompts = plan.spec.whole_prompts;
        ready.pooling = Some(pooling_info(&plan.spec, &model));
    }
    Ok((model, ready))
}

/// Takes the sizes of a step that suit the device, where no flag gives them.
fn choose_sizes(args: &mut Args, backend: &dyn Backend) {
    let Some(memory) = backend.memory() else { return };
    args.group.defaults = StepDefaults::of_gpu(memory.total);
    let group = &args.group;
    if group.max_num_seqs.is_none() || group.max_num_batched_tokens.is_none() {
        info!(
            max_num_seqs = group.max_num_seqs(),
            max_num_batched_tokens = group.max_num_batched_tokens(),
            "steps have the sizes that suit a GPU of {} GiB; flags of these names change them",
            memory.total >> 30
        );
    }
}

fn load_weights(
    args: &Args,
    pooling: Option<&PoolingPlan>,
    backend: Box<dyn Backend>,
    replies: &mpsc::Sender<Reply>,
) -> anyhow::Result<Model> {
    let start = Instant::now();
    let mut progress = |progress: models::Progress| {
        // A full queue loses nothing: only the newest figure matters.
        let loaded = LoadProgress::after(start.elapsed(), progress.bytes_done, progress.bytes_total);
        let _ = replies.try_send(Reply::Loading(loaded));
    };
    let mut options = args.load_options();
    if let Some(plan) = pooling {
        // All rows of a step may be asked for.
        options = LoadOptions { head: plan.head, max_logit_rows: options.max_rows, ..options };
    }
    let model = models::load(&args.model, &options, backend, &mut progress)?;
    if pooling.is_none() && model.runner.pools() {
        bail!("{} pools prompts and generates no text", model.spec.architecture);
    }
    let (bytes, seconds) = (model.weight_bytes as f64, start.elapsed().as_secs_f64());
    let (gb, gb_per_s) = (bytes * 1e-9, bytes / seconds.max(1e-9) * 1e-9);
    let each = bytes / model.num_weights.max(1) as f64;
    info!(
        architecture = model.spec.architecture,
        "weights are loaded: {gb:.2} GB in {seconds:.2} s, {gb_per_s:.1} GB/s; {each:.2} bytes a weight"
    );
    if let Some(layout) = model.runner.adapter_layout() {
        let SlotBytes { all, experts } = layout.slot_bytes();
        let of_experts = match experts {
            0 => String::new(),
            _ => format!(
                ", {:.1} MB of it for experts, which --no-enable-lora-experts leaves out",
                experts as f64 * 1e-6
            ),
        };
        info!("each of --max-loras {} has room for {:.1} MB{of_experts}", args.lora.slots(), all as f64 * 1e-6);
    }
    for AttentionKernels { prefill, decode } in &model.attention {
        info!(prefill, decode, "attention kernels; --attention-backend selects others");
    }
    Ok(model)
}

/// The number of KV blocks and sequences that fit, beside the CUDA graphs that will be captured.
fn size_memory(args: &Args, model: &Model) -> anyhow::Result<Capacity> {
    let cache = model.runner.cache();
    let graphs = if args.enforce_eager { 0 } else { model.runner.capture_bytes() };
    let context_len = model.spec.context_len as u32;
    let facts = memory::Facts { cache: &cache, context_len, memory: memory::of(&*model.runner), graphs };
    let capacity = memory::capacity(args, facts)?;
    if capacity.max_num_seqs < args.group.max_num_seqs() {
        info!(
            max_num_seqs = capacity.max_num_seqs,
            state_bytes_per_sequence = cache.state_bytes,
            "there is memory for the recurrent states of fewer sequences than usual; --kv-cache-memory-bytes gives \
             it more"
        );
    }
    if args.kv_cache_dtype == CachePrecision::Fp8E4m3 {
        info!(
            "keys and values are kept in 8-bit floats (fp8_e4m3), with the scales of the checkpoint where it has \
             some, else 1"
        );
    }
    Ok(capacity)
}

/// The facts of a loaded model that the scheduler needs.
fn describe(args: &Args, model: &Model, Capacity { num_blocks, max_num_seqs }: Capacity) -> WorkerReady {
    let (spec, cache) = (&model.spec, model.runner.cache());
    WorkerReady {
        rank: args.rank,
        world_size: args.group.tensor_parallel_size,
        device: model.runner.describe_device(),
        dtype: dtype_name(args, model).into(),
        block_size: args.block_size,
        num_blocks,
        kv_bytes_per_token: cache.groups.iter().map(|group| group.bytes_per_token).sum(),
        vocab_size: spec.vocab_size as u32,
        max_model_len: spec.context_len as u32,
        weight_bytes: model.weight_bytes,
        eos_token_ids: spec.eos_token_ids.clone(),
        cache_groups: cache.groups.iter().map(cache_group).collect(),
        state_bytes: cache.state_bytes,
        cache_bytes: u64::from(num_blocks) * u64::from(args.block_size) * cache.place_bytes
            + u64::from(max_num_seqs) * cache.state_bytes,
        max_num_seqs,
        step_preference: Some(step_preference(model.runner.step_preference())),
        max_num_batched_tokens: args.load_options().max_rows as u32,
        settings: args.common_to_ranks(),
        adapter_slots: args.lora.slots(),
        extra_vocab_size: args.lora.extra_vocab_size(),
        random_adapters: matches!(args.adapter_source(), AdapterSource::Dummy(_)),
        stages: args.group.pipeline_parallel_size,
        recurrent: spec.layers.iter().any(|layer| layer.mixer.is_recurrent()),
        ..WorkerReady::default()
    }
}

fn step_preference(preferred: kernels::ops::StepPreference) -> proto::StepPreference {
    proto::StepPreference {
        row_multiple: preferred.row_multiple,
        large_row_multiple: preferred.large_row_multiple,
        min_prefill_tokens: preferred.min_prefill_tokens,
        target_us: preferred.target_us,
        target_prefill_tokens: preferred.target_prefill_tokens,
        few_decodes: preferred.few_decodes,
        few_decodes_target_us: preferred.few_decodes_target_us,
        prefill_tokens_per_decode: preferred.prefill_tokens_per_decode,
        max_us: preferred.max_us,
        slow_max_us: preferred.slow_max_us,
    }
}

fn cache_group(group: &models::CacheGroup) -> proto::CacheGroup {
    proto::CacheGroup {
        layers: group.layers as u32,
        window: group.window.map_or(0, |window| u32::try_from(window).unwrap_or(u32::MAX)),
        bytes_per_token: group.bytes_per_token,
    }
}

fn dtype_name(args: &Args, model: &Model) -> &'static str {
    use kernels::ops::DType;
    match args.load_options().dtype.or(model.spec.dtype) {
        Some(DType::Bf16) => "bfloat16",
        Some(DType::F16) => "float16",
        Some(DType::F32) | None => "float32",
    }
}
