"""langchain-openai against a running server: a tool loop on chats and on responses, whole and streamed;
structured output."""

import sys
from importlib.metadata import version

import openai
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

base, key = sys.argv[1], sys.argv[2]
name = openai.OpenAI(base_url=base + "/v1", api_key=key).models.list().data[0].id


@tool
def get_weather(city: str) -> str:
    """Get the current weather for a city."""
    return {"Rome": "sunny, 24 degrees"}.get(city, "rain, 9 degrees")


for responses in False, True:
    model = ChatOpenAI(
        model=name,
        base_url=base + "/v1",
        api_key=key,
        temperature=0,
        max_tokens=120,
        max_retries=0,
        use_responses_api=responses,
    ).bind_tools([get_weather])
    messages = [HumanMessage("What is the weather in Rome and in Oslo?")]
    called = model.invoke(messages)
    assert [call["args"] for call in called.tool_calls] == [{"city": "Rome"}, {"city": "Oslo"}], called
    pieces = None
    for piece in model.stream(messages):
        pieces = piece if pieces is None else pieces + piece
    assert [call["args"] for call in pieces.tool_calls] == [call["args"] for call in called.tool_calls], pieces
    messages.append(called)
    for call in called.tool_calls:
        messages.append(ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"]))
    answer = model.invoke(messages)
    assert answer.text and not answer.tool_calls, answer
    assert answer.usage_metadata["output_tokens"] > 0, answer


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


for responses in False, True:
    model = ChatOpenAI(
        model=name, base_url=base + "/v1", api_key=key, temperature=0, max_tokens=200, max_retries=0,
        use_responses_api=responses,
    )
    for method in "json_schema", "function_calling":
        for strict in None, True:
            person = model.with_structured_output(Person, method=method, strict=strict).invoke("Name a person.")
            assert isinstance(person, Person), (responses, method, strict, person)
    both = model.with_structured_output(Person, include_raw=True).invoke("Name a person.")
    assert both["parsing_error"] is None and isinstance(both["parsed"], Person), both

print("langchain-openai", version("langchain-openai"), "works")
