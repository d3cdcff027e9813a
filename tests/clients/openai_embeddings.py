"""Embeddings with the official OpenAI client, unmodified. Arguments: base URL, key."""

import math
import sys

import openai

base, key = sys.argv[1], sys.argv[2]
client = openai.OpenAI(base_url=f"{base}/v1", api_key=key)
model = client.models.list().data[0].id

texts = ["The cat sat on the mat.", "Stocks fell today.", "The cat sat on the mat."]
# The client asks for base64 unless told otherwise, and decodes it.
answer = client.embeddings.create(model=model, input=texts)
assert [entry.index for entry in answer.data] == [0, 1, 2], answer
assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0, answer.usage
vectors = [entry.embedding for entry in answer.data]
assert vectors[0] == vectors[2] != vectors[1]
assert all(abs(math.fsum(x * x for x in vector) - 1) < 1e-4 for vector in vectors)

plain = client.embeddings.create(model=model, input=texts[1], encoding_format="float").data[0].embedding
assert len(plain) == len(vectors[1])
assert all(abs(a - b) < 1e-6 for a, b in zip(plain, vectors[1]))

try:
    client.embeddings.create(model=model, input=texts, dimensions=3)
    raise SystemExit("this model's embeddings cannot be cut")
except openai.BadRequestError as error:
    assert error.param == "dimensions", error
try:
    client.chat.completions.create(model=model, messages=[{"role": "user", "content": "x"}])
    raise SystemExit("a model that pools generates nothing")
except openai.BadRequestError as error:
    assert "/v1/embeddings" in error.message, error
