"""A vector search over 10,000 texts: embeddings from a server, kept and searched by SQLite with sqlite-vec.

Arguments: base URL, key. Needs the packages apsw (an SQLite that loads extensions), openai and sqlite-vec.
"""

import itertools
import sys

import apsw
import sqlite_vec
from openai import OpenAI
from sqlite_vec import serialize_float32

base, key = sys.argv[1], sys.argv[2]
client = OpenAI(base_url=f"{base}/v1", api_key=key)
model = client.models.list().data[0].id

WHO = "A cat|A dog|The baker|A sailor|My neighbour|The robot|A student|The queen|A nurse|The gardener".split("|")
DOES = "repairs|paints|sells|forgets|carries|studies|hides|washes|photographs|measures".split("|")
WHAT = "a bicycle|the bread|an engine|a poem|the roof|a violin|two apples|the map|a letter|the moon".split("|")
WHERE = "at night|in Paris|on a boat|in a storm|in the kitchen|at school|under a bridge|on Monday|in silence|for us"
texts = [" ".join(parts) + "." for parts in itertools.product(WHO, DOES, WHAT, WHERE.split("|"))]
assert len(texts) == 10_000


def embed(inputs):
    return [entry.embedding for entry in client.embeddings.create(model=model, input=inputs).data]


width = len(embed("How wide is a vector?")[0])
database = apsw.Connection(":memory:")
database.enable_load_extension(True)
database.load_extension(sqlite_vec.loadable_path())
database.execute(f"create virtual table texts using vec0(embedding float[{width}] distance_metric=cosine)")
BATCH = 250
for start in range(0, len(texts), BATCH):
    batch = embed(texts[start : start + BATCH])
    rows = ((start + place, serialize_float32(vector)) for place, vector in enumerate(batch))
    database.executemany("insert into texts(rowid, embedding) values (?, ?)", rows)


def search(query, count=5):
    found = database.execute(
        "select rowid, distance from texts where embedding match ? and k = ? order by distance",
        (serialize_float32(embed(query)[0]), count),
    )
    return [(texts[row], distance) for row, distance in found]


for place in (0, 4_321, 9_999):
    text, distance = search(texts[place])[0]
    assert text == texts[place] and distance < 1e-3, (texts[place], text, distance)
for text, distance in search("Who mends a bike after dark?"):
    print(f"{distance:.3f}  {text}")
