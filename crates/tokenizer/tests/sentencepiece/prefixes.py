"""Records what transformers makes of texts that begin with spaces or special tokens, by class and configuration of a `tokenizer.model`.

Left out on purpose: `legacy: true` of Llama's class, where Quire does as SentencePiece does, and a user-defined symbol that begins a text.

    pip install transformers sentencepiece protobuf && python prefixes.py
"""
import base64, json, os, tempfile
import transformers

TEXTS = ["", " ", "  ", "a", " a", "  a", "a ", " a ", "  a  b  ", "\n", "\n a", " \na", "\ta", "▁a", "▁▁a", "The model", " The  model",
         "<s>", "<s>a", "<s> a", "a<s>b", "a <s> b", "a</s>  b", "<s></s>a", " <s>a", "a<tool>b", "a <tool> b", " <tool>a", "  <tool> a", "<s>a<tool> b</s> a"]
CONFIGS = [{"tokenizer_class": "LlamaTokenizer"}, {"tokenizer_class": "LlamaTokenizer", "legacy": False},
           {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False}, {"tokenizer_class": "CodeLlamaTokenizer", "legacy": True},
           {"tokenizer_class": "InternLMTokenizer"}, {"tokenizer_class": "InternLMTokenizer", "legacy": False},
           {"tokenizer_class": "InternLMTokenizer", "add_prefix_space": False}]

model = base64.b64decode(json.load(open("bpe-prefix.json"))["model"])
cases = []
for config in CONFIGS:
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"} | config
    with tempfile.TemporaryDirectory() as dir:
        open(os.path.join(dir, "tokenizer.model"), "wb").write(model)
        json.dump(config, open(os.path.join(dir, "tokenizer_config.json"), "w"))
        json.dump({"model_type": "llama" if "Llama" in config["tokenizer_class"] else "other"}, open(os.path.join(dir, "config.json"), "w"))
        tokenizer = transformers.AutoTokenizer.from_pretrained(dir)
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]
    cases.append({"config": config, "ids": ids, "decoded": [tokenizer.decode(row) for row in ids]})
out = {"made_with": f"transformers {transformers.__version__}", "texts": TEXTS, "cases": cases}
open("prefixes.json", "w").write(json.dumps(out, ensure_ascii=True, separators=(",", ":")) + "\n")
