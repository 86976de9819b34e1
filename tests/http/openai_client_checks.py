"""Run by test_openai_client.py inside a virtual environment: the official openai package against a server.

    python openai_client_checks.py BASE_URL API_KEY
"""

import asyncio
import json
import sys
import time

import openai
from pydantic import BaseModel


def check(condition, message):
    if not condition:
        raise AssertionError(message)


def completions(client):
    reply = client.completions.create(model="test", prompt="The grass is", max_tokens=8, temperature=0, logprobs=2, extra_body={"ignore_eos": True})
    check(reply.object == "text_completion" and reply.choices[0].finish_reason == "length", reply)
    check(len(reply.choices[0].logprobs.tokens) == 8, "legacy logprobs")
    check(reply.usage.completion_tokens == 8 and reply.usage.prompt_tokens_details.cached_tokens >= 0, reply.usage)
    text = ""
    for chunk in client.completions.create(model="test", prompt="The grass is", max_tokens=8, temperature=0, stream=True,
                                           extra_body={"ignore_eos": True}):
        text += chunk.choices[0].text
    check(text == reply.choices[0].text, (text, reply.choices[0].text))
    several = client.completions.create(model="test", prompt=["a", "b"], n=2, max_tokens=2)
    check([choice.index for choice in several.choices] == [0, 1, 2, 3], several)
    scored = client.completions.create(model="test", prompt=[[5, 6, 7], [8, 9]], echo=True, max_tokens=1, logprobs=1)
    check(scored.choices[0].logprobs.token_logprobs[0] is None, scored)


def chat(client):
    messages = [{"role": "user", "content": "Hello"}]
    reply = client.chat.completions.create(model="test", messages=messages, max_tokens=8, temperature=0, logprobs=True, top_logprobs=3)
    check(reply.choices[0].message.role == "assistant", reply)
    check(len(reply.choices[0].logprobs.content[0].top_logprobs) == 3, reply)
    text, usage, roles = "", None, []
    stream = client.chat.completions.create(model="test", messages=messages, max_tokens=8, temperature=0, stream=True,
                                            stream_options={"include_usage": True})
    for chunk in stream:
        if chunk.usage:
            usage = chunk.usage
            check(chunk.choices == [], "usage comes alone")
            continue
        roles.append(chunk.choices[0].delta.role)
        text += chunk.choices[0].delta.content or ""
    check(text == reply.choices[0].message.content, (text, reply))
    check(roles[0] == "assistant" and not any(roles[1:]), roles)
    check(usage.completion_tokens == reply.usage.completion_tokens, usage)
    value = client.chat.completions.create(model="test", messages=messages, max_tokens=60,
                                           response_format={"type": "json_object"})
    check(value.choices[0].message.content.lstrip().startswith("{"), value)


WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"], "additionalProperties": False}}}
MESSAGES = [{"role": "user", "content": "What is the weather like in Rome?"}]


def tools(client):
    """Calls by name, in a stream as in one piece, and the tool's answer in the next turn."""
    common = {"model": "test", "messages": MESSAGES, "tools": [WEATHER], "max_tokens": 200, "temperature": 0, "parallel_tool_calls": False}
    reply = client.chat.completions.create(tool_choice={"type": "function", "function": {"name": "get_weather"}}, **common)
    message = reply.choices[0].message
    check(reply.choices[0].finish_reason == "tool_calls" and message.content is None, reply)
    call = message.tool_calls[0]
    arguments = json.loads(call.function.arguments)
    check(call.function.name == "get_weather" and arguments["city"] in ("Oslo", "Rome") and 1 <= arguments["days"] <= 9, call)

    parts, name, finish = "", None, None
    for chunk in client.chat.completions.create(tool_choice="required", stream=True, **common):
        choice = chunk.choices[0]
        check(not choice.delta.content, "no marker in the content")
        finish = choice.finish_reason or finish
        for delta in choice.delta.tool_calls or []:
            name = delta.function.name or name
            parts += delta.function.arguments or ""
    check((name, parts, finish) == (call.function.name, call.function.arguments, "tool_calls"), (name, parts, finish))

    with client.chat.completions.stream(tool_choice="required", **common) as stream:
        final = stream.get_final_completion()
    check(final.choices[0].message.tool_calls[0].function.arguments == call.function.arguments, final)

    answered = client.chat.completions.create(model="test", max_tokens=4, tools=[WEATHER], tool_choice="none", messages=[
        *MESSAGES, message, {"role": "tool", "tool_call_id": call.id, "content": "Sunny."}])
    check(answered.choices[0].message.content is not None and not answered.choices[0].message.tool_calls, answered)


