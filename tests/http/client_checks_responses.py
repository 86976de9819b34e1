"""Run by test_clients.py inside a virtual environment: responses with the official openai package.

    python client_checks_responses.py BASE_URL
"""

import json
import sys

import openai
from pydantic import BaseModel

TOOL = {"type": "function", "name": "get_weather", "description": "The weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}}, "required": ["city"], "additionalProperties": False},
        "strict": True}


class Answer(BaseModel):
    blue: bool


ANSWER = {"type": "object", "properties": {"blue": {"type": "boolean"}}, "required": ["blue"], "additionalProperties": False}


def main():
    client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none")
    common = {"model": "test", "input": "How do I check if a Python object is an instance of a class?", "temperature": 0, "max_output_tokens": 24}
    reply = client.responses.create(instructions="You are a coding assistant that talks like a pirate.", **common)
    assert reply.output_text and reply.usage.output_tokens > 0, reply
    assert client.responses.retrieve(reply.id).output_text == reply.output_text

    plain = client.responses.create(**common)
    events = list(client.responses.create(stream=True, **common))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == plain.output_text
    assert events[-1].response.output_text == plain.output_text
    # The client's helper wants a reply that was not cut off.
    short = {**common, "max_output_tokens": 60, "text": {"format": {"type": "json_schema", "name": "answer", "strict": True, "schema": ANSWER}}}
    with client.responses.stream(**short) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == client.responses.create(**short).output_text

    more = client.responses.create(model="test", input="And then?", previous_response_id=plain.id, max_output_tokens=8)
    assert more.previous_response_id == plain.id, more
    assert client.responses.input_items.list(plain.id).data[0].role == "user"
    client.responses.delete(plain.id)
    try:
        client.responses.retrieve(plain.id)
        raise AssertionError("no error")
    except openai.NotFoundError:
        pass

    structured = client.responses.create(model="test", input="Is the sky blue?", max_output_tokens=60, text=short["text"])
    assert isinstance(json.loads(structured.output_text)["blue"], bool), structured
    called = client.responses.create(model="test", input="Weather?", tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_output_tokens=200)
    call = called.output[0]
    assert call.type == "function_call" and json.loads(call.arguments)["city"] in ("Oslo", "Rome"), called
    forced = {"model": "test", "input": "Weather?", "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, "temperature": 0,
              "max_output_tokens": 200}
    with client.responses.stream(**forced) as stream:
        deltas = "".join(event.delta for event in stream if event.type == "response.function_call_arguments.delta")
        assert stream.get_final_response().output[0].arguments == deltas == client.responses.create(**forced).output[0].arguments
    assert isinstance(client.responses.parse(model="test", input="Is the sky blue?", text_format=Answer, max_output_tokens=60).output_parsed, Answer)
    client.responses.create(model="test", previous_response_id=called.id, max_output_tokens=8,
                            input=[{"type": "function_call_output", "call_id": call.call_id, "output": "Sunny"}])
    vectors = client.embeddings.create(model="test", input=["a", "b"], dimensions=4)
    assert len(vectors.data) == 2 and len(vectors.data[0].embedding) == 4, vectors
    print("openai", openai.__version__, "is happy with responses")


if __name__ == "__main__":
    main()
