//! Changes of the prefix cache as vLLM's events: a batch is the array `[time, events, data-parallel rank]`, an event a
//! map, in MessagePack (vLLM 0.24 and later).

use sched_core::{BlockChange, Config, StoredBlock};
use serde::Serialize;

use crate::adapters;

/// vLLM's name for the memory of the device that computes, whatever that is.
const MEDIUM: &str = "GPU";

/// What happened in one step.
#[derive(Serialize)]
pub(super) struct EventBatch(pub f64, pub Vec<KvEvent>, pub u32);

/// One event.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(tag = "type")]
pub(super) enum KvEvent {
    /// Blocks that follow each other.
    BlockStored {
        block_hashes: Vec<u64>,
        parent_block_hash: Option<u64>,
        token_ids: Vec<u32>,
        block_size: u32,
        /// vLLM's numbers of adapters, which it keeps for old readers.
        lora_id: Option<u32>,
        medium: &'static str,
        lora_name: Option<String>,
        /// What the hash of each block depends on beside the tokens.
        extra_keys: Vec<Option<Vec<String>>>,
        group_idx: usize,
        kv_cache_spec_kind: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        kv_cache_spec_sliding_window: Option<u32>,
    },
    BlockRemoved {
        block_hashes: Vec<u64>,
        medium: &'static str,
        group_idx: usize,
    },
    AllBlocksCleared {},
}

impl EventBatch {
    /// As it travels.
    pub(super) fn encode(&self) -> Vec<u8> {
        // It fails for want of room alone, and a Vec grows.
        rmp_serde::to_vec_named(self).unwrap_or_default()
    }
}

/// Changes in order; those that continue each other are one event.
pub(super) fn events(changes: &[BlockChange], config: &Config) -> Vec<KvEvent> {
    let mut events = Vec::new();
    let mut newest = None;
    for change in changes {
        match change {
            BlockChange::Stored(block) if newest.is_some_and(|newest| continues(newest, block)) => {
                extend(events.last_mut(), block);
            }
            BlockChange::Stored(block) => events.push(stored(block, config)),
            BlockChange::Removed(name) => match events.last_mut() {
                Some(KvEvent::BlockRemoved { block_hashes, group_idx, .. }) if *group_idx == name.group => {
                    block_hashes.push(name.hash.short());
                }
                _ => events.push(KvEvent::BlockRemoved {
                    block_hashes: vec![name.hash.short()],
                    medium: MEDIUM,
                    group_idx: name.group,
                }),
            },
            BlockChange::Cleared => events.push(KvEvent::AllBlocksCleared {}),
        }
        newest = match change {
            BlockChange::Stored(block) => Some(&**block),
            _ => None,
        };
    }
    events
}

/// Whether a block is the next one of the same text.
fn continues(newest: &StoredBlock, block: &StoredBlock) -> bool {
    block.parent == Some(newest.name.hash) && block.name.group == newest.name.group
}

fn stored(block: &StoredBlock, config: &Config) -> KvEvent {
    let window = config.windows.get(block.name.group).copied().flatten();
    KvEvent::BlockStored {
        block_hashes: vec![block.name.hash.short()],
        parent_block_hash: block.parent.map(|parent| parent.short()),
        token_ids: block.tokens.clone(),
        block_size: config.block_size,
        lora_id: None,
        medium: MEDIUM,
        lora_name: adapter(block).map(str::to_owned),
        extra_keys: vec![extra_keys(block)],
        group_idx: block.name.group,
        kv_cache_spec_kind: if window.is_some() { "sliding_window" } else { "full_attention" },
        kv_cache_spec_sliding_window: window,
    }
}

fn extend(event: Option<&mut KvEvent>, block: &StoredBlock) {
    if let Some(KvEvent::BlockStored { block_hashes, token_ids, extra_keys: keys, .. }) = event {
        block_hashes.push(block.name.hash.short());
        token_ids.extend(&block.tokens);
        keys.push(extra_keys(block));
    }
}

fn adapter(block: &StoredBlock) -> Option<&str> {
    (!block.adapter.is_empty()).then(|| adapters::name_of(&block.adapter))
}

/// The adapter's name, and with a first block the tenant's salt.
fn extra_keys(block: &StoredBlock) -> Option<Vec<String>> {
    let salt = block.parent.is_none() && !block.cache_salt.is_empty();
    let keys: Vec<String> =
        adapter(block).into_iter().chain(salt.then_some(block.cache_salt.as_str())).map(str::to_owned).collect();
    (!keys.is_empty()).then_some(keys)
}
