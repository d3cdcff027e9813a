"""How fast a server on CPUs embeds texts, beside ONNX Runtime and llama.cpp: all of the same BERT, on as many threads.

    pip install gguf llama-cpp-python numpy onnx onnxruntime tokenizers   # llama-cpp-python builds for this machine
    python cpu_embeddings.py --make large --folder FOLDER --tokenizer BERT/tokenizer.json   # random weights
    python cpu_embeddings.py --base http://127.0.0.1:8000 --folder FOLDER --gguf f32 --tokens 64 512 --counts 1 32 1024

The server is asked over HTTP, the two libraries in this process; each is given texts, so tokens are made by all. They take turns. A
`count` is one request, or one call, of as many texts. ONNX Runtime takes 2,048 tokens at a time, and llama.cpp 512, which is faster than all
at once.
"""

import argparse
import base64
import json
import os
import pathlib
import random
import statistics
import sys
import time
import urllib.request

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "clients"))
SHAPES = {"minilm": (6, 12, 384, 1536), "large": (24, 16, 1024, 4096)}


def make(shape, folder, tokenizer):
    """A folder with random weights and a tokenizer that exists."""
    layers, heads, hidden, inner = SHAPES[shape]
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["BertModel"], "hidden_act": "gelu", "hidden_size": hidden, "intermediate_size": inner,
        "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "bert", "num_attention_heads": heads,
        "num_hidden_layers": layers, "pad_token_id": 0, "type_vocab_size": 2, "vocab_size": 30522,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    kinds = ["Transformer", "Pooling", "Normalize"]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in zip(kinds, paths)]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    shapes = {"embeddings.word_embeddings.weight": (30522, hidden), "embeddings.token_type_embeddings.weight": (2, hidden)}
    shapes |= {"embeddings.position_embeddings.weight": (512, hidden), **norm("embeddings.LayerNorm", hidden)}
    for layer in (f"encoder.layer.{index}" for index in range(layers)):
        for part in ("query", "key", "value"):
            shapes |= linear(f"{layer}.attention.self.{part}", hidden, hidden)
        shapes |= linear(f"{layer}.attention.output.dense", hidden, hidden)
        shapes |= norm(f"{layer}.attention.output.LayerNorm", hidden)
        shapes |= linear(f"{layer}.intermediate.dense", inner, hidden) | linear(f"{layer}.output.dense", hidden, inner)
        shapes |= norm(f"{layer}.output.LayerNorm", hidden)
    write(folder / "model.safetensors", shapes)


def linear(name, rows, cols):
    return {f"{name}.weight": (rows, cols), f"{name}.bias": (rows,)}


def norm(name, width):
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def write(file, shapes):
    rng, header, start = np.random.default_rng(0), {}, 0
    for name, shape in shapes.items():
        end = start + 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    with open(file, "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            values = rng.standard_normal(shape, np.float32) / 50
            out.write((values + 1 if name.endswith("LayerNorm.weight") else values).tobytes())


def write_gguf(folder, file, kind):
    """The folder's model as llama.cpp reads it; matrices are stored as `kind`."""
    import gguf
    from onnx_bert import tensors

    config = json.loads((folder / "config.json").read_text())
    out = gguf.GGUFWriter(file, "bert")
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_block_count(config["num_hidden_layers"])
    out.add_head_count(config["num_attention_heads"])
    out.add_layer_norm_eps(config["layer_norm_eps"])
    out.add_causal_attention(False)
    out.add_pooling_type(gguf.PoolingType.MEAN)
    vocab = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    words = sorted(vocab, key=vocab.get)
    special = [word.startswith("[") and word.endswith("]") for word in words]
    spelled = [word[2:] if word.startswith("##") else word if odd else "\u2581" + word for word, odd in zip(words, special)]
    out.add_tokenizer_model("bert")
    out.add_tokenizer_pre("default")
    out.add_token_list(spelled)
    out.add_token_types([gguf.TokenType.CONTROL if odd else gguf.TokenType.NORMAL for odd in special])
    out.add_token_type_count(config["type_vocab_size"])
    for add, word in [
        (out.add_bos_token_id, "[CLS]"), (out.add_sep_token_id, "[SEP]"),
        (out.add_eos_token_id, "[SEP]"), (out.add_unk_token_id, "[UNK]"), (out.add_pad_token_id, "[PAD]"),
    ]:  # fmt: skip
        add(vocab[word])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, config["num_hidden_layers"])
    stored = gguf.GGMLQuantizationType[kind.upper()]
    for name, values in tensors(folder / "model.safetensors"):
        called = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if called is None:
            continue
        is_matrix = values.ndim == 2 and not called.startswith(("position_embd", "token_types"))
        as_type = stored if is_matrix else gguf.GGMLQuantizationType.F32
        out.add_tensor(called, gguf.quants.quantize(values, as_type), raw_dtype=as_type)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


