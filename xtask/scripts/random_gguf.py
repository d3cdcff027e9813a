"""Writes a GGUF with random weights in the shape of a config.json, for timing llama.cpp on the same shape.

    python3 -m pip install gguf numpy
    python3 xtask/scripts/random_gguf.py CONFIG.json OUT.gguf {bf16|f32}
"""

import json
import sys

import gguf
import numpy as np

config, out, dtype = json.load(open(sys.argv[1])), sys.argv[2], sys.argv[3]
kind = {"bf16": gguf.GGMLQuantizationType.BF16, "f32": gguf.GGMLQuantizationType.F32}[dtype]
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


def matrix(name, rows, cols):
    data = (random.standard_normal((rows, cols), dtype=np.float32) / np.sqrt(cols)).astype(np.float32)
    if dtype == "bf16":
        data = (data.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(rows, cols * 2)
    writer.add_tensor(name, data, raw_dtype=kind)


def ones(name):
    writer.add_tensor(name, np.ones(hidden, dtype=np.float32))


matrix("token_embd.weight", vocab, hidden)
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
