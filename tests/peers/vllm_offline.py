"""Measures vLLM's offline engine on the cases that `quire bench cases` takes, and writes the same report.

Run by `cargo xtask gpu-compare`; needs a Python environment with vLLM. Weights are random, prompts are token ids, draws are greedy,
nothing is turned into text, and no prefix is found again.
"""

import time

START = time.perf_counter()

import argparse
import json
import os
import random

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="folder with config.json")
    parser.add_argument("--cases", required=True, help='JSON lines: {"name": "…", "prompts": [[INPUT, OUTPUT], …], "runs": 1, "idle_s": 0}')
    parser.add_argument("--output-jsonl", required=True, help="a JSON line for each case is appended to this file")
    parser.add_argument("--max-model-len", type=int, required=True)
    parser.add_argument("--max-num-seqs", type=int, required=True)
    parser.add_argument("--max-num-batched-tokens", type=int, required=True)
    parser.add_argument("--gpu-memory-utilization", type=float, required=True)
    return parser.parse_args()


def main():
    args = arguments()
    with open(args.cases) as lines:
        cases = [json.loads(line) for line in lines if line.strip()]
    with open(os.path.join(args.model, "config.json")) as config:
        vocab_size = json.load(config)["vocab_size"]

    from vllm import LLM, SamplingParams

    engine = LLM(
        model=args.model,
        load_format="dummy",
        dtype="bfloat16",
        skip_tokenizer_init=True,
        max_model_len=args.max_model_len,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        gpu_memory_utilization=args.gpu_memory_utilization,
        enable_prefix_caching=False,
        disable_log_stats=True,
    )
    ids = random.Random(0)

    def measure(lengths):
        prompts = [{"prompt_token_ids": [ids.randrange(100, min(vocab_size, 10_000)) for _ in range(n)]} for n, _ in lengths]
        params = [
            SamplingParams(temperature=0.0, max_tokens=n, min_tokens=n, ignore_eos=True, detokenize=False) for _, n in lengths
        ]
        start = time.perf_counter()
        outputs = engine.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        counts = [len(output.outputs[0].token_ids) for output in outputs]
        wanted = [n for _, n in lengths]
        if counts != wanted:
            raise SystemExit(f"{sum(counts)} tokens were generated, not {sum(wanted)}")
        return seconds

    def report(name, lengths, seconds):
        line = {
            "name": name,
            "seconds": seconds,
            "input_tokens": sum(n for n, _ in lengths),
            "output_tokens": sum(n for _, n in lengths),
        }
        print(json.dumps(line), flush=True)
        with open(args.output_jsonl, "a") as file:
            file.write(json.dumps(line) + "\n")

    measure([[8, 1]])
    report("startup", [[8, 1]], [time.perf_counter() - START])
    for case in cases:
        time.sleep(case.get("idle_s", 0))
        report(case["name"], case["prompts"], [measure(case["prompts"]) for _ in range(case.get("runs", 1))])


if __name__ == "__main__":
    main()
