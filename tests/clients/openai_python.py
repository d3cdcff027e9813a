"""The official OpenAI client for Python, unmodified, against a running server: argv[1] is its base URL, argv[2] its key."""

import json
import sys
import threading
import typing

import openai
import pydantic

base, key = sys.argv[1], sys.argv[2]
client = openai.OpenAI(base_url=base + "/v1", api_key=key)

model = client.models.list().data[0].id
assert client.models.retrieve(model).id == model

# Completions, whole and streamed.
whole = client.completions.create(model=model, prompt="Once upon a time", max_tokens=24, temperature=0)
assert whole.choices[0].text and whole.choices[0].finish_reason == "length"
assert whole.usage.completion_tokens == 24
assert whole.usage.total_tokens == whole.usage.prompt_tokens + 24
pieces = client.completions.create(model=model, prompt="Once upon a time", max_tokens=24, temperature=0, stream=True)
assert "".join(chunk.choices[0].text for chunk in pieces) == whole.choices[0].text

# Several prompts, token ids, several choices.
both = client.completions.create(model=model, prompt=["One", "Two"], max_tokens=4, temperature=0)
assert [choice.index for choice in both.choices] == [0, 1]
ids = client.completions.create(model=model, prompt=[[743, 827, 289, 546]], max_tokens=24, temperature=0)
assert ids.choices[0].text
many = client.completions.create(model=model, prompt="The cat", n=3, max_tokens=5, seed=1, temperature=1)
assert sorted(choice.index for choice in many.choices) == [0, 1, 2]

# Chat, whole and streamed, with usage.
messages = [{"role": "system", "content": "You are kind."}, {"role": "user", "content": "Hi, who are you?"}]
chat = client.chat.completions.create(model=model, messages=messages, max_tokens=40, temperature=0)
assert chat.choices[0].message.role == "assistant" and chat.choices[0].message.content
stream = client.chat.completions.create(
    model=model, messages=messages, max_tokens=40, temperature=0, stream=True, stream_options={"include_usage": True}
)
text, usage = "", None
for chunk in stream:
    if chunk.choices:
        text += chunk.choices[0].delta.content or ""
    usage = chunk.usage or usage
assert text == chat.choices[0].message.content, (text, chat)
assert usage.completion_tokens == chat.usage.completion_tokens
parts = [{"role": "user", "content": [{"type": "text", "text": "Hi, who are you?"}]}]
assert client.chat.completions.create(model=model, messages=parts, max_tokens=5).choices

# Log-probabilities.
scored = client.chat.completions.create(
    model=model, messages=messages, max_tokens=3, temperature=0, logprobs=True, top_logprobs=4
)
entries = scored.choices[0].logprobs.content
assert len(entries) == scored.usage.completion_tokens
assert all(len(entry.top_logprobs) == 4 and entry.logprob <= 0 for entry in entries)
assert all(entry.token == entry.top_logprobs[0].token for entry in entries), "greedy takes the best"

# Tools: ask, call, answer. The loop runs whole, then streamed, with two calls at once.
parameters = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Name of the city"}},
    "required": ["city"],
}
function = {"name": "get_weather", "description": "Get the current weather for a city.", "parameters": parameters}
tools = [{"type": "function", "function": function}]
question = [{"role": "user", "content": "What is the weather in Rome and in Oslo?"}]
asked = dict(model=model, messages=question, tools=tools, max_tokens=120, temperature=0)
choice = client.chat.completions.create(**asked).choices[0]
assert choice.finish_reason == "tool_calls" and not choice.message.content, choice
cities = [json.loads(call.function.arguments)["city"] for call in choice.message.tool_calls]
assert cities == ["Rome", "Oslo"], choice
with client.chat.completions.stream(**asked) as stream:
    done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
    final = stream.get_final_completion().choices[0]
assert [event.name for event in done] == ["get_weather"] * 2, done
shown = lambda calls: [(call.function.name, call.function.arguments) for call in calls]
assert shown(final.message.tool_calls) == shown(choice.message.tool_calls), final
assert final.finish_reason == "tool_calls"
conversation = question + [choice.message.model_dump(exclude_none=True)]
for call, weather in zip(choice.message.tool_calls, ["sunny, 24 degrees", "rain, 9 degrees"]):
    conversation.append({"role": "tool", "tool_call_id": call.id, "content": weather})
answer = client.chat.completions.create(**{**asked, "messages": conversation}).choices[0]
assert answer.finish_reason == "stop" and answer.message.content and not answer.message.tool_calls, answer
alone = client.chat.completions.create(**asked, parallel_tool_calls=False).choices[0]
assert len(alone.message.tool_calls) == 1, alone
silent = client.chat.completions.create(**asked, tool_choice="none").choices[0]
assert not silent.message.tool_calls and silent.finish_reason == "stop", silent

named = {"type": "function", "function": {"name": "get_weather"}}
for demanded in ["required", named]:
    forced = client.chat.completions.create(**asked, tool_choice=demanded).choices[0]
    assert isinstance(json.loads(forced.message.tool_calls[0].function.arguments)["city"], str), forced


# Structured output, read by pydantic.
class Step(pydantic.BaseModel):
    explanation: typing.Annotated[str, pydantic.Field(max_length=20)]
    number: typing.Annotated[int, pydantic.Field(ge=0, le=99)]


class Solution(pydantic.BaseModel):
    steps: typing.Annotated[list[Step], pydantic.Field(max_length=2)]
    verdict: typing.Literal["right", "wrong"]


