"""The cases that `quire bench cases` takes, measured on another engine: prompts are random token ids, and each case is a JSON line."""

import json
import random
import time


def read(path):
    """The cases of a file, each with all of its prompts: [tokens in, tokens out]."""
    with open(path) as lines:
        cases = [json.loads(line) for line in lines if line.strip()]
    for case in cases:
        case["prompts"] *= case.get("copies", 1)
    return cases


def vocab_size(model):
    with open(f"{model}/config.json") as file:
        return json.load(file)["vocab_size"]


def measure(generate, cases, model, output, start):
    """Appends a line for each case to `output`, and first one for the first token since `start`.

    `generate(prompts, lengths, adapters)` takes the ids of each prompt, how many tokens each gets, and among how many adapters prompts
    take turns; it gives how many tokens each got.
    """
    ids, highest = random.Random(0), min(vocab_size(model), 10_000)

    def prompt(number, length, repeated):
        source = random.Random(number) if repeated else ids
        return [source.randrange(100, highest) for _ in range(length)]

    def run(lengths, adapters=0, repeated=False):
        prompts = [prompt(number, length, repeated) for number, (length, _) in enumerate(lengths)]
        wanted = [n for _, n in lengths]
        begin = time.perf_counter()
        counts = generate(prompts, wanted, adapters)
        seconds = time.perf_counter() - begin
        if counts != wanted:
            raise SystemExit(f"{sum(counts)} tokens were generated, not {sum(wanted)}")
        return seconds

    def report(name, lengths, seconds):
        line = {
            "name": name,
            "seconds": seconds,
            "input_tokens": sum(n for n, _ in lengths),
            "output_tokens": sum(n for _, n in lengths),
        }
        print(json.dumps(line), flush=True)
        with open(output, "a") as file:
            file.write(json.dumps(line) + "\n")

    run([[8, 1]])
    report("startup", [[8, 1]], [time.perf_counter() - start])
    for case in cases:
        time.sleep(case.get("idle_s", 0))
        runs = [run(case["prompts"], case.get("adapters", 0), case.get("repeated", False)) for _ in range(case.get("runs", 1))]
        report(case["name"], case["prompts"], runs)
