"""Run by soak_clients.py inside a virtual environment: one framework against a server.

    python client_checks_frameworks.py NAME BASE_URL
"""

import asyncio
import enum
import json
import os
import re
import sys
from importlib.metadata import version

from pydantic import BaseModel

NAME, BASE = sys.argv[1:]
URL = BASE + "/v1"
os.environ.update({"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": URL, "OPENAI_AGENTS_DISABLE_TRACING": "1"})


class City(str, enum.Enum):
    OSLO = "Oslo"
    ROME = "Rome"


WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}}, "required": ["city"]}}}


def langchain():
    from langchain_core.exceptions import ContextOverflowError
    from langchain_openai import ChatOpenAI

    class GetWeather(BaseModel):
        """Get the current weather in a given location"""
        city: City

    llm = ChatOpenAI(model="test", base_url=URL, api_key="none", temperature=0, max_tokens=24)
    reply = llm.invoke([("system", "You are a helpful translator."), ("human", "I love programming.")])
    assert isinstance(reply.content, str) and reply.usage_metadata["output_tokens"] > 0, reply
    assert "".join(chunk.content for chunk in llm.stream([("system", "You are a helpful translator."), ("human", "I love programming.")])) == reply.content
    tools = ChatOpenAI(model="test", base_url=URL, api_key="none", temperature=0, max_tokens=300)
    called = tools.bind_tools([GetWeather], tool_choice="required", parallel_tool_calls=False).invoke("Which city is hotter today?")
    assert called.tool_calls[0]["args"]["city"] in ("Oslo", "Rome"), called
    streamed = None
    for chunk in tools.bind_tools([GetWeather], tool_choice="required", parallel_tool_calls=False).stream("Which city is hotter today?"):
        streamed = chunk if streamed is None else streamed + chunk
    assert [call["args"] for call in streamed.tool_calls] == [call["args"] for call in called.tool_calls], streamed
    for method in ("function_calling", "json_schema"):
        structured = tools.with_structured_output(GetWeather, method=method).invoke("Which city is hotter today?")
        assert isinstance(structured, GetWeather), structured
        assert list(tools.with_structured_output(GetWeather, method=method).stream("Which city is hotter today?"))[-1] == structured
    try:
        llm.invoke("word " * 9000)
        raise AssertionError("a prompt beyond the context was taken")
    except ContextOverflowError:
        pass
    return "langchain-openai"


def pydantic_ai():
    from openai import AsyncOpenAI
    from pydantic import Field
    from pydantic_ai import Agent, ToolDefinition
    from pydantic_ai.direct import model_request_sync
    from pydantic_ai.messages import ModelRequest
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    class Box(BaseModel):
        home: City
        width: int = Field(ge=0, le=99)

    def new_model():  # a client belongs to one event loop
        return OpenAIChatModel("test", provider=OpenAIProvider(openai_client=AsyncOpenAI()))

    model = new_model()
    settings = {"max_tokens": 300, "temperature": 0}
    reply = Agent(model, system_prompt="Be concise.", model_settings={"max_tokens": 24}).run_sync("Where does hello world come from?")
    assert isinstance(reply.output, str), reply
    boxed = Agent(model, output_type=Box, model_settings=settings).run_sync("A box of Oslo, 10 wide")
    assert isinstance(boxed.output, Box), boxed

    async def streamed():
        model = new_model()
        async with Agent(model, model_settings={"max_tokens": 24, "temperature": 0}).run_stream("Hello") as result:
            said = [text async for text in result.stream_text(delta=True)]
        assert "".join(said), said
        async with Agent(model, output_type=Box, model_settings=settings).run_stream("A box of Oslo, 10 wide") as result:
            assert await result.get_output() == boxed.output

    asyncio.run(streamed())

    dice = ToolDefinition(name="roll_dice", description="Roll a die.", parameters_json_schema={
        "type": "object", "properties": {"sides": {"enum": [6, 20]}}, "required": ["sides"], "additionalProperties": False})
    asked = [ModelRequest.user_text_prompt("Roll it.")], ModelRequestParameters(function_tools=[dice], allow_text_output=False)
    part = model_request_sync(new_model(), asked[0], model_request_parameters=asked[1], model_settings=settings).parts[0]
    assert part.tool_name == "roll_dice" and part.args_as_dict()["sides"] in (6, 20), part
    return "pydantic-ai-slim"


