//! What the ranks of a group must have in common, and what their workers must offer to this engine.

use proto::{CacheGroup, Hello, WorkerReady};

use super::Group;

/// A fact of a worker, by the name that users know, and how it is shown.
struct Fact {
    name: &'static str,
    value: fn(&WorkerReady) -> String,
}

const fn fact(name: &'static str, value: fn(&WorkerReady) -> String) -> Fact {
    Fact { name, value }
}

/// What requests, blocks and limits of an engine are made for: the same for all of its groups.
const OF_ENGINE: &[Fact] = &[
    fact("--block-size", |ready| ready.block_size.to_string()),
    fact("a vocabulary of", |ready| ready.vocab_size.to_string()),
    fact("a longest sequence of", |ready| ready.max_model_len.to_string()),
    fact("end tokens", |ready| format!("{:?}", ready.eos_token_ids)),
    fact("KV cache groups", |ready| ready.cache_groups.iter().map(windows).collect::<Vec<_>>().join(" + ")),
    fact("pooling", |ready| {
        ready.pooling.as_ref().map_or("none".to_owned(), |info| format!("{:?} of {}", info.task(), info.width))
    }),
    fact("--lora-extra-vocab-size", |ready| ready.extra_vocab_size.to_string()),
    fact("--max-loras", |ready| ready.adapter_slots.to_string()),
    fact("a recurrent state", |ready| if ready.is_recurrent() { "yes" } else { "no" }.to_owned()),
];

/// What the ranks of one group have in common beyond that.
const OF_GROUP: &[Fact] = &[
    fact("--tensor-parallel-size", |ready| ready.world_size.to_string()),
    fact("--pipeline-parallel-size", |ready| ready.stages.max(1).to_string()),
    fact("--device", |ready| ready.device_kind().as_str_name().to_lowercase()),
    fact("--dtype", |ready| ready.dtype.clone()),
    fact("--max-num-batched-tokens", |ready| ready.max_num_batched_tokens.to_string()),
];

/// A fact that two workers do not share.
struct Difference {
    name: String,
    its: String,
    theirs: String,
}

/// The first fact of a table in which two workers differ.
fn difference(facts: &[Fact], its: &WorkerReady, theirs: &WorkerReady) -> Option<Difference> {
    let compare =
        |fact: &Fact| Difference { name: fact.name.into(), its: (fact.value)(its), theirs: (fact.value)(theirs) };
    facts.iter().map(compare).find(|found| found.its != found.theirs)
}

/// The first named setting that only one of two workers has, or that has another value there.
fn different_setting(its: &WorkerReady, theirs: &WorkerReady) -> Option<Difference> {
    let value = |ready: &WorkerReady, name: &str| {
        let found = ready.settings.iter().find(|setting| setting.name == name);
        found.map_or_else(|| "nothing of the kind".to_owned(), |setting| setting.value.clone())
    };
    let names = its.settings.iter().chain(&theirs.settings).map(|setting| &setting.name);
    let compare = |name: &String| Difference { name: name.clone(), its: value(its, name), theirs: value(theirs, name) };
    names.map(compare).find(|found| found.its != found.theirs)
}

/// Two model folders that differ.
fn different_model(its: &Hello, theirs: &Hello) -> Option<Difference> {
    let (its, theirs) = (&its.model_fingerprint, &theirs.model_fingerprint);
    let found = || Difference { name: "the model".into(), its: its.clone(), theirs: theirs.clone() };
    (its != theirs).then(found)
}

/// How a KV cache group is shown. Its layers are those of the rank's stage, and no matter of others.
fn windows(group: &CacheGroup) -> String {
    match group.window {
        0 => "all tokens".to_owned(),
        window => format!("window {window}"),
    }
}

impl Group {
    /// Why a worker cannot be `rank` of this group, with both sides' values; absent when it can.
    pub(super) fn misfit(&self, rank: usize, ready: &WorkerReady) -> Option<String> {
        self.misfit_to_flags(rank, ready).or_else(|| self.misfit_to_ranks(rank, ready)).or_else(|| {
            let engine = self.engine.as_ref()?;
            let Difference { name, its, theirs } = difference(OF_ENGINE, ready, engine)?;
            Some(format!(
                "rank {rank} has {name} {its}, but this engine has run with {theirs} since its start; to change it, \
                 start the scheduler again, too"
            ))
        })
    }

    /// What the scheduler's own flags say against it.
    fn misfit_to_flags(&self, rank: usize, ready: &WorkerReady) -> Option<String> {
        let (ranks, tokens) = (self.stage_size(), self.limits.max_num_batched_tokens.unwrap_or(0));
        if ready.world_size != ranks {
            let size = ready.world_size;
            return Some(format!("rank {rank} has --tensor-parallel-size {size}, the scheduler has {ranks}"));
        }
        let (stages, its) = (self.stages, ready.stages.max(1));
        if its != stages {
            return Some(format!("rank {rank} has --pipeline-parallel-size {its}, the scheduler has {stages}"));
        }
        if ready.rank as usize != rank {
            return Some(format!("rank {rank} says that it is rank {}", ready.rank));
        }
        let room = ready.max_num_batched_tokens;
        (room > 0 && room < tokens).then(|| {
            format!(
                "rank {rank} has room for steps of {room} tokens (--max-num-batched-tokens), the scheduler plans \
                 steps of up to {tokens}"
            )
        })
    }

    /// What the ranks that are ready say against it.
    fn misfit_to_ranks(&self, rank: usize, ready: &WorkerReady) -> Option<String> {
        let newcomer = self.ranks[rank].as_ref()?;
        let others = self.ranks.iter().flatten().filter(|other| other.connection != newcomer.connection);
        for (other, theirs) in others.filter_map(|other| Some((other, other.ready.as_ref()?))) {
            let found = different_model(&newcomer.peer, &other.peer)
                .or_else(|| difference(OF_ENGINE, ready, theirs))
                .or_else(|| difference(OF_GROUP, ready, theirs))
                .or_else(|| different_setting(ready, theirs));
            if let Some(Difference { name, its, theirs }) = found {
                let present = other.peer.rank;
                return Some(format!(
                    "rank {rank} has {name} {its}, but rank {present} has {theirs}; all ranks of a group must agree"
                ));
            }
        }
        None
    }
}
