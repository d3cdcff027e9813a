"""The official Anthropic client for Python, unmodified, against a running server: argv[1] is its base URL, argv[2] its key."""

import sys

import anthropic

base, key = sys.argv[1], sys.argv[2]
client = anthropic.Anthropic(base_url=base, api_key=key, max_retries=0)
model = client.models.list().data[0].id

# Today's client has no argument for the temperature; the API has.
greedy = {"temperature": 0}

# A message, whole and streamed.
hello = dict(model=model, max_tokens=40, extra_body=greedy, messages=[{"role": "user", "content": "Hi, who are you?"}])
whole = client.messages.create(**hello)
assert whole.role == "assistant" and whole.stop_reason == "end_turn" and whole.content[0].text, whole
with client.messages.stream(**hello) as stream:
    text = "".join(stream.text_stream)
    final = stream.get_final_message()
assert text == whole.content[0].text and final.usage.output_tokens == whole.usage.output_tokens, (text, final)
blocks = [{"type": "text", "text": "Hi, who are you?"}]
parts = client.messages.create(**{**hello, "messages": [{"role": "user", "content": blocks}]})
assert parts.content[0].text == whole.content[0].text
kind = client.messages.create(**{**hello, "max_tokens": 3}, system="You are kind.")
assert kind.stop_reason == "max_tokens" and kind.usage.output_tokens == 3, kind
word = whole.content[0].text.split()[2]
cut = client.messages.create(**hello, stop_sequences=[word])
assert cut.stop_reason == "stop_sequence" and cut.stop_sequence == word, cut

# Tools: ask, call, answer.
schema = {"type": "object", "properties": {"city": {"type": "string", "description": "Name of the city"}}, "required": ["city"]}
tools = [{"name": "get_weather", "description": "Get the current weather for a city.", "input_schema": schema}]
question = [{"role": "user", "content": "What is the weather in Rome and in Oslo?"}]
asked = dict(model=model, max_tokens=120, extra_body=greedy, tools=tools, messages=question)
call = client.messages.create(**asked)
uses = [block for block in call.content if block.type == "tool_use"]
assert call.stop_reason == "tool_use" and [use.input for use in uses] == [{"city": "Rome"}, {"city": "Oslo"}], call
with client.messages.stream(**asked) as stream:
    final = stream.get_final_message()
assert final.stop_reason == "tool_use", final
assert [block.input for block in final.content if block.type == "tool_use"] == [use.input for use in uses], final
results = [
    {"type": "tool_result", "tool_use_id": use.id, "content": weather}
    for use, weather in zip(uses, ["sunny, 24 degrees", "rain, 9 degrees"])
]
told = question + [{"role": "assistant", "content": call.content}, {"role": "user", "content": results}]
answer = client.messages.create(**{**asked, "messages": told})
assert answer.stop_reason == "end_turn" and answer.content[0].text, answer

# Counting.
without = client.messages.count_tokens(model=model, messages=question).input_tokens
assert 0 < without < client.messages.count_tokens(model=model, messages=question, tools=tools).input_tokens
assert call.usage.input_tokens + call.usage.cache_read_input_tokens == client.messages.count_tokens(
    model=model, messages=question, tools=tools
).input_tokens

# Errors have the official client's types.
for wrong, kind in [
    (lambda: client.messages.create(**{**hello, "model": "nobody"}), anthropic.NotFoundError),
    (lambda: client.messages.create(**{**hello, "extra_body": {"temperature": 99}}), anthropic.BadRequestError),
    (lambda: client.messages.create(**asked, tool_choice={"type": "tool", "name": "nobody"}), anthropic.BadRequestError),
    (lambda: client.with_options(api_key="wrong").messages.create(**hello), anthropic.AuthenticationError),
]:
    try:
        wrong()
    except kind as error:
        assert error.status_code in (400, 401, 404)
    else:
        raise AssertionError(f"no {kind.__name__}")

print("anthropic (Python)", anthropic.__version__, "works")
