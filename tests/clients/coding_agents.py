"""Loops as coding agents run them with the official clients: Codex on /v1/responses, streamed, stateless and with
opaque reasoning; Claude Code on /v1/messages, streamed, with tools."""

import json
import sys

import anthropic
import openai

base, key = sys.argv[1], sys.argv[2]
weather = {"Rome": "sunny, 24 degrees", "Oslo": "rain, 9 degrees"}
question = "What is the weather in Rome and in Oslo?"
schema = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Name of the city"}},
    "required": ["city"],
}
description = "Get the current weather for a city."


def codex(client, model):
    tools = [
        {"type": "function", "name": "get_weather", "description": description, "parameters": schema, "strict": False}
    ]
    items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": question}]}]
    for _ in range(4):
        stream = client.responses.create(
            model=model,
            input=items,
            tools=tools,
            tool_choice="auto",
            parallel_tool_calls=True,
            reasoning={"summary": "auto"},
            include=["reasoning.encrypted_content"],
            store=False,
            stream=True,
            prompt_cache_key="thread",
            temperature=0,
            max_output_tokens=120,
        )
        new, ends = [], []
        for event in stream:
            if event.type == "response.output_item.done":
                new.append(event.item)
            if event.type in ("response.completed", "response.failed", "response.incomplete"):
                ends.append(event.type)
        assert ends == ["response.completed"], ends
        items += [item.model_dump(exclude_none=True, exclude={"id", "status"}) for item in new]
        calls = [item for item in new if item.type == "function_call"]
        if not calls:
            return new[-1].content[0].text
        for call in calls:
            output = weather[json.loads(call.arguments)["city"]]
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": output})
    raise AssertionError(items)


def claude(client, model):
    tools = [{"name": "get_weather", "description": description, "input_schema": schema}]
    messages = [{"role": "user", "content": question}]
    for _ in range(4):
        with client.messages.stream(
            model=model,
            max_tokens=120,
            tools=tools,
            messages=messages,
            metadata={"user_id": "u"},
            extra_body={"temperature": 0},
        ) as stream:
            final = stream.get_final_message()
        messages.append({"role": "assistant", "content": final.content})
        if final.stop_reason != "tool_use":
            return final.content[0].text
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": weather[block.input["city"]]}
            for block in final.content
            if block.type == "tool_use"
        ]
        messages.append({"role": "user", "content": results})
    raise AssertionError(messages)


client = openai.OpenAI(base_url=base + "/v1", api_key=key, max_retries=0)
name = client.models.list().data[0].id
assert codex(client, name)
assert claude(anthropic.Anthropic(base_url=base, api_key=key, max_retries=0), name)
print("loops of coding agents work with openai", openai.__version__, "and anthropic", anthropic.__version__)
