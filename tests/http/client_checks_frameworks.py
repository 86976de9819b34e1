"""Run by soak_clients.py inside a virtual environment: one framework against a server.

    python client_checks_frameworks.py NAME BASE_URL
"""

import enum
import os
import sys
from importlib.metadata import version

NAME, BASE = sys.argv[1:]
URL = BASE + "/v1"
os.environ.update({"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": URL, "OPENAI_AGENTS_DISABLE_TRACING": "1"})


class City(str, enum.Enum):
    OSLO = "Oslo"
    ROME = "Rome"


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
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool
    from openai import AsyncOpenAI
    from pydantic import BaseModel

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
    return "openai-agents"


def main():
    package = globals()[NAME]()
    print(package, version(package), "is happy")


if __name__ == "__main__":
    main()
