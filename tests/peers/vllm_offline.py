"""Measures vLLM's offline engine on the cases that `quire bench cases` takes, and writes the same report.

Run by `cargo xtask gpu-compare`; needs a Python environment with vLLM. Weights and adapters are random, prompts are token ids, draws
are greedy, nothing is turned into text, and no prefix is found again. Flags of vLLM's engine are taken as `vllm serve` takes them.
"""

import time

START = time.perf_counter()

import argparse
import json
import os
from multiprocessing import get_context

import peer_cases

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")


def arguments():
    from vllm import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(description=__doc__)
    parser.add_argument("--cases", required=True, help="JSON lines, as `quire bench cases --help` says")
    parser.add_argument("--output-jsonl", required=True, help="a JSON line for each case is appended to this file")
    EngineArgs.add_cli_args(parser)
    parser.set_defaults(load_format="dummy", dtype="bfloat16", skip_tokenizer_init=True, enable_prefix_caching=False)
    args = parser.parse_args()
    args.disable_log_stats = True
    return args, EngineArgs.from_cli_args(args)


def write_adapter(folder, config, rank):
    """Writes a random PEFT adapter on all linear layers of a decoder of Llama's kind. bfloat16, A [rank, inputs], B [outputs, rank]."""
    import torch
    from safetensors.torch import save_file

    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    head = config.get("head_dim") or hidden // heads
    keys = head * config.get("num_key_value_heads", heads)
    layers = {
        "self_attn.q_proj": (hidden, head * heads),
        "self_attn.k_proj": (hidden, keys),
        "self_attn.v_proj": (hidden, keys),
        "self_attn.o_proj": (head * heads, hidden),
        "mlp.gate_proj": (hidden, inner),
        "mlp.up_proj": (hidden, inner),
        "mlp.down_proj": (inner, hidden),
    }
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, (inputs, outputs) in layers.items():
            prefix = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{prefix}.lora_A.weight"] = (torch.randn(rank, inputs) / inputs**0.5).bfloat16()
            tensors[f"{prefix}.lora_B.weight"] = (torch.randn(outputs, rank) / 100).bfloat16()
    os.makedirs(folder, exist_ok=True)
    save_file(tensors, os.path.join(folder, "adapter_model.safetensors"))
    modules = [name.split(".")[1] for name in layers]
    with open(os.path.join(folder, "adapter_config.json"), "w") as file:
        json.dump({"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": modules, "bias": "none"}, file)


def main():
    args, engine_args = arguments()

    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    # One folder under many numbers: to the engine they are different adapters. Written by a process of its own: the
    # engine is forked from this one, and waits forever for the threads that PyTorch's products have started here.
    adapters = os.path.join(args.model, "adapter")
    if args.enable_lora:
        with open(os.path.join(args.model, "config.json")) as file:
            config = json.load(file)
        writer = get_context("spawn").Process(target=write_adapter, args=(adapters, config, args.max_lora_rank))
        writer.start()
        writer.join()
        if writer.exitcode:
            raise SystemExit(f"{adapters} could not be written")
    engine = LLM.from_engine_args(engine_args)

    def generate(prompts, lengths, adapter_count):
        params = [SamplingParams(temperature=0.0, max_tokens=n, min_tokens=n, ignore_eos=True, detokenize=False) for n in lengths]
        numbers = [i % adapter_count + 1 for i in range(len(lengths))] if adapter_count else []
        loras = [LoRARequest(f"a{n}", n, adapters) for n in numbers] or None
        prompts = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = engine.generate(prompts, params, use_tqdm=False, lora_request=loras)
        return [len(output.outputs[0].token_ids) for output in outputs]

    peer_cases.measure(generate, peer_cases.read(args.cases), args.model, args.output_jsonl, START)


if __name__ == "__main__":
    main()
