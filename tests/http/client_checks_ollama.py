"""Run by test_clients.py inside a virtual environment: the official ollama package against a server.

    python client_checks_ollama.py BASE_URL
"""

import asyncio
import json
import sys
from importlib.metadata import version

import ollama

HELLO = [{"role": "user", "content": "Why is the sky blue?"}]
SCHEMA = {"type": "object", "properties": {"blue": {"type": "boolean"}}, "required": ["blue"]}


def add_two_numbers(a: int, b: int) -> int:
    """Add two numbers

    Args:
        a: The first number
        b: The second number
    """
    return a + b


async def from_async(options, text):
    client = ollama.AsyncClient(host=sys.argv[1])
    parts = [part async for part in await client.chat(model="test", messages=HELLO, options=options, stream=True)]
    assert "".join(part.message.content for part in parts) == text
    assert parts[-1].done and parts[-1].eval_count > 0, parts[-1]


def main():
    client = ollama.Client(host=sys.argv[1])
    options = {"temperature": 0, "num_predict": 24}
    reply = client.chat(model="test", messages=HELLO, options=options)
    assert reply.message.role == "assistant" and reply.done, reply
    text = "".join(part["message"]["content"] for part in client.chat(model="test", messages=HELLO, options=options, stream=True))
    assert text == reply["message"]["content"], (text, reply)
    generated = client.generate(model="test", prompt=HELLO[0]["content"], options=options)
    assert generated["response"] == text, generated
    structured = client.chat(model="test", messages=HELLO, format=SCHEMA, options={"num_predict": 60})
    assert isinstance(json.loads(structured.message.content)["blue"], bool), structured
    parts = client.chat(model="test", messages=HELLO, format=SCHEMA, options={"num_predict": 60}, stream=True)
    assert isinstance(json.loads("".join(part.message.content for part in parts))["blue"], bool)
    client.chat(model="test", messages=HELLO, tools=[add_two_numbers], options=options)
    # Ollama has no tool_choice; the words before a call make this model write one, in one piece as in a stream.
    begun = [*HELLO, {"role": "assistant", "content": "<tool_call>"}]
    for stream in (False, True):
        replies = client.chat(model="test", messages=begun, tools=[add_two_numbers], options={"num_predict": 24}, stream=stream)
        assert all(part.message.role == "assistant" for part in (replies if stream else [replies]))
    asyncio.run(from_async(options, text))
    client.chat(model="test", options=options, messages=[*HELLO, {"role": "assistant", "tool_calls": [
        {"function": {"name": "add_two_numbers", "arguments": {"a": 1, "b": 2}}}]}, {"role": "tool", "tool_name": "add_two_numbers", "content": "3"}])
    vectors = client.embed(model="test", input=["a", "b"]).embeddings
    assert len(vectors) == 2
    assert list(client.embeddings(model="test", prompt="a").embedding) == list(vectors[0])
    assert client.list().models[0].model == "test"
    assert "completion" in client.show("test").capabilities
    assert client.ps().models[0].model == "test"
    try:
        client.chat(model="other", messages=HELLO)
        raise AssertionError("no error")
    except ollama.ResponseError as error:
        assert error.status_code == 404, error
    print("ollama", version("ollama"), "is happy")


if __name__ == "__main__":
    main()
