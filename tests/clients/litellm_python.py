"""litellm against a running server: chats and responses, whole and streamed, with tools."""

import json
import os
import sys
from importlib.metadata import version

# Prices are of no use here, and fetching them takes a while where there is no network.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
import openai

base, key = sys.argv[1], sys.argv[2]
name = openai.OpenAI(base_url=base + "/v1", api_key=key).models.list().data[0].id
server = dict(model="openai/" + name, api_base=base + "/v1", api_key=key, temperature=0)

hello = [{"role": "user", "content": "Hi, who are you?"}]
whole = litellm.completion(**server, messages=hello, max_tokens=40)
pieces = litellm.completion(**server, messages=hello, max_tokens=40, stream=True)
text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
assert text and text == whole.choices[0].message.content, (text, whole)
assert whole.usage.completion_tokens > 0

parameters = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Name of the city"}},
    "required": ["city"],
}
function = {"name": "get_weather", "description": "Get the current weather for a city.", "parameters": parameters}
question = [{"role": "user", "content": "What is the weather in Rome and in Oslo?"}]
asked = dict(**server, tools=[{"type": "function", "function": function}], max_tokens=120)
called = litellm.completion(**asked, messages=question).choices[0].message
cities = [json.loads(call.function.arguments)["city"] for call in called.tool_calls]
assert cities == ["Rome", "Oslo"], called
told = question + [called.model_dump(exclude_none=True)]
for call, weather in zip(called.tool_calls, ["sunny, 24 degrees", "rain, 9 degrees"]):
    told.append({"role": "tool", "tool_call_id": call.id, "content": weather})
answer = litellm.completion(**asked, messages=told).choices[0]
assert answer.finish_reason == "stop" and answer.message.content, answer

response = litellm.responses(**server, input="Hi, who are you?", max_output_tokens=40)
events = list(litellm.responses(**server, input="Hi, who are you?", max_output_tokens=40, stream=True))
assert events[-1].response.output[0].content[0].text == response.output[0].content[0].text, events[-1]

print("litellm", version("litellm"), "works")