class Server:
    name = "Quire"

    def __init__(self, base):
        self.base = base

    def embed(self, texts):
        body = json.dumps({"input": texts, "encoding_format": "base64"}).encode()
        request = urllib.request.Request(f"{self.base}/v1/embeddings", body, {"Content-Type": "application/json"})
        data = json.load(urllib.request.urlopen(request))["data"]
        return np.array([np.frombuffer(base64.b64decode(one["embedding"]), np.float32) for one in data])


class Onnx:
    name = "ONNX Runtime"

    def __init__(self, folder, threads):
        from onnx_bert import Bert

        self.bert = Bert(folder, threads)

    def embed(self, texts):
        batch = max(1, 2048 // (len(texts[0].split()) + 2))
        return np.concatenate([self.bert.embed(texts[at : at + batch]) for at in range(0, len(texts), batch)])


class LlamaCpp:
    def __init__(self, folder, kind, threads):
        from llama_cpp import Llama

        file = folder / f"model-{kind}.gguf"
        if not file.exists():
            write_gguf(folder, file, kind)
        self.name = f"llama.cpp, {kind}"
        self.model = Llama(
            str(file), embedding=True, n_ctx=0, n_batch=512, n_ubatch=512, n_threads=threads, n_threads_batch=threads, verbose=False
        )

    def embed(self, texts):
        return np.array(self.model.embed(texts, normalize=True), np.float32)


def words_of(folder):
    """Words that are one token."""
    vocab = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    return sorted(word for word in vocab if word.isascii() and word.isalpha() and word.islower())


def texts_of(words, count, tokens, rng):
    """Texts of as many tokens each, with those that the tokenizer adds."""
    return [" ".join(rng.choices(words, k=tokens - 2)) for _ in range(count)]


def compare(sides, words, tokens, count, args):
    """Each side for its seconds, one after the other: threads of the libraries go on spinning for a while after a call."""
    times, rng = {side.name: [] for side in sides}, random.Random(tokens * count)
    texts = [texts_of(words, count, tokens, rng) for _ in range(4)]
    for side in sides * args.rounds:
        time.sleep(0.3)
        taken = []
        while sum(taken) < args.seconds:
            start = time.perf_counter()
            side.embed(texts[len(taken) % len(texts)])
            taken.append(time.perf_counter() - start)
        times[side.name] += taken
    for name, taken in times.items():
        median = statistics.median(taken)
        print(f"{tokens:4} tokens, {count:4} at once, {name:16} {count / median:9.2f} texts/s  p50 {median * 1e3:10.2f} ms  of {len(taken)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--make", choices=SHAPES)
    parser.add_argument("--tokenizer", type=pathlib.Path, help="a BERT's tokenizer.json, with --make")
    parser.add_argument("--base")
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--gguf", nargs="*", default=[], help="types of llama.cpp's matrices: f32, f16, bf16, q8_0")
    parser.add_argument("--without-onnx", action="store_true")
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 32, 1024])
    parser.add_argument("--seconds", type=float, default=3, help="of each side, a round")
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    if args.make:
        return make(args.make, args.folder, args.tokenizer)
    threads = len(os.sched_getaffinity(0))
    sides = [Server(args.base)] if args.base else []
    sides += [] if args.without_onnx else [Onnx(args.folder, threads)]
    sides += [LlamaCpp(args.folder, kind, threads) for kind in args.gguf]
    words, rng = words_of(args.folder), random.Random(0)
    texts = texts_of(words, 3, 40, rng) + texts_of(words, 1, 9, rng)
    vectors = [side.embed(texts) for side in sides]
    for side, other in zip(sides[1:], vectors[1:]):
        print(f"least cosine of {sides[0].name} and {side.name}: {(vectors[0] * other).sum(1).min():.6f}")
    for tokens in args.tokens:
        for count in args.counts:
            compare(sides, words, tokens, count, args)


main()
