"""Greedy tokens of a GGUF file as transformers decodes it, as JSON; nothing where transformers, torch or gguf are not
installed.

Usage: smollm2_transformers.py FILE.gguf
"""

import json
import sys
from pathlib import Path

try:
    import gguf  # noqa: F401
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
except ImportError as missing:
    sys.exit(str(missing))

PROMPTS = ["The capital of France is", "def add(a, b):", "Once upon a time there was"]

path = Path(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
cases = []
for prompt in PROMPTS:
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    said = model.generate(ids, max_new_tokens=24, do_sample=False)[0].tolist()
    cases.append({"prompt": ids[0].tolist(), "tokens": said[ids.shape[1] :]})
json.dump(cases, sys.stdout)
