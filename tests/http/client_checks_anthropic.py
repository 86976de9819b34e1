"""Run by test_clients.py inside a virtual environment: the official anthropic package against a server.

    python client_checks_anthropic.py BASE_URL
"""

import asyncio
import json
import sys
from typing import Literal

import anthropic
from pydantic import BaseModel

HELLO = [{"role": "user", "content": "Hello, Claude"}]
PLACES = ["San Francisco, CA", "Oslo"]
TOOL = {"name": "get_weather", "description": "Get the current weather in a given location", "input_schema": {
    "type": "object", "properties": {"location": {"type": "string", "enum": PLACES}}, "required": ["location"], "additionalProperties": False}}


class Place(BaseModel):
    location: Literal["San Francisco, CA", "Oslo"]


async def from_async(common):
    async with anthropic.AsyncAnthropic(base_url=sys.argv[1], api_key="none") as client:
        message = await client.messages.create(**common)
        async with client.messages.stream(**common) as stream:
            assert "".join([text async for text in stream.text_stream]) == message.content[0].text


def main():
    client = anthropic.Anthropic(base_url=sys.argv[1], api_key="none")
    common = {"model": "test", "max_tokens": 24, "messages": HELLO, "extra_body": {"temperature": 0}}
    message = client.messages.create(**common)
    assert message.role == "assistant" and message.content[0].type == "text", message
    with client.messages.stream(**common) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == message.content[0].text == final.content[0].text, (text, message)
    assert final.stop_reason == message.stop_reason and final.usage.output_tokens == message.usage.output_tokens, final
    assert [(model.id, model.type, model.display_name) for model in client.models.list()] == [("test", "model", "test")]
    assert client.models.retrieve("test").created_at.year > 2000
    count = client.messages.count_tokens(model="test", messages=HELLO).input_tokens
    assert count == message.usage.input_tokens + message.usage.cache_read_input_tokens, count

    tools = {**common, "max_tokens": 200, "tools": [TOOL], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    called = client.messages.create(**tools)
    block = called.content[0]
    assert called.stop_reason == "tool_use" and block.name == "get_weather", called
    assert block.input["location"] in TOOL["input_schema"]["properties"]["location"]["enum"], block
    with client.messages.stream(**tools) as stream:
        assert stream.get_final_message().content[0].input == block.input
    # The client's typed outputs: the schema goes in output_config.format.
    typed = {"model": "test", "max_tokens": 200, "messages": HELLO, "extra_body": {"temperature": 0}}
    assert isinstance(client.messages.parse(output_format=Place, **typed).parsed_output, Place)
    with client.messages.stream(output_config={"format": {"type": "json_schema", "schema": TOOL["input_schema"]}}, **typed) as stream:
        assert json.loads("".join(stream.text_stream))["location"] in PLACES
    asyncio.run(from_async(common))

    answered = client.messages.create(**{**common, "tools": [TOOL], "messages": [
        *HELLO, {"role": "assistant", "content": called.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": block.id, "content": "15 degrees"}]}]})
    assert answered.content, answered
    try:
        client.messages.create(**{**common, "model": "other"})
        raise AssertionError("no error")
    except anthropic.NotFoundError as error:
        assert error.body["error"]["type"] == "not_found_error", error.body
    print("anthropic", anthropic.__version__, "is happy")


if __name__ == "__main__":
    main()
