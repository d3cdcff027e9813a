"""Embeddings of a server beside those of ONNX Runtime, which runs the same BERT from a graph that is built here.

Arguments: base URL, folder of the model (mean pooling); with a third argument, also how fast ONNX Runtime is: texts a
second, one text at a time and 32 at once, and the median of one. Needs numpy, onnx, onnxruntime and tokenizers.
"""

import json
import pathlib
import statistics
import sys
import time
import urllib.request

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer

base, folder = sys.argv[1], pathlib.Path(sys.argv[2])
texts = ["The cat sat on the mat.", "x", "Späte Züge, ein Café und 42 %.", "a rather longer text " * 20]
config = json.loads((folder / "config.json").read_text())
LAYERS, HEADS, HIDDEN = (config[key] for key in ("num_hidden_layers", "num_attention_heads", "hidden_size"))
EPS = config["layer_norm_eps"]


def tensors(path):
    data = path.read_bytes()
    header = int.from_bytes(data[:8], "little")
    entries = json.loads(data[8 : 8 + header])
    entries.pop("__metadata__", None)
    for name, entry in entries.items():
        start, end = (8 + header + offset for offset in entry["data_offsets"])
        if entry["dtype"] == "F32":
            yield name.removeprefix("bert."), np.frombuffer(data[start:end], np.float32).reshape(entry["shape"])


class Graph:
    """An ONNX graph that grows node by node; a node is called as its output."""

    def __init__(self):
        self.nodes, self.constants = [], []

    def node(self, kind, *inputs, **attributes):
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, name, values):
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def linear(self, x, name):
        weight = self.constant(name + ".weight", weights[name + ".weight"].T)
        return self.node("Add", self.node("MatMul", x, weight), self.constant(name + ".bias", weights[name + ".bias"]))

    def norm(self, x, name):
        scale, bias = (self.constant(name + end, weights[name + end]) for end in (".weight", ".bias"))
        return self.node("LayerNormalization", x, scale, bias, axis=-1, epsilon=EPS)

    def heads(self, x, order):
        split = self.node("Reshape", x, "split")
        return self.node("Transpose", split, perm=order)

    def attention(self, x, layer):
        query, key, value = (self.linear(x, f"{layer}.self.{part}") for part in ("query", "key", "value"))
        scores = self.node("MatMul", self.heads(query, [0, 2, 1, 3]), self.heads(key, [0, 2, 3, 1]))
        scores = self.node("Add", self.node("Div", scores, "root"), "hidden")
        mixed = self.node("MatMul", self.node("Softmax", scores, axis=-1), self.heads(value, [0, 2, 1, 3]))
        mixed = self.node("Reshape", self.node("Transpose", mixed, perm=[0, 2, 1, 3]), "join")
        return self.norm(self.node("Add", x, self.linear(mixed, f"{layer}.output.dense")), f"{layer}.output.LayerNorm")

    def gelu(self, x):
        erf = self.node("Erf", self.node("Div", x, "two"))
        return self.node("Mul", self.node("Mul", x, self.node("Add", erf, "one")), "half")


def build():
    graph, table = Graph(), "embeddings.word_embeddings.weight"
    for name, values in [("split", [0, 0, HEADS, HIDDEN // HEADS]), ("join", [0, 0, HIDDEN])]:
        graph.constant(name, np.array(values, np.int64))
    scalars = {"root": (HIDDEN // HEADS) ** 0.5, "two": 2**0.5, "one": 1, "half": 0.5}
    for name, value in scalars.items():
        graph.constant(name, np.array(value, np.float32))
    positions = weights["embeddings.position_embeddings.weight"] + weights["embeddings.token_type_embeddings.weight"][0]
    x = graph.node("Gather", graph.constant(table, weights[table]), "ids")
    x = graph.node("Add", x, graph.node("Gather", graph.constant("positions", positions), "places"))
    x = graph.norm(x, "embeddings.LayerNorm")
    for index in range(LAYERS):
        layer = f"encoder.layer.{index}"
        x = graph.attention(x, f"{layer}.attention")
        inner = graph.gelu(graph.linear(x, f"{layer}.intermediate.dense"))
        x = graph.norm(graph.node("Add", x, graph.linear(inner, f"{layer}.output.dense")), f"{layer}.output.LayerNorm")
    inputs = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["texts", "tokens"]),
        helper.make_tensor_value_info("places", TensorProto.INT64, ["tokens"]),
        helper.make_tensor_value_info("hidden", TensorProto.FLOAT, ["texts", 1, 1, "tokens"]),
    ]
    output = helper.make_tensor_value_info(x, TensorProto.FLOAT, ["texts", "tokens", HIDDEN])
    model = helper.make_model(
        helper.make_graph(graph.nodes, "bert", inputs, [output], graph.constants),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


weights = dict(tensors(folder / "model.safetensors"))
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
tokenizer.no_padding()
tokenizer.no_truncation()
session = build()


def expected(batch):
    """Means over tokens; shorter texts of a batch are padded."""
    encoded = [tokenizer.encode(text).ids for text in batch]
    longest = max(map(len, encoded))
    ids = np.array([one + [0] * (longest - len(one)) for one in encoded], np.int64)
    mask = np.array([[1.0] * len(one) + [0.0] * (longest - len(one)) for one in encoded], np.float32)
    hidden = np.where(mask > 0, 0.0, -1e9).astype(np.float32)[:, None, None, :]
    rows = session.run(None, {"ids": ids, "places": np.arange(longest), "hidden": hidden})[0]
    means = (rows * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
    return means / np.linalg.norm(means, axis=1, keepdims=True)


body = json.dumps({"input": texts}).encode()
request = urllib.request.Request(f"{base}/v1/embeddings", body, {"Content-Type": "application/json"})
answer = json.load(urllib.request.urlopen(request))
for text, entry, wanted in zip(texts, answer["data"], expected(texts)):
    got = np.array(entry["embedding"])
    cosine = float(got @ wanted / np.linalg.norm(got))
    print(f"{cosine:.9f}  {text[:40]}")
    assert cosine >= 0.9999, (text, cosine)

if len(sys.argv) > 3:
    text = "word " * int(sys.argv[3])
    for count in (1, 32):
        times = []
        while sum(times) < 10 or len(times) < 5:
            start = time.perf_counter()
            expected([text] * count)
            times.append(time.perf_counter() - start)
        median = statistics.median(times)
        print(f"ONNX Runtime, {count} at once: {count / median:.1f} texts/s, median {median * 1e3:.2f} ms")
