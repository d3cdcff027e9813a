"""Measures SGLang's offline engine on the cases that `quire bench cases` takes, and writes the same report.

Run by `cargo xtask gpu-compare --sides sglang`; needs a Python environment with SGLang 0.5. Weights are random, prompts are token ids,
draws are greedy, nothing is turned into text, and no prefix is found again. The limits that both sides are told have vLLM's names;
all other flags are taken as SGLang's server takes them.
"""

import time

START = time.perf_counter()

import argparse
import os

import peer_cases

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def arguments():
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", required=True, help="JSON lines, as `quire bench cases --help` says")
    parser.add_argument("--output-jsonl", required=True, help="a JSON line for each case is appended to this file")
    parser.add_argument("--max-model-len", type=int, required=True, help="SGLang's --context-length")
    parser.add_argument("--max-num-seqs", type=int, required=True, help="SGLang's --max-running-requests, and graphs up to it")
    parser.add_argument("--max-num-batched-tokens", type=int, required=True, help="SGLang's --chunked-prefill-size and --max-prefill-tokens")
    parser.add_argument("--gpu-memory-utilization", type=float, required=True, help="SGLang's --mem-fraction-static")
    ServerArgs.add_cli_args(parser)
    parser.set_defaults(load_format="dummy", dtype="bfloat16", skip_tokenizer_init=True, disable_radix_cache=True, log_level="warning")
    args = parser.parse_args()
    args.context_length = args.max_model_len
    args.max_running_requests = args.cuda_graph_max_bs_decode = args.max_num_seqs
    args.chunked_prefill_size = args.max_prefill_tokens = args.max_num_batched_tokens
    args.mem_fraction_static = args.gpu_memory_utilization
    return args, ServerArgs.from_cli_args(args)


def main():
    args, server_args = arguments()

    from sglang.srt.entrypoints.engine import Engine

    engine = Engine(server_args=server_args)

    def generate(prompts, lengths, adapters):
        if adapters:
            raise SystemExit("adapters are not measured here")
        params = [{"temperature": 0.0, "max_new_tokens": n, "ignore_eos": True} for n in lengths]
        outputs = engine.generate(input_ids=prompts, sampling_params=params)
        return [len(output["output_ids"]) for output in outputs]

    peer_cases.measure(generate, peer_cases.read(args.cases), args.model_path, args.output_jsonl, START)
    engine.shutdown()


if __name__ == "__main__":
    main()