def openai_agents():
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool, set_default_openai_client
    from openai import AsyncOpenAI

    class Answer(BaseModel):
        city: City

    calls = []

    @function_tool
    def get_weather(city: City) -> str:
        """The weather of a city."""
        calls.append(city)
        return "sunny"

    # A text of this model has no end, and the client takes a response that was cut off for an error: the text by chat.
    chat = OpenAIChatCompletionsModel(model="test", openai_client=AsyncOpenAI(base_url=URL, api_key="none"))
    reply = Runner.run_sync(Agent(name="Assistant", model=chat, instructions="You only respond in haikus.",
                                  model_settings=ModelSettings(max_tokens=24)), "Write a haiku about recursion in programming.")
    assert isinstance(reply.final_output, str), reply
    typed = Runner.run_sync(Agent(name="Assistant", model="test", output_type=Answer, model_settings=ModelSettings(max_tokens=60)), "Which city?")
    assert isinstance(typed.final_output, Answer), typed
    weather = Agent(name="Weather", model="test", tools=[get_weather], tool_use_behavior="stop_on_first_tool",
                    model_settings=ModelSettings(max_tokens=300, tool_choice="required", parallel_tool_calls=False))
    assert Runner.run_sync(weather, "What's the weather in Rome?").final_output == "sunny" and calls[0] in tuple(City), calls

    async def streamed():  # in a loop of its own, with clients of its own
        set_default_openai_client(AsyncOpenAI())
        chat = OpenAIChatCompletionsModel(model="test", openai_client=AsyncOpenAI())
        result = Runner.run_streamed(weather, "What's the weather in Rome?")
        async for _ in result.stream_events():
            pass
        assert result.final_output == "sunny", result
        result = Runner.run_streamed(Agent(name="Assistant", model=chat, model_settings=ModelSettings(max_tokens=24)), "Hello")
        said = [event.data.delta async for event in result.stream_events()
                if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"]
        assert "".join(said) == result.final_output, said

    asyncio.run(streamed())
    return "openai-agents"


def litellm():
    import litellm as client

    class Answer(BaseModel):
        city: City

    client.suppress_debug_info = True
    common = {"model": "openai/test", "api_base": URL, "api_key": "none", "temperature": 0}
    question = [{"role": "user", "content": "Hello, how are you?"}]
    reply = client.completion(messages=question, max_tokens=24, **common)
    assert reply.usage.completion_tokens == 24 and reply.choices[0].finish_reason == "length", reply
    chunks = list(client.completion(messages=question, max_tokens=24, stream=True, stream_options={"include_usage": True}, **common))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == reply.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 24, chunks[-1]
    called = client.completion(messages=question, tools=[WEATHER], tool_choice="required", max_tokens=300, **common)
    assert json.loads(called.choices[0].message.tool_calls[0].function.arguments)["city"] in ("Oslo", "Rome"), called
    parts = list(client.completion(messages=question, tools=[WEATHER], tool_choice="required", max_tokens=300, stream=True, **common))
    assert json.loads(client.stream_chunk_builder(parts).choices[0].message.tool_calls[0].function.arguments)["city"] in ("Oslo", "Rome"), parts
    typed = client.completion(messages=question, response_format=Answer, max_tokens=60, **common)
    assert Answer.model_validate_json(typed.choices[0].message.content), typed
    text = client.text_completion(model="text-completion-openai/test", api_base=URL, api_key="none", prompt="Once upon a time", max_tokens=8)
    assert text.usage.completion_tokens == 8, text
    claude = client.completion(model="anthropic/test", api_base=BASE, api_key="none", messages=question, max_tokens=24, temperature=0)
    assert claude.choices[0].message.content == reply.choices[0].message.content, claude
    ollama = client.completion(model="ollama_chat/test", api_base=BASE, messages=question, max_tokens=24, temperature=0)
    assert ollama.choices[0].message.content == reply.choices[0].message.content, ollama
    vectors = client.embedding(model="openai/test", api_base=URL, api_key="none", input=["good morning", "good night"])
    assert len(vectors.data) == 2 and len(vectors.data[0]["embedding"]) > 0, vectors
    try:
        client.completion(messages=[{"role": "user", "content": "word " * 9000}], max_tokens=24, **common)
        raise AssertionError("a prompt beyond the context was taken")
    except client.ContextWindowExceededError:
        pass
    return "litellm"


def instructor():
    import instructor as client
    from openai import OpenAI
    from pydantic import Field

    class UserInfo(BaseModel):
        name: str = Field(max_length=12)
        age: int = Field(ge=0, le=150)
        homes: list[City] = Field(min_length=1, max_length=2)

    for mode in (client.Mode.TOOLS, client.Mode.TOOLS_STRICT, client.Mode.JSON_SCHEMA, client.Mode.JSON, client.Mode.MD_JSON):
        made = client.from_openai(OpenAI(base_url=URL, api_key="none"), mode=mode)
        messages = [{"role": "user", "content": "John Doe is 30 years old."}]
        arguments = {"model": "test", "response_model": UserInfo, "messages": messages, "max_tokens": 300, "temperature": 0}
        if mode in (client.Mode.JSON, client.Mode.MD_JSON):
            # These modes say the schema in words only, which this model cannot follow: the server holds it to the schema.
            arguments["extra_body"] = {"response_format": {"type": "json_object", "schema": UserInfo.model_json_schema()}}
        user = made.chat.completions.create(**arguments)
        assert isinstance(user, UserInfo), user

    class Person(BaseModel):  # its partial models take no enumerations
        name: str = Field(max_length=12)
        age: int = Field(ge=0, le=150)

    streamed = list(client.from_openai(OpenAI(base_url=URL, api_key="none")).create_partial(
        response_model=Person, model="test", messages=messages, max_tokens=300, temperature=0))
    assert streamed and streamed[-1].age is not None, streamed
    named = client.from_provider("openai/test", base_url=URL, api_key="none")
    assert isinstance(named.create(response_model=UserInfo, messages=messages, max_tokens=300), UserInfo)
    return "instructor"


def outlines():
    from typing import Literal

    import openai
    import outlines as client
    from outlines.types import CFG, Regex
    from pydantic import Field

    class Character(BaseModel):
        name: str = Field(max_length=10)
        age: int = Field(ge=0, le=99)

    hosted = client.from_openai(openai.OpenAI(base_url=URL, api_key="none"), "test")
    assert isinstance(hosted("Hello", max_tokens=12), str)
    assert "".join(hosted.stream("Hello", max_tokens=12, temperature=0)) == hosted("Hello", max_tokens=12, temperature=0)
    assert Character.model_validate_json("".join(hosted.stream("A character", Character, max_tokens=200)))
    assert Character.model_validate_json(hosted("A character", Character, max_tokens=200))
    served = client.from_vllm(openai.OpenAI(base_url=URL, api_key="none"), "test")
    assert served("Is it good? ", Literal["Yes", "No"], max_tokens=20) in ("Yes", "No")
    assert re.fullmatch(r"[0-9]{3}-[a-z]{2}", served("An id: ", Regex(r"[0-9]{3}-[a-z]{2}"), max_tokens=40))
    assert Character.model_validate_json(served("A character", Character, max_tokens=200))
    assert served("A sum: ", CFG('start: NUMBER "+" NUMBER\nNUMBER: /[0-9]{1,3}/'), max_tokens=40).count("+") == 1
    return "outlines"


def main():
    package = globals()[NAME]()
    print(package, version(package), "is happy")


if __name__ == "__main__":
    main()
