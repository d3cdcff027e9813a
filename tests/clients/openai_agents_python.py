"""The OpenAI Agents SDK against a running server: its tool loop on responses and on chats, whole and streamed;
strict functions, and answers of a type."""

import asyncio
import sys
from importlib.metadata import version

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel, Field

base, key = sys.argv[1], sys.argv[2]
set_tracing_disabled(True)
client = AsyncOpenAI(base_url=base + "/v1", api_key=key, max_retries=0)
seen = []


@function_tool(strict_mode=False)
def get_weather(city: str) -> str:
    """Get the current weather for a city.

    Args:
        city: Name of the city
    """
    seen.append(city)
    return {"Rome": "sunny, 24 degrees"}.get(city, "rain, 9 degrees")


@function_tool
def get_forecast(city: str) -> str:
    """Get the current weather for a city.

    Args:
        city: Name of the city
    """
    seen.append(city)
    return "rain"


class Person(BaseModel):
    """What an agent answers."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


async def strict(model):
    """Strict functions that must be called, and an answer of a type."""
    settings = ModelSettings(temperature=0, max_tokens=120, tool_choice="required")
    agent = Agent(
        name="Weather",
        model=model,
        tools=[get_forecast],
        model_settings=settings,
        tool_use_behavior="stop_on_first_tool",
    )
    seen.clear()
    assert (await Runner.run(agent, "What is the weather in Rome?")).final_output == "rain" and seen, seen
    settings = ModelSettings(temperature=0, max_tokens=200)
    named = Agent(name="Person", model=model, output_type=Person, model_settings=settings)
    person = (await Runner.run(named, "Name a person.")).final_output
    assert isinstance(person, Person), person


async def run():
    model = (await client.models.list()).data[0].id
    for kind in OpenAIResponsesModel, OpenAIChatCompletionsModel:
        agent = Agent(
            name="Weather",
            model=kind(model=model, openai_client=client),
            tools=[get_weather],
            model_settings=ModelSettings(temperature=0, max_tokens=120),
        )
        question = "What is the weather in Rome and in Oslo?"
        seen.clear()
        whole = await Runner.run(agent, question)
        assert sorted(seen) == ["Oslo", "Rome"] and whole.final_output, (kind, seen, whole)
        seen.clear()
        streamed = Runner.run_streamed(agent, question)
        deltas = [
            event.data.delta
            async for event in streamed.stream_events()
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
        ]
        assert sorted(seen) == ["Oslo", "Rome"], (kind, seen)
        await strict(kind(model=model, openai_client=client))
        assert "".join(deltas).strip() == streamed.final_output.strip() == whole.final_output.strip(), (kind, deltas)


asyncio.run(run())
print("openai-agents", version("openai-agents"), "works")
