"""How much of its time each stage of a pipeline computes, from a profile (`POST /start_profile`, `/stop_profile`).

    xtask/scripts/bubbles.py TRACE

On a GPU a stage computes while one of its kernels runs (NCCL's are not among them; a profile launches kernels one by
one); on a CPU, while its thread is in a step and does not wait for rows of the stage before. What is left between the
first step and the last is the bubble."""

import collections
import json
import sys


def union(spans):
    """Spans in order, those that touch as one."""
    merged = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(end, merged[-1][1])
        else:
            merged.append([begin, end])
    return merged


def length(spans):
    return sum(end - begin for begin, end in union(spans))


def without(spans, holes):
    """The length of `spans` outside of `holes`, which lie in them."""
    return length(spans) - length(holes)


events = json.load(open(sys.argv[1]))["traceEvents"]
processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
tracks = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
spans = collections.defaultdict(lambda: collections.defaultdict(list))
for event in events:
    name = processes[event["pid"]]
    if event["ph"] != "X" or not name.startswith("worker-svc"):
        continue
    span = (event["ts"], event["ts"] + event["dur"])
    on_device = tracks.get((event["pid"], event["tid"])) == "device"
    spans[name]["kernel" if on_device else event["name"]].append(span)

for name, kinds in sorted(spans.items()):
    steps = kinds["submit"] + kinds["finish"] + kinds["masks"]
    if not steps:
        continue
    time = max(end for _, end in steps) - min(begin for begin, _ in steps)
    busy = length(kinds["kernel"]) if kinds["kernel"] else without(steps, kinds["receive"])
    print(f"{name}: {len(kinds['submit'])} steps in {time / 1e3:.1f} ms, computes {100 * busy / time:.1f} %, "
          f"bubble {100 - 100 * busy / time:.1f} %")
