"""Run by test_clients.py inside a virtual environment: the official anthropic package against a server.

    python client_checks_anthropic.py BASE_URL
"""

import sys

import anthropic

HELLO = [{"role": "user", "content": "Hello, Claude"}]
TOOL = {"name": "get_weather", "description": "Get the current weather in a given location", "input_schema": {
    "type": "object", "properties": {"location": {"enum": ["San Francisco, CA", "Oslo"]}}, "required": ["location"]}}


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
