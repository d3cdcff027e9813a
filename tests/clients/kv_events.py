"""A router's view of the prefix cache, from vLLM's events: arguments are the server, and two ports."""

import json
import sys
import urllib.request

import msgspec
import zmq

SERVER, EVENTS, REPLAY = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
BLOCK = 16
TOPIC = b"kv@engine"


# vLLM's types, as of 0.24: a batch is an array, an event a map.
class Event(msgspec.Struct, tag=True):
    pass


class BlockStored(Event):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(Event):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(Event):
    pass


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


decoder = msgspec.msgpack.Decoder(Batch)
context = zmq.Context()
subscriber = context.socket(zmq.SUB)
subscriber.connect(f"tcp://127.0.0.1:{EVENTS}")
subscriber.setsockopt(zmq.SUBSCRIBE, b"kv@")
other = context.socket(zmq.SUB)
other.connect(f"tcp://127.0.0.1:{EVENTS}")
other.setsockopt(zmq.SUBSCRIBE, b"another topic")


def post(path, body):
    request = urllib.request.Request(SERVER + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


def complete(prompt, **more):
    post("/v1/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0, **more})


live = {}


def batch(wait_ms=20_000):
    if not subscriber.poll(wait_ms):
        return None
    topic, number, payload = subscriber.recv_multipart()
    assert topic == TOPIC, topic
    live[int.from_bytes(number, "big")] = payload
    found = decoder.decode(payload)
    assert found.data_parallel_rank == 0 and found.ts > 1.7e9, found
    return found


def next_event():
    """The next event: batches with one each are all that these requests lead to."""
    (event,) = batch().events
    return event


# A subscription takes a moment: what is published before it arrives is missed.
salt = 0
while not batch(50):
    salt += 1
    complete([9] * BLOCK + [1], cache_salt=f"joining {salt}")
while batch(300):
    pass

prompt = [100 + token for token in range(2 * BLOCK + 5)]
complete(prompt)
first = next_event()
assert isinstance(first, BlockStored), first
assert (first.token_ids, first.block_size) == (prompt[: 2 * BLOCK], BLOCK), first
assert len(first.block_hashes) == 2 and first.parent_block_hash is None, first
assert (first.lora_name, first.extra_keys, first.medium) == (None, [None, None], "GPU"), first
assert (first.group_idx, first.kv_cache_spec_kind) == (0, "full_attention"), first

longer = prompt + list(range(200, 200 + BLOCK))
complete(longer)
second = next_event()
assert second.parent_block_hash == first.block_hashes[-1], (first, second)
assert second.token_ids == longer[2 * BLOCK : 3 * BLOCK], second

complete(prompt, cache_salt="a tenant")
salted = next_event()
assert salted.token_ids == first.token_ids and salted.block_hashes != first.block_hashes, salted
assert salted.extra_keys == [("a tenant",), None], salted

# More than the cache holds: what is removed was stored, and never more is left than there are blocks.
stored = {}
for number in range(12):
    complete([300 + number] + [50 + token for token in range(8 * BLOCK)])
    while found := batch(300):
        for event in found.events:
            if isinstance(event, BlockStored):
                stored.update({block: number for block in event.block_hashes})
            else:
                assert isinstance(event, BlockRemoved), event
                known = [stored.pop(block, None) for block in event.block_hashes]
                assert all(block is not None for block in known) or number < 8, event
assert 48 <= len(stored) <= 64, len(stored)

post("/reset_prefix_cache", {})
assert isinstance(next_event(), AllBlocksCleared)

# Who missed something asks for it: all that is kept, in order, and an end.
asker = context.socket(zmq.DEALER)
asker.connect(f"tcp://127.0.0.1:{REPLAY}")
asker.send_multipart([b"", (0).to_bytes(8, "big")])
replayed = []
while True:
    assert asker.poll(20_000), "no end of the replay"
    empty, number, payload = asker.recv_multipart()
    assert empty == b"", empty
    if int.from_bytes(number, "big", signed=True) == -1:
        assert payload == b"", payload
        break
    replayed.append((int.from_bytes(number, "big"), payload))
assert [number for number, _ in replayed] == list(range(len(replayed))), "numbers count from 0"
assert isinstance(decoder.decode(replayed[0][1]).events[0], AllBlocksCleared), "it begins with nothing"
assert dict(replayed).items() >= live.items() and len(live) > 10, "what was sent is what is kept"

# vLLM's example asks with a REQ socket.
asker = context.socket(zmq.REQ)
asker.connect(f"tcp://127.0.0.1:{REPLAY}")
asker.send((len(replayed) - 1).to_bytes(8, "big"))
assert asker.poll(20_000), "no answer"
number, payload = asker.recv_multipart()
assert (int.from_bytes(number, "big"), payload) == replayed[-1]

assert not other.poll(0), "another topic"
print(f"{len(replayed)} batches of KV cache events")
