"""A BERT for ONNX Runtime, as a graph of its fused operators that is built from the model's folder.

`Bert(folder).embed(texts)` gives one vector a text: the mean over its tokens, of length one, or, of a model with a masked-language head,
SPLADE's. Needs numpy, onnx, onnxruntime and tokenizers.
"""

import json
import math
import pathlib

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer


def tensors(path):
    """Names and float32 tensors of a file."""
    data = memoryview(pathlib.Path(path).read_bytes())
    header = int.from_bytes(data[:8], "little")
    entries = json.loads(bytes(data[8 : 8 + header]))
    entries.pop("__metadata__", None)
    for name, entry in entries.items():
        start, end = (8 + header + offset for offset in entry["data_offsets"])
        if entry["dtype"] == "F32":
            # The first BERTs' norms have a gamma and a beta.
            name = name.removeprefix("bert.").replace(".gamma", ".weight").replace(".beta", ".bias")
            yield name, np.frombuffer(data[start:end], np.float32).reshape(entry["shape"])


class Graph:
    """An ONNX graph that grows node by node; a node is called as its first output."""

    def __init__(self, config, weights):
        self.nodes, self.constants, self.weights = [], [], weights
        self.layers, self.heads, self.hidden, self.eps = (
            config[key] for key in ("num_hidden_layers", "num_attention_heads", "hidden_size", "layer_norm_eps")
        )

    def node(self, kind, *inputs, domain="com.microsoft", **attributes):
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], domain=domain, **attributes))
        return name

    def constant(self, name, values):
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def weight(self, name):
        return self.constant(name, self.weights[name])

    def product(self, x, name):
        return self.node("MatMul", x, self.constant(name + ".weight", self.weights[name + ".weight"].T), domain="")

    def attention(self, x, layer):
        parts = [f"{layer}.attention.self.{part}" for part in ("query", "key", "value")]
        weight = np.concatenate([self.weights[part + ".weight"].T for part in parts], 1)
        bias = np.concatenate([self.weights[part + ".bias"] for part in parts])
        weight, bias = self.constant(layer + ".qkv", weight), self.constant(layer + ".qkv.bias", bias)
        return self.node("Attention", x, weight, bias, "mask", num_heads=self.heads)

    def add_norm(self, x, y, name):
        """The norm of two rows and the bias of the layer that `y` comes from."""
        norm = [self.weight(f"{name}.LayerNorm{end}") for end in (".weight", ".bias")]
        bias = self.weight(f"{name}.dense.bias")
        return self.node("SkipLayerNormalization", y, x, *norm, bias, epsilon=self.eps)

    def bert(self):
        table = self.weight("embeddings.word_embeddings.weight")
        types = self.weights["embeddings.token_type_embeddings.weight"][0]
        places = self.constant("places", self.weights["embeddings.position_embeddings.weight"] + types)
        x = self.node("Gather", table, "ids", domain="")
        x = self.node("Add", x, self.node("Gather", places, "positions", domain=""), domain="")
        norm = [self.weight(f"embeddings.LayerNorm{end}") for end in (".weight", ".bias")]
        x = self.node("LayerNormalization", x, *norm, domain="", axis=-1, epsilon=self.eps)
        for layer in (f"encoder.layer.{index}" for index in range(self.layers)):
            mixed = self.product(self.attention(x, layer), f"{layer}.attention.output.dense")
            x = self.add_norm(x, mixed, f"{layer}.attention.output")
            inner = self.product(x, f"{layer}.intermediate.dense")
            inner = self.node("BiasGelu", inner, self.weight(f"{layer}.intermediate.dense.bias"))
            x = self.add_norm(x, self.product(inner, f"{layer}.output.dense"), f"{layer}.output")
        return x

    def session(self, threads):
        output = helper.make_tensor_value_info(self.bert(), TensorProto.FLOAT, ["texts", "tokens", self.hidden])
        inputs = [
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["texts", "tokens"]),
            helper.make_tensor_value_info("positions", TensorProto.INT64, ["tokens"]),
            helper.make_tensor_value_info("mask", TensorProto.INT32, ["texts", "tokens"]),
        ]
        model = helper.make_model(
            helper.make_graph(self.nodes, "bert", inputs, [output], self.constants),
            opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)],
            ir_version=8,
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


class MaskedHead:
    """Logits of rows: the embedding's matrix after a dense layer."""

    def __init__(self, weights, eps):
        self.weights, self.eps = weights, eps

    def logits(self, rows):
        dense, norm = "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm"
        rows = rows @ self.weights[dense + ".weight"].T + self.weights[dense + ".bias"]
        rows = np.vectorize(lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))))(rows)
        rows = rows - rows.mean(-1, keepdims=True)
        rows = rows / np.sqrt((rows * rows).mean(-1, keepdims=True) + self.eps)
        rows = rows * self.weights[norm + ".weight"] + self.weights[norm + ".bias"]
        return rows @ self.weights["embeddings.word_embeddings.weight"].T + self.weights["cls.predictions.bias"]


class Bert:
    """A BERT that embeds."""

    def __init__(self, folder, threads=0):
        folder = pathlib.Path(folder)
        weights = dict(tensors(folder / "model.safetensors"))
        config = json.loads((folder / "config.json").read_text())
        self.session = Graph(config, weights).session(threads)
        self.head = MaskedHead(weights, config["layer_norm_eps"]) if "cls.predictions.bias" in weights else None
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()

    def embed(self, texts):
        """Shorter texts are padded to the longest."""
        encoded = [one.ids for one in self.tokenizer.encode_batch(texts)]
        longest = max(map(len, encoded))
        ids = np.array([one + [0] * (longest - len(one)) for one in encoded], np.int64)
        mask = np.array([[1] * len(one) + [0] * (longest - len(one)) for one in encoded], np.int32)
        rows = self.session.run(None, {"ids": ids, "positions": np.arange(longest), "mask": mask})[0]
        if self.head:
            logits = np.where(mask[:, :, None] > 0, self.head.logits(rows), 0)
            return np.log1p(np.maximum(logits, 0)).max(1)
        means = (rows * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
        return means / np.linalg.norm(means, axis=1, keepdims=True)