class Answer(BaseModel):
    blue: bool


def typed(client):
    """The client's own way to typed answers, in one piece and in a stream."""
    common = {"model": "test", "messages": MESSAGES, "response_format": Answer, "max_tokens": 60, "temperature": 0}
    parsed = client.chat.completions.parse(**common).choices[0].message.parsed
    check(isinstance(parsed, Answer), parsed)
    with client.chat.completions.stream(**common) as stream:
        check(stream.get_final_completion().choices[0].message.parsed == parsed, "streamed")


async def from_async(client):
    async with openai.AsyncOpenAI(base_url=client.base_url, api_key=client.api_key) as many:
        common = {"model": "test", "messages": MESSAGES, "max_tokens": 8, "temperature": 0}
        whole = (await many.chat.completions.create(**common)).choices[0].message.content
        chunks = [chunk async for chunk in await many.chat.completions.create(stream=True, **common)]
        check("".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole, chunks)


def errors(client, base):
    def expect(kind, call):
        try:
            call()
        except kind as error:
            return error
        raise AssertionError(f"no {kind.__name__}")

    error = expect(openai.BadRequestError, lambda: client.completions.create(model="test", prompt="x", max_tokens=-1))
    check(error.param == "max_tokens" and error.type == "invalid_request_error", error.body)
    error = expect(openai.BadRequestError, lambda: client.completions.create(model="test", prompt="x", max_tokens=10 ** 9))
    check(error.code == "context_length_exceeded", error.body)
    expect(openai.NotFoundError, lambda: client.completions.create(model="other", prompt="x"))
    expect(openai.AuthenticationError, lambda: openai.OpenAI(base_url=base, api_key="wrong").models.list())
    expect(openai.APITimeoutError, lambda: client.with_options(timeout=0.3, max_retries=0).completions.create(
        model="test", prompt="x", max_tokens=100000, extra_body={"ignore_eos": True}))
    error = expect(openai.APIError, lambda: list(client.completions.create(
        model="test", prompt="x", max_tokens=100000, stream=True, extra_body={"ignore_eos": True, "timeout": 0.3})))
    check(error.code == "timeout", error)


def retries(client):
    """A full queue answers 429 with Retry-After; the client waits and its second try is served."""
    fast = client.with_options(max_retries=8)
    started = time.time()

    async def load():
        async with openai.AsyncOpenAI(base_url=client.base_url, api_key=client.api_key, max_retries=8) as many:
            calls = [many.completions.create(model="test", prompt=f"{i}", max_tokens=40, extra_body={"ignore_eos": True}) for i in range(24)]
            return await asyncio.gather(*calls)

    replies = asyncio.run(load())
    check(len(replies) == 24 and all(reply.usage.completion_tokens == 40 for reply in replies), "all served in the end")
    check(fast.models.retrieve("test").id == "test", "models")
    print(f"24 requests through a queue of 4: {time.time() - started:.1f} s")


def main():
    base, key = sys.argv[1:]
    client = openai.OpenAI(base_url=base, api_key=key, max_retries=2, timeout=300)
    check([model.id for model in client.models.list()] == ["test"], "models")
    completions(client)
    chat(client)
    tools(client)
    typed(client)
    asyncio.run(from_async(client))
    errors(client, base)
    retries(client)
    print("openai", openai.__version__, "is happy")


if __name__ == "__main__":
    main()
