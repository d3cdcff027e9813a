"""How far loading an adapter holds up streams that run: gaps between tokens with loads beside them and without.

    VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 quire serve MODEL --served-model-name m --enable-lora --max-lora-rank 16
    xtask/scripts/adapters_under_load.py URL MODEL FOLDER [STREAMS] [SECONDS]

MODEL: the folder of the model's `config.json`. FOLDER: where two random adapters of rank 16 for all linear layers of a
Llama are written, and loaded from."""

import http.client
import json
import os
import random
import struct
import sys
import threading
import time
import urllib.parse

RANK = 16
url, model, folder = sys.argv[1:4]
streams, seconds = (int(word) for word in (sys.argv[4:] + ["16", "20"][len(sys.argv) - 4:])[:2])
address = urllib.parse.urlparse(url)


def adapter(name, seed):
    """A PEFT adapter of random numbers in bfloat16."""
    config = json.load(open(os.path.join(model, "config.json")))
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim", hidden // config["num_attention_heads"])
    query, key = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes = {
        "self_attn.q_proj": (hidden, query), "self_attn.k_proj": (hidden, key), "self_attn.v_proj": (hidden, key),
        "self_attn.o_proj": (query, hidden), "mlp.gate_proj": (hidden, inner), "mlp.up_proj": (hidden, inner),
        "mlp.down_proj": (inner, hidden),
    }
    tensors, at = {}, 0
    for layer in range(config["num_hidden_layers"]):
        for module, (inputs, outputs) in shapes.items():
            for matrix, shape in (("A", [RANK, inputs]), ("B", [outputs, RANK])):
                end = at + 2 * shape[0] * shape[1]
                place = f"base_model.model.model.layers.{layer}.{module}.lora_{matrix}.weight"
                tensors[place] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
                at = end
    path = os.path.join(folder, name)
    os.makedirs(path, exist_ok=True)
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": "all-linear"}
    json.dump(settings, open(os.path.join(path, "adapter_config.json"), "w"))
    dice = random.Random(seed)
    some = b"".join(struct.pack("<f", dice.uniform(-0.01, 0.01))[2:] for _ in range(65536))
    header = json.dumps(tensors).encode()
    with open(os.path.join(path, "adapter_model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for begin in range(0, at, len(some)):
            file.write(some[: at - begin])
    return path, at


def post(path, body):
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=120)
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    return connection.getresponse()


def stream(gaps, end):
    """Streams completions one after the other, and notes when each token comes."""
    while time.monotonic() < end:
        body = {"model": "m", "prompt": "once upon a time", "max_tokens": 256, "stream": True, "ignore_eos": True}
        response, before = post("/v1/completions", body), None
        assert response.status == 200, response.read()
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            now = time.monotonic()
            if before is not None:
                gaps.append(now - before)
            before = now


def load(paths, end, loads):
    """Loads an adapter, asks it for a token, and unloads it, by turns."""
    while time.monotonic() < end:
        begin = time.monotonic()
        for name, path in paths:
            for route, body in (
                ("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path}),
                ("/v1/completions", {"model": name, "prompt": "a", "max_tokens": 1}),
                ("/v1/unload_lora_adapter", {"lora_name": name}),
            ):
                response = post(route, body)
                text = response.read()
                assert response.status == 200, text
            loads.append(time.monotonic() - begin)
            begin = time.monotonic()


paths, size = [], 0
for number in range(2):
    path, size = adapter(f"random-{number}", number)
    paths.append((f"random-{number}", path))
for what in ("warm-up", "without loads", "with loads", "without loads", "with loads"):
    gaps, loads, end = [], [], time.monotonic() + (seconds / 4 if what == "warm-up" else seconds)
    threads = [threading.Thread(target=stream, args=(gaps, end)) for _ in range(streams)]
    if what != "without loads":
        threads.append(threading.Thread(target=load, args=(paths, end, loads)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gaps.sort()
    at = [gaps[int(len(gaps) * share)] * 1e3 for share in (0.5, 0.9, 0.99, 0.999)]
    print(f"{what}: {len(gaps)} gaps, ms at 50, 90, 99, 99.9 %: " + ", ".join(f"{gap:.2f}" for gap in at)
          + (f"; {len(loads)} loads of {size / 1e6:.0f} MB" if loads else ""), flush=True)
