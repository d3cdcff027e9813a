"""Writes a GGUF with random weights in the shape of a config.json, for timing llama.cpp on the same shape.

    python3 -m pip install gguf numpy
    python3 xtask/scripts/random_gguf.py CONFIG.json OUT.gguf TYPE [EMBEDDINGS]

TYPE is bf16, f32, or one of those of `halves` below. EMBEDDINGS is the type of the embeddings, which are the head too,
where it is another.
"""

import json
import sys

import gguf
import numpy as np

config, out, of_layers = json.load(open(sys.argv[1])), sys.argv[2], sys.argv[3]
of_embeddings = sys.argv[4] if len(sys.argv) > 4 else of_layers
# Of packed types: where a block's numbers of 16 bits lie.
halves = {"q4_0": [0], "q4_1": [0, 2], "q8_0": [0]}
halves |= {"q2_k": [80, 82], "q3_k": [108], "q4_k": [0, 2], "q5_k": [0, 2], "q6_k": [208]}
halves |= {"iq2_xxs": [0], "iq2_xs": [0], "iq2_s": [0], "iq3_xxs": [0], "iq3_s": [0], "iq4_nl": [0], "iq4_xs": [0]}
random = np.random.default_rng(0)
hidden, layers, vocab = config["hidden_size"], config["num_hidden_layers"], config["vocab_size"]
heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
head_dim = config.get("head_dim", hidden // heads)
ffn = config["intermediate_size"]

writer = gguf.GGUFWriter(out, "llama")
writer.add_context_length(config["max_position_embeddings"])
writer.add_embedding_length(hidden)
writer.add_block_count(layers)
writer.add_feed_forward_length(ffn)
writer.add_head_count(heads)
writer.add_head_count_kv(kv_heads)
writer.add_key_length(head_dim)
writer.add_value_length(head_dim)
writer.add_rope_dimension_count(head_dim)
writer.add_rope_freq_base(config["rope_theta"])
writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
writer.add_vocab_size(vocab)
writer.add_tokenizer_model("no_vocab")


def blocks(rows, cols, dtype):
    """Random codes whose scales and offsets are small numbers."""
    kind = gguf.GGMLQuantizationType[dtype.upper()]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    data = random.integers(0, 256, (rows, cols // elements, size), dtype=np.uint8)
    for at in halves[dtype]:
        data[:, :, at + 1] = data[:, :, at + 1] & 0x83 | 0x10
    return data.reshape(rows, -1)


def matrix(name, rows, cols, dtype=of_layers):
    kind = gguf.GGMLQuantizationType[dtype.upper()]
    if dtype in halves:
        writer.add_tensor(name, blocks(rows, cols, dtype), raw_dtype=kind)
        return
    data = (random.standard_normal((rows, cols), dtype=np.float32) / np.sqrt(cols)).astype(np.float32)
    if dtype == "bf16":
        data = (data.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(rows, cols * 2)
    writer.add_tensor(name, data, raw_dtype=kind)


def ones(name):
    writer.add_tensor(name, np.ones(hidden, dtype=np.float32))


matrix("token_embd.weight", vocab, hidden, of_embeddings)
ones("output_norm.weight")
for layer in range(layers):
    prefix = f"blk.{layer}."
    ones(prefix + "attn_norm.weight")
    matrix(prefix + "attn_q.weight", heads * head_dim, hidden)
    matrix(prefix + "attn_k.weight", kv_heads * head_dim, hidden)
    matrix(prefix + "attn_v.weight", kv_heads * head_dim, hidden)
    matrix(prefix + "attn_output.weight", hidden, heads * head_dim)
    ones(prefix + "ffn_norm.weight")
    matrix(prefix + "ffn_gate.weight", ffn, hidden)
    matrix(prefix + "ffn_up.weight", ffn, hidden)
    matrix(prefix + "ffn_down.weight", hidden, ffn)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