task = [{"role": "user", "content": "Is 2 + 2 = 5?"}]
for seed in range(4):
    limits = dict(model=model, messages=task, max_tokens=400, temperature=1, seed=seed)
    parsed = client.chat.completions.parse(**limits, response_format=Solution).choices[0].message.parsed
    assert isinstance(parsed, Solution) and parsed.verdict in ("right", "wrong"), parsed
with client.chat.completions.stream(**limits, response_format=Solution) as stream:
    streamed = stream.get_final_completion().choices[0].message.parsed
assert streamed == parsed, (streamed, parsed)
choice = client.chat.completions.create(**limits, extra_body={"structured_outputs": {"choice": ["yes", "no"]}})
assert choice.choices[0].message.content in ("yes", "no"), choice

# Every answer is what the client's own types say, checked strictly: the client itself does not look.
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk


def strictly(kind, raw):
    return kind.model_validate_json(raw if isinstance(raw, (str, bytes)) else json.dumps(raw), strict=True)


def chunks(create, **asked):
    with create(**asked, stream=True, stream_options={"include_usage": True}) as response:
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]", lines[-1]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


raw_chat, raw_completion = client.chat.completions.with_raw_response, client.completions.with_raw_response
small = dict(model=model, messages=messages, max_tokens=6, temperature=0)
for extra in [
    {},
    dict(n=2, seed=1, logprobs=True, top_logprobs=2),
    dict(extra_body={"return_token_ids": True, "logprob_token_ids": [5, 6]}),
    dict(n=2, extra_body={"use_beam_search": True}),
    dict(tools=tools, messages=question, max_tokens=120),
    dict(stop=["the"]),
]:
    whole = strictly(ChatCompletion, raw_chat.create(**{**small, **extra}).content)
    streamed = chunks(client.chat.completions.with_streaming_response.create, **{**small, **extra})
    pieces = [strictly(ChatCompletionChunk, chunk) for chunk in streamed]
    assert pieces[-1].usage.completion_tokens == whole.usage.completion_tokens, (extra, pieces[-1], whole)
    for choice in whole.choices:
        deltas = [one.delta.content or "" for chunk in pieces for one in chunk.choices if one.index == choice.index]
        assert "".join(deltas) == (choice.message.content or ""), (extra, choice)
short = dict(model=model, prompt="Once upon a time", max_tokens=6, temperature=0)
# (With `echo`, the first token's log-probability is null, as it always was at OpenAI; the client's type has no room for it.)
for extra in [{}, dict(n=2, logprobs=2), dict(echo=True), dict(n=3, extra_body={"use_beam_search": True})]:
    strictly(Completion, raw_completion.create(**{**short, **extra}).content)
    for chunk in chunks(client.completions.with_streaming_response.create, **{**short, **extra}):
        # The client has no type of its own for these, and its type for whole answers wants a reason in each choice.
        for choice in chunk["choices"]:
            choice["finish_reason"] = choice["finish_reason"] or "length"
        strictly(Completion, chunk)
strictly(Model, client.models.with_raw_response.retrieve(model).content)

# Beams are the likeliest texts, best first, and the first is no worse than the greedy one.
beams = client.completions.create(**short, n=3, logprobs=1, extra_body={"use_beam_search": True})
sums = [sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs) for choice in beams.choices]
greedy = client.completions.create(**short, logprobs=1).choices[0].logprobs.token_logprobs
assert sums == sorted(sums, reverse=True) and sums[0] >= sum(greedy) / len(greedy) - 1e-4, (sums, greedy)

# A text that goes round in circles ends with a reason of its own.
rule = {"max_pattern_size": 4, "min_count": 3}
circles = client.completions.create(
    model=model, prompt="a a a a a a", max_tokens=40, extra_body={"repetition_detection": rule, "allowed_token_ids": [300]}
)
assert circles.choices[0].finish_reason == "repetition" and circles.usage.completion_tokens == 3, circles

# Errors have the official client's types.
for wrong, kind in [
    (lambda: client.chat.completions.create(model="nobody", messages=messages), openai.NotFoundError),
    (lambda: client.chat.completions.create(model=model, messages=messages, temperature=99), openai.BadRequestError),
    (lambda: client.completions.create(model=model, prompt="x " * 5000, max_tokens=5), openai.BadRequestError),
    (lambda: client.chat.completions.create(**asked, tool_choice={"type": "function", "function": {"name": "none"}}), openai.BadRequestError),
    (lambda: openai.OpenAI(base_url=base + "/v1", api_key="wrong", max_retries=0).models.list(), openai.AuthenticationError),
]:
    try:
        wrong()
    except kind as error:
        assert error.status_code in (400, 401, 404)
    else:
        raise AssertionError(f"no {kind.__name__}")

# Leaving in the middle of a stream; the server goes on for the others.
leaving = client.chat.completions.create(model=model, messages=messages, max_tokens=400, stream=True, extra_body={"ignore_eos": True})
next(iter(leaving))
leaving.close()

# Many at once, each gets its own answer.
answers = {}


def ask(number):
    body = [{"role": "user", "content": f"Tell me a story about the number {number % 4}."}]
    answer = client.chat.completions.create(model=model, messages=body, max_tokens=30, temperature=0)
    answers[number] = answer.choices[0].message.content


threads = [threading.Thread(target=ask, args=(number,)) for number in range(24)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(answers) == 24
assert all(answers[number] == answers[number % 4] for number in answers), "same question, same greedy answer"

print("openai (Python)", openai.__version__, "works")
