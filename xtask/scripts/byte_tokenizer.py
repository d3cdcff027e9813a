"""Writes a tokenizer beside a `config.json` that has none: one of bytes, whose other ids are words.

    xtask/scripts/byte_tokenizer.py FOLDER"""

import json
import sys

config = json.load(open(sys.argv[1] + "/config.json"))
prints = [*range(33, 127), *range(161, 173), *range(174, 256)]
others = [byte for byte in range(256) if byte not in prints]
symbols = {byte: chr(byte) for byte in prints} | {byte: chr(256 + place) for place, byte in enumerate(others)}
vocab = {symbols[token] if token < 256 else f"w{token}": token for token in range(config["vocab_size"])}
levels = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
tokenizer = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
    "pre_tokenizer": levels, "post_processor": None, "decoder": levels,
    "model": {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        "vocab": vocab, "merges": [],
    },
}
json.dump(tokenizer, open(sys.argv[1] + "/tokenizer.json", "w"))
json.dump({"tokenizer_class": "PreTrainedTokenizerFast"}, open(sys.argv[1] + "/tokenizer_config.json", "w"))
