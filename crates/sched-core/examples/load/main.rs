//! What a policy does to a load: the scheduler plans, and steps take as long as a table of measured times says.
//!
//! `cargo run --release -p sched-core --example load -- --model llama-8b --load clients:256`
//!
//! Loads: `mixed` (512 requests of 64 to 1,024 tokens in and 64 to 512 out, all at once), `clients:N` (requests of
//! 1,024 in and 256 out, two for each of N clients at least), `long` (64 decodes that a prompt of 65,536 tokens meets).
//! Settings of the scheduler: `--seqs`, `--batched-tokens`; prompts beside decodes: `--beside-tokens` (0: no bound), or
//! `--min-tokens`, `--target-us`, `--few-decodes`, `--few-decodes-target-us`, `--tokens-per-decode`, `--max-us` and
//! `--slow-max-us`.
//! `--trace` prints every step: when it begins, its decodes and prompt tokens, and what it takes.

mod costs;
mod world;

use sched_core::{Config, MixedPrefill, PrefillBudget};

use costs::{LLAMA_8B, QWEN3_06B};
use world::{Asked, World};

/// The finaliser of splitmix64 (Steele, Lea, Flood 2014), as the comparison draws its lengths.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn main() {
    let costs = match argument("--model").as_deref() {
        None | Some("llama-8b") => &LLAMA_8B,
        Some("qwen3-0.6b") => &QWEN3_06B,
        Some(other) => panic!("no times of {other} are known"),
    };
    let number = |name: &str, default: u32| argument(name).map_or(default, |value| value.parse().expect("a number"));
    let config = Config {
        max_num_seqs: number("--seqs", 256),
        max_num_batched_tokens: number("--batched-tokens", 8192),
        max_model_len: 66_560,
        mixed_prefill: match number("--beside-tokens", u32::MAX) {
            0 => MixedPrefill::Unlimited,
            u32::MAX => MixedPrefill::Timed(PrefillBudget {
                min_tokens: number("--min-tokens", 512),
                target_us: number("--target-us", 100_000),
                few_decodes: number("--few-decodes", 12),
                few_decodes_target_us: number("--few-decodes-target-us", 125_000),
                target_tokens: number("--target-tokens", 6144),
                tokens_per_decode: number("--tokens-per-decode", 48),
                max_us: number("--max-us", 150_000),
                slow_max_us: number("--slow-max-us", 300_000),
                row_multiple: number("--row-multiple", 256),
                large_row_multiple: number("--large-row-multiple", 1024),
            }),
            tokens => MixedPrefill::AtMost(tokens),
        },
        enable_prefix_caching: false,
        vocab_size: 32_000,
        ..Config::default()
    };
    let load = argument("--load").unwrap_or_else(|| "mixed".to_owned());
    let trace = std::env::args().any(|argument| argument == "--trace");
    let mut world = World::new(costs, config, trace);
    match load.split_once(':') {
        None if load == "mixed" => {
            let draw = |at: u64, least: u32, most: u32| least + (mix(at) % u64::from(most - least + 1)) as u32;
            for at in 0..512 {
                world.arrive(at * 3, Asked { input: draw(2 * at, 64, 1024), output: draw(2 * at + 1, 64, 512) });
            }
        }
        None if load == "long" => {
            for at in 0..64 {
                world.arrive(at * 100, Asked { input: 256, output: 512 });
            }
            world.arrive(600_000, Asked { input: 65_536, output: 16 });
        }
        Some(("clients", clients)) => {
            let clients: u64 = clients.parse().expect("a number");
            let asked = Asked { input: 1024, output: 256 };
            let count = match clients {
                1 => 5,
                16 => 48,
                64 => 192,
                n => 2 * n,
            };
            (0..clients).for_each(|client| world.arrive(client * 100, asked));
            world.to_come = (clients..count).map(|_| asked).collect();
        }
        _ => panic!("no such load: {load}"),
    }
    world.run();
    world.report(&load);
}

fn argument(name: &str) -> Option<String> {
    std::env::args().skip_while(|argument| argument != name).nth(1)
}
