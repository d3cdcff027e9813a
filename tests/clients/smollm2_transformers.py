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
model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name).to(torch.float32).eval()
# The file has no head of its own, which not every version of transformers makes of it.
model.lm_head.weight = model.get_input_embeddings().weight
cases = []
for prompt in PROMPTS:
    ids = tokenizer(prompt).input_ids
    said, new, cache = [], ids, None
    with torch.no_grad():
        for _ in range(24):
            step = model(torch.tensor([new]), past_key_values=cache, use_cache=True)
            cache, new = step.past_key_values, [int(step.logits[0, -1].argmax())]
            said += new
    cases.append({"prompt": ids, "tokens": said})
json.dump(cases, sys.stdout)
