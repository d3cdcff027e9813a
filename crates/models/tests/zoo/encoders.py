"""Writes encoders.json: small encoders computed by numpy, each as its class is defined, for encoders.rs.

Weights are a formula of the tensor's place in the list and the element's, so that the file holds names and shapes
alone.
"""

import json, math
import numpy as np

H, HEADS, LAYERS, VOCAB, LEN = 16, 2, 2, 20, 32
TOKENS = [3, 17, 5, 5, 11, 0, 8]


def values(place, name, shape):
    n = int(np.prod(shape))
    v = np.array([math.sin((i + 1) * (0.7 + 0.13 * place) + 0.01 * i * i) for i in range(n)]) * 0.3
    norm = len(shape) == 1 and name.endswith("weight")
    return (1 + v if norm else v).astype(np.float32).astype(np.float64).reshape(shape)


def layer_norm(x, w, name, eps=1e-12):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w[name + ".weight"] + w[name + ".bias"]


def linear(x, w, name):
    y = x @ w[name + ".weight"].T
    return y + w[name + ".bias"] if name + ".bias" in w else y


gelu = np.vectorize(lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))))
silu = lambda x: x / (1 + np.exp(-x))


def rotate(x, inv):
    angles = np.outer(np.arange(len(x)), inv)
    cos, sin = np.cos(angles), np.sin(angles)
    a, b = x[:, : len(inv)], x[:, len(inv) :]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def attention(q, k, v, inv=None, slopes=None):
    d, out, place = H // HEADS, [], np.arange(len(q))
    for h in range(HEADS):
        a, b, c = (x[:, h * d : (h + 1) * d] for x in (q, k, v))
        if inv is not None:
            a, b = rotate(a, inv), rotate(b, inv)
        s = a @ b.T / math.sqrt(d)
        if slopes is not None:
            s = s - slopes[h] * abs(place[:, None] - place[None, :])
        p = np.exp(s - s.max(-1, keepdims=True))
        out.append(p / p.sum(-1, keepdims=True) @ c)
    return np.concatenate(out, -1)


