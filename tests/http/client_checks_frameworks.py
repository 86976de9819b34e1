"""Run by soak_clients.py inside a virtual environment: one framework against a server.

    python client_checks_frameworks.py NAME BASE_URL
"""

import enum
import json
import os
import sys
from importlib.metadata import version

NAME, BASE = sys.argv[1:]
URL = BASE + "/v1"
os.environ.update({"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": URL, "OPENAI_AGENTS_DISABLE_TRACING": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"})
HELLO = [{"role": "user", "content": "Hello, how are you?"}]


class City(str, enum.Enum):
    OSLO = "Oslo"
    ROME = "Rome"


def litellm():
    import litellm as package
    common = {"model": "openai/test", "api_base": URL, "api_key": "none", "max_tokens": 16, "temperature": 0, "messages": HELLO}
    reply = package.completion(**common)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in package.completion(stream=True, **common))
    assert text == reply.choices[0].message.content, (text, reply)
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "enum": ["Oslo", "Rome"]}}, "required": ["city"]}}}
    called = package.completion(**{**common, "max_tokens": 200}, tools=[tool], tool_choice="required", parallel_tool_calls=False)
    assert json.loads(called.choices[0].message.tool_calls[0].function.arguments)["city"] in ("Oslo", "Rome"), called
    claude = package.completion(**{**common, "model": "anthropic/test", "api_base": BASE})
    assert claude.choices[0].message.content == text, claude
    local = package.completion(**{**common, "model": "ollama_chat/test", "api_base": BASE})
    assert local.choices[0].message.content == text, local
    try:
        package.completion(**{**common, "max_tokens": 10 ** 9})
        raise AssertionError("no error")
    except package.BadRequestError:
        pass
    return "litellm"


def langchain():
    from langchain_openai import ChatOpenAI
    from pydantic import BaseModel

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
    for method in ("function_calling", "json_schema"):
        structured = tools.with_structured_output(GetWeather, method=method).invoke("Which city is hotter today?")
        assert isinstance(structured, GetWeather), structured
    return "langchain-openai"


def instructor():
    import instructor as package
    from openai import OpenAI
    from pydantic import BaseModel, Field

    class User(BaseModel):
        home: City
        age: int = Field(ge=0, le=150)

    for mode in (package.Mode.TOOLS, package.Mode.JSON_SCHEMA):
        client = package.from_openai(OpenAI(base_url=URL, api_key="none"), mode=mode)
        user = client.chat.completions.create(model="test", response_model=User, max_tokens=300, messages=[{"role": "user", "content": "Jason of Oslo is 25"}])
        assert isinstance(user, User), user
    return "instructor"


def pydantic_ai():
    from pydantic import BaseModel, Field
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    class Box(BaseModel):
        home: City
        width: int = Field(ge=0, le=99)

    model = OpenAIChatModel("test", provider=OpenAIProvider(base_url=URL, api_key="none"))
    settings = {"max_tokens": 300, "temperature": 0}
    reply = Agent(model, system_prompt="Be concise.", model_settings={"max_tokens": 24}).run_sync("Where does hello world come from?")
    assert isinstance(reply.output, str), reply
    boxed = Agent(model, output_type=Box, model_settings=settings).run_sync("A box of Oslo, 10 wide")
    assert isinstance(boxed.output, Box), boxed
    return "pydantic-ai-slim"


def openai_agents():
    from agents import Agent, ModelSettings, Runner, function_tool
    from pydantic import BaseModel

    class Answer(BaseModel):
        city: City

    calls = []

    @function_tool
    def get_weather(city: City) -> str:
        """The weather of a city."""
        calls.append(city)
        return "sunny"

    reply = Runner.run_sync(Agent(name="Assistant", model="test", instructions="You only respond in haikus.",
                                  model_settings=ModelSettings(max_tokens=24)), "Write a haiku about recursion in programming.")
    assert isinstance(reply.final_output, str), reply
    typed = Runner.run_sync(Agent(name="Assistant", model="test", output_type=Answer, model_settings=ModelSettings(max_tokens=60)), "Which city?")
    assert isinstance(typed.final_output, Answer), typed
    weather = Agent(name="Weather", model="test", tools=[get_weather], tool_use_behavior="stop_on_first_tool",
                    model_settings=ModelSettings(max_tokens=300, tool_choice="required", parallel_tool_calls=False))
    assert Runner.run_sync(weather, "What's the weather in Rome?").final_output == "sunny" and calls[0] in tuple(City), calls
    return "openai-agents"


def main():
    package = globals()[NAME]()
    print(package, version(package), "is happy")


if __name__ == "__main__":
    main()
