"""Embeddings of a server beside those of ONNX Runtime, which runs the same BERT from a graph that is built here.

Arguments: base URL, folder of the model (mean pooling, or SPLADE). Needs numpy, onnx, onnxruntime and tokenizers.
"""

import json
import sys
import urllib.request

import numpy as np
from onnx_bert import Bert

base, folder = sys.argv[1:]
texts = ["The cat sat on the mat.", "x", "Späte Züge, ein Café und 42 %.", "a rather longer text " * 20]
body = json.dumps({"input": texts}).encode()
request = urllib.request.Request(f"{base}/v1/embeddings", body, {"Content-Type": "application/json"})
answer = json.load(urllib.request.urlopen(request))
for text, entry, wanted in zip(texts, answer["data"], Bert(folder).embed(texts)):
    got = np.array(entry["embedding"])
    cosine = float(got @ wanted / np.linalg.norm(got) / np.linalg.norm(wanted))
    print(f"{cosine:.9f}  {text[:40]}")
    assert cosine >= 0.9999, (text, cosine)
