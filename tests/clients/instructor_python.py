"""instructor against a running server: answers of a type by tools, by JSON and by JSON schema, whole and streamed."""

import sys
from importlib.metadata import version

import instructor
import openai
from pydantic import BaseModel, Field

base, key = sys.argv[1], sys.argv[2]
client = openai.OpenAI(base_url=base + "/v1", api_key=key, max_retries=0)
model = client.models.list().data[0].id


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


ask = {
    "model": model,
    "messages": [{"role": "user", "content": "Name a person."}],
    "temperature": 0,
    "max_tokens": 200,
    "max_retries": 0,
}
for mode in instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA:
    person = instructor.from_openai(client, mode=mode).create(response_model=Person, **ask)
    assert isinstance(person, Person), (mode, person)
structured = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
parts = list(structured.create_partial(response_model=Person, **ask))
assert parts[-1].name is not None and parts[-1].age is not None, parts
person, raw = structured.create_with_completion(response_model=Person, **ask)
# The class is one that instructor derives.
said = Person.model_validate_json(raw.choices[0].message.content)
assert person.model_dump() == said.model_dump(), raw

print("instructor", version("instructor"), "works")
