"""How fast one sequence runs on CPUs beside llama.cpp, the model alone on both sides: a prompt, then tokens one by one.

    CC=clang CXX=clang++ pip install llama-cpp-python --no-binary llama-cpp-python   # GCC 12 makes AMX products that crash
    python cpu_generation.py --quire target/release/quire --threads 2 MODEL.gguf [QUIRE_MODEL=MODEL.gguf ...] [-- QUIRE'S FLAGS]

Quire is measured by `quire bench cases`, without HTTP; llama.cpp through its C interface, in processes of its own. They take turns. A model
that is written as two is the first to Quire and the second to llama.cpp. Time of the tokens is that of prompt and tokens, less that of the
prompt, so both sides' figures hold everything but drawing.
"""

import argparse
import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time


def llama(path, threads, prompt, tokens, rounds):
    """Seconds of the prompt, and of each token after it: a pair for each round."""
    import llama_cpp as lib

    log = lib.llama_log_callback(lambda level, text, data: None)
    lib.llama_log_set(log, ctypes.c_void_p(0))
    lib.llama_backend_init()
    model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = prompt + tokens + 8, prompt, prompt
    params.n_threads = params.n_threads_batch = threads
    context = lib.llama_init_from_model(model, params)
    size = min(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model)), 10_000)

    def step(ids):
        tokens = (lib.llama_token * len(ids))(*ids)
        if lib.llama_decode(context, lib.llama_batch_get_one(tokens, len(ids))) != 0:
            raise SystemExit(f"llama.cpp does not decode {len(ids)} tokens of {path}")
        lib.llama_synchronize(context)

    taken = []
    for round in range(rounds + 1):
        lib.llama_memory_clear(lib.llama_get_memory(context), True)
        start = time.perf_counter()
        step([(at * 7 + round) % size for at in range(prompt)])
        middle = time.perf_counter()
        for at in range(tokens):
            step([at * 13 % size])
        taken.append((middle - start, (time.perf_counter() - middle) / tokens))
    # The first round reads the file.
    return taken[1:]


def in_process(args, path):
    """The same in a process that ends, so that none of its threads or memory is there when the other side runs."""
    words = [sys.executable, __file__, "--only-llama", path, *lengths(args)]
    return json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)


def lengths(args):
    return [f"--{name}={getattr(args, name)}" for name in ("threads", "prompt", "tokens", "rounds")]


def quire(args, path):
    """The same of Quire."""
    case = {"prompts": [[args.prompt, 1]], "runs": args.rounds}
    more = {"prompts": [[args.prompt, args.tokens + 1]], "runs": args.rounds}
    with tempfile.TemporaryDirectory() as folder:
        cases, out = pathlib.Path(folder, "cases.jsonl"), pathlib.Path(folder, "out.jsonl")
        warm_up = {"name": "warm-up", "prompts": [[args.prompt, 8]]}
        cases.write_text("\n".join(json.dumps(one) for one in (warm_up, {"name": "prompt", **case}, {"name": "tokens", **more})))
        room = ["--max-model-len", str(args.prompt + args.tokens + 8), "--max-num-batched-tokens", str(args.prompt)]
        words = [args.quire, "bench", "cases", path, "--cases", cases, "--output-jsonl", out, "--dtype", "bfloat16", *room]
        words += ["--max-num-seqs", "1", "--no-enable-prefix-caching", *args.flags]
        if pathlib.Path(path).is_dir() and not list(pathlib.Path(path).glob("*.safetensors")):
            words += ["--load-format", "dummy"]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise SystemExit(done.stdout)
        found = {line["name"]: line["seconds"] for line in map(json.loads, out.read_text().splitlines())}
    first = statistics.median(found["prompt"])
    return [(one, (both - first) / args.tokens) for one, both in zip(found["prompt"], found["tokens"])]


def compare(args, model):
    path, _, other = model.partition("=")
    sides = {"Quire": lambda: quire(args, path), "llama.cpp": lambda: in_process(args, other or path)}
    taken = {name: [] for name in sides}
    for name in list(sides) * args.turns:
        taken[name] += sides[name]()
    for name, pairs in taken.items():
        first, each = (sorted(times) for times in zip(*pairs))
        prompt = [args.prompt / seconds for seconds in (statistics.median(first), first[0])]
        tokens = [1 / seconds for seconds in (statistics.median(each), each[0])]
        print(
            f"{pathlib.Path(path if name == 'Quire' else other or path).name:32} {name:10} prompt of {args.prompt}: "
            f"{prompt[0]:7.1f} tok/s (best {prompt[1]:7.1f}), {args.tokens} tokens: {tokens[0]:6.1f} tok/s (best {tokens[1]:6.1f})",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--quire", default="quire", help="the program")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of llama.cpp; Quire takes all there are")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=2, help="of each side in each turn")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--only-llama", action="store_true", help=argparse.SUPPRESS)
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:split])
    args.flags = words[split + 1 :]
    if args.only_llama:
        return print(json.dumps(llama(args.models[0], args.threads, args.prompt, args.tokens, args.rounds)))
    for model in args.models:
        compare(args, model)


main()
