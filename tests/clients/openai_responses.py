"""The official OpenAI client for Python against /v1/responses: argv[1] is the server's base URL, argv[2] its key."""

import json
import sys

import openai

base, key = sys.argv[1], sys.argv[2]
client = openai.OpenAI(base_url=base + "/v1", api_key=key, max_retries=0)
model = client.models.list().data[0].id
greedy = dict(model=model, temperature=0, max_output_tokens=120)

# Whole, and streamed with the client's helper, which follows the events and checks their order.
hello = dict(**greedy, input="Hi, who are you?")
whole = client.responses.create(**hello, instructions="You are kind.", metadata={"a": "b"})
assert whole.status == "completed" and whole.output_text and whole.metadata == {"a": "b"}, whole
assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
with client.responses.stream(**hello, instructions="You are kind.") as stream:
    events = list(stream)
    final = stream.get_final_response()
assert final.output_text == whole.output_text and final.usage.output_tokens == whole.usage.output_tokens, final
assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
assert [event.sequence_number for event in events] == list(range(len(events)))
assert events[0].type == "response.created" and events[-1].type == "response.completed"
short = client.responses.create(**{**hello, "max_output_tokens": 2})
assert short.status == "incomplete" and short.incomplete_details.reason == "max_output_tokens", short

# Log-probabilities.
scored = client.responses.create(**hello, include=["message.output_text.logprobs"], top_logprobs=3)
logprobs = scored.output[0].content[0].logprobs
assert "".join(entry.token for entry in logprobs).startswith(scored.output_text[:4]), scored
assert all(len(entry.top_logprobs) == 3 and entry.logprob <= 0 for entry in logprobs)

# A conversation goes on by the id of its last response, or by its items.
first = client.responses.create(**hello)
by_id = client.responses.create(**greedy, input="Tell me more.", previous_response_id=first.id)
turns = [{"role": "user", "content": "Hi, who are you?"}, *first.output, {"role": "user", "content": "Tell me more."}]
by_items = client.responses.create(**greedy, input=turns, store=False)
assert by_id.output_text == by_items.output_text and by_id.previous_response_id == first.id
assert client.responses.retrieve(first.id).output_text == first.output_text
items = client.responses.input_items.list(by_id.id, order="asc").data
assert [item.role for item in items] == ["user", "assistant", "user"], items
client.responses.delete(first.id)

# Functions: ask, call, answer; whole and streamed.
parameters = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Name of the city"}},
    "required": ["city"],
}
tools = [
    {
        "type": "function",
        "name": "get_weather",
        "description": "Get the current weather for a city.",
        "parameters": parameters,
        "strict": False,
    }
]
weather = {"Rome": "sunny, 24 degrees", "Oslo": "rain, 9 degrees"}
asked = dict(**greedy, tools=tools)
question = "What is the weather in Rome and in Oslo?"
called = client.responses.create(**asked, input=question)
calls = [item for item in called.output if item.type == "function_call"]
assert [json.loads(call.arguments) for call in calls] == [{"city": "Rome"}, {"city": "Oslo"}], called
with client.responses.stream(**asked, input=question) as stream:
    done = [event for event in stream if event.type == "response.function_call_arguments.done"]
    streamed = [item for item in stream.get_final_response().output if item.type == "function_call"]
assert [call.arguments for call in streamed] == [call.arguments for call in calls] == [event.arguments for event in done]
results = [
    {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": weather[json.loads(call.arguments)["city"]],
    }
    for call in calls
]
answer = client.responses.create(**asked, input=results, previous_response_id=called.id)
assert answer.output_text and not [item for item in answer.output if item.type == "function_call"], answer
alone = client.responses.create(**asked, input=question, parallel_tool_calls=False)
assert len([item for item in alone.output if item.type == "function_call"]) == 1, alone
silent = client.responses.create(**asked, input=question, tool_choice="none")
assert not [item for item in silent.output if item.type == "function_call"], silent

# In the background: its events may be read again from any of them on.
started = client.responses.create(**hello, background=True)
assert started.status in ("queued", "in_progress"), started
again = list(client.responses.retrieve(started.id, stream=True))
ended = client.responses.retrieve(started.id)
assert ended.status == "completed" and ended.output_text == first.output_text, ended
assert again[-1].type == "response.completed" and again[-1].response.output_text == ended.output_text
late = list(client.responses.retrieve(started.id, stream=True, starting_after=again[-3].sequence_number))
assert [event.sequence_number for event in late] == [event.sequence_number for event in again[-2:]], late
long = dict(**hello, extra_body={"ignore_eos": True})
running = client.responses.create(**{**long, "max_output_tokens": 900}, background=True)
assert client.responses.cancel(running.id).status == "cancelled"

# Errors have the official client's types.
for wrong, kind in [
    (lambda: client.responses.create(**{**hello, "model": "nobody"}), openai.NotFoundError),
    (lambda: client.responses.create(**{**hello, "temperature": 99}), openai.BadRequestError),
    (lambda: client.responses.create(**hello, tools=[{"type": "web_search"}]), openai.BadRequestError),
    (lambda: client.responses.create(**hello, previous_response_id="resp_0"), openai.NotFoundError),
    (lambda: client.responses.retrieve(first.id), openai.NotFoundError),
]:
    try:
        wrong()
    except kind as error:
        assert error.status_code in (400, 404)
    else:
        raise AssertionError(f"no {kind.__name__}")

print("openai (Python)", openai.__version__, "works with /v1/responses")