def inverse(theta):
    return theta ** (-np.arange(0, H // HEADS, 2) / (H // HEADS))


def shapes(*lines):
    """`name: out in` is a matrix, with a bias where a + follows; `name: n` a norm."""
    found = []
    for line in lines:
        name, sizes = line.split(":")
        sizes = sizes.split()
        bias = sizes[-1] == "+"
        shape = [int(s) for s in sizes if s != "+"]
        found.append([name + ".weight", shape])
        if bias or len(shape) == 1:
            found.append([name + ".bias", shape[:1]])
    return found


def layers(prefix, *lines):
    return [f"{prefix}.{i}.{line}" for i in range(LAYERS) for line in lines]


def distilbert(w):
    e = "embeddings."
    x = w[e + "word_embeddings.weight"][TOKENS] + w[e + "position_embeddings.weight"][: len(TOKENS)]
    x = layer_norm(x, w, e + "LayerNorm")
    for i in range(LAYERS):
        l = f"transformer.layer.{i}."
        q, k, v = (linear(x, w, l + f"attention.{n}_lin") for n in "qkv")
        x = layer_norm(x + linear(attention(q, k, v), w, l + "attention.out_lin"), w, l + "sa_layer_norm")
        y = linear(gelu(linear(x, w, l + "ffn.lin1")), w, l + "ffn.lin2")
        x = layer_norm(x + y, w, l + "output_layer_norm")
    return x


def nomic(w):
    x = w["embeddings.word_embeddings.weight"][TOKENS] + w["embeddings.token_type_embeddings.weight"][0]
    x = layer_norm(x, w, "emb_ln")
    for i in range(LAYERS):
        l = f"encoder.layers.{i}."
        q, k, v = np.split(linear(x, w, l + "attn.Wqkv"), 3, -1)
        y = linear(attention(q, k, v, inv=inverse(1000.0)), w, l + "attn.out_proj")
        x = layer_norm(x + y, w, l + "norm1")
        y = linear(x, w, l + "mlp.fc11") * silu(linear(x, w, l + "mlp.fc12"))
        x = layer_norm(x + linear(y, w, l + "mlp.fc2"), w, l + "norm2")
    return x


def gte(w):
    x = w["embeddings.word_embeddings.weight"][TOKENS] + w["embeddings.token_type_embeddings.weight"][0]
    x = layer_norm(x, w, "embeddings.LayerNorm")
    factor, dim = 2.0, H // HEADS
    inv = inverse(500.0 * factor) / factor ** (2 / dim)
    for i in range(LAYERS):
        l = f"encoder.layer.{i}."
        q, k, v = np.split(linear(x, w, l + "attention.qkv_proj"), 3, -1)
        x = layer_norm(x + linear(attention(q, k, v, inv=inv), w, l + "attention.o_proj"), w, l + "attn_ln")
        up, gate = np.split(linear(x, w, l + "mlp.up_gate_proj"), 2, -1)
        x = layer_norm(x + linear(gelu(gate) * up, w, l + "mlp.down_proj"), w, l + "mlp_ln")
    return x


def jina(w):
    e = "embeddings."
    x = w[e + "word_embeddings.weight"][TOKENS] + w[e + "token_type_embeddings.weight"][0]
    x = layer_norm(x, w, e + "LayerNorm")
    slopes = [2.0 ** (-8 * (h + 1) / HEADS) for h in range(HEADS)]
    for i in range(LAYERS):
        l = f"encoder.layer.{i}."
        q, k, v = (linear(x, w, l + "attention.self." + n) for n in ("query", "key", "value"))
        y = linear(attention(q, k, v, slopes=slopes), w, l + "attention.output.dense")
        x = layer_norm(x + y, w, l + "attention.output.LayerNorm")
        gate, up = np.split(linear(x, w, l + "mlp.gated_layers"), 2, -1)
        x = layer_norm(x + linear(gelu(gate) * up, w, l + "mlp.wo"), w, l + "mlp.layernorm")
    return x


SIZES = {"hidden_size": H, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "vocab_size": VOCAB,
         "intermediate_size": 24, "max_position_embeddings": LEN, "hidden_act": "gelu", "type_vocab_size": 2}
E = "embeddings."
CASES = [
    (distilbert, {"architectures": ["DistilBertModel"], "dim": H, "n_heads": HEADS, "n_layers": LAYERS,
                  "hidden_dim": 24, "vocab_size": VOCAB, "max_position_embeddings": LEN, "activation": "gelu"},
     shapes(E + "word_embeddings: 20 16", E + "position_embeddings: 32 16", E + "LayerNorm: 16",
            *layers("transformer.layer", "attention.q_lin: 16 16 +", "attention.k_lin: 16 16 +",
                    "attention.v_lin: 16 16 +", "attention.out_lin: 16 16 +", "sa_layer_norm: 16",
                    "ffn.lin1: 24 16 +", "ffn.lin2: 16 24 +", "output_layer_norm: 16"))),
    (nomic, {"architectures": ["NomicBertModel"], "n_embd": H, "n_head": HEADS, "n_layer": LAYERS, "n_inner": 256,
             "vocab_size": VOCAB, "n_positions": LEN, "max_trained_positions": LEN, "rotary_emb_base": 1000,
             "rotary_emb_fraction": 1.0, "activation_function": "swiglu", "qkv_proj_bias": False,
             "mlp_fc1_bias": False, "mlp_fc2_bias": False, "type_vocab_size": 2, "layer_norm_epsilon": 1e-12,
             "prenorm": False},
     shapes(E + "word_embeddings: 20 16", E + "token_type_embeddings: 2 16", "emb_ln: 16",
            *layers("encoder.layers", "attn.Wqkv: 48 16", "attn.out_proj: 16 16", "norm1: 16", "mlp.fc11: 256 16",
                    "mlp.fc12: 256 16", "mlp.fc2: 16 256", "norm2: 16"))),
    (gte, {**SIZES, "architectures": ["NewModel"], "position_embedding_type": "rope", "rope_theta": 500.0,
           "rope_scaling": {"type": "ntk", "factor": 2.0}, "layer_norm_type": "layer_norm", "pack_qkv": True},
     shapes(E + "word_embeddings: 20 16", E + "token_type_embeddings: 2 16", E + "LayerNorm: 16",
            *layers("encoder.layer", "attention.qkv_proj: 48 16 +", "attention.o_proj: 16 16 +", "attn_ln: 16",
                    "mlp.up_gate_proj: 48 16", "mlp.down_proj: 16 24 +", "mlp_ln: 16"))),
    (jina, {**SIZES, "architectures": ["JinaBertForMaskedLM"], "position_embedding_type": "alibi",
            "feed_forward_type": "geglu"},
     shapes(E + "word_embeddings: 20 16", E + "token_type_embeddings: 2 16", E + "LayerNorm: 16",
            *layers("encoder.layer", "attention.self.query: 16 16 +", "attention.self.key: 16 16 +",
                    "attention.self.value: 16 16 +", "attention.output.dense: 16 16 +",
                    "attention.output.LayerNorm: 16", "mlp.gated_layers: 48 16", "mlp.wo: 16 24 +",
                    "mlp.layernorm: 16"))),
]

cases = []
for forward, config, tensors in CASES:
    weights = {name: values(place, name, shape) for place, (name, shape) in enumerate(tensors)}
    out = forward(weights)
    rows = {"first": out[0], "mean": out.mean(0)}
    rows = {key: [round(float(v), 6) for v in row] for key, row in rows.items()}
    cases.append({"config": config, "tensors": tensors, **rows})
with open(__file__.replace(".py", ".json"), "w") as file:
    lines = ",\n".join(json.dumps(case) for case in cases)
    file.write(f'{{"tokens": {TOKENS}, "cases": [\n{lines}\n]}}\n')
