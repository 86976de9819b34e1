"""Run by test_clients.py inside a virtual environment: every reply and every event is, strictly, of the type that the official client has
for it. The clients themselves let wrong types through; whoever reads such a field finds out.

    python client_checks_types.py BASE_URL
"""

import functools
import json
import sys
import time
import urllib.error
import urllib.request
import uuid
from importlib.metadata import version

import anthropic.types as anthropic
import ollama
import openai.types as openai
from openai.pagination import SyncPage
from openai.types import chat, responses
from openai.types.responses.response_item_list import ResponseItemList
from pydantic import BaseModel, TypeAdapter

BASE = sys.argv[1]
HELLO = [{"role": "user", "content": "Hello"}]
CITY = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}}, "required": ["city"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city.", "parameters": CITY}}
FLAT_TOOL = {"type": "function", "strict": True, **TOOL["function"]}
ANTHROPIC_TOOL = {"name": "get_weather", "description": "The weather of a city.", "input_schema": CITY}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": CITY}}

# What vLLM and llama.cpp have beside OpenAI's fields, and this server's own words: documented, and no client stumbles over them.
OURS = {"stop_reason", "token_ids", "prompt_token_ids", "prompt_logprobs", "prompt_progress", "root", "max_model_len", "meta", "store",
        "created_at", "display_name", "lifecycle", "type", "has_more", "first_id", "last_id"}


def unknown_fields(value, raw):
    """Names of fields that the client's type does not have."""
    if isinstance(value, BaseModel):
        fields = {field.alias or name: name for name, field in type(value).model_fields.items()}
        for key, entry in raw.items():
            if key in fields:
                yield from unknown_fields(getattr(value, fields[key]), entry)
            else:
                yield key
    elif isinstance(value, (list, tuple)):
        for one, entry in zip(value, raw, strict=True):
            yield from unknown_fields(one, entry)
    elif isinstance(value, dict):
        for key, entry in raw.items():
            yield from unknown_fields(value[key], entry)


@functools.cache
def adapter(kind):
    """Making one takes longer than reading a hundred events with it."""
    return TypeAdapter(kind)


def typed(kind, text, ours=frozenset()):
    value = adapter(kind).validate_json(text, strict=True)
    unknown = set(unknown_fields(value, json.loads(text))) - set(ours)
    assert not unknown, f"{getattr(kind, '__name__', 'an event')} does not know {unknown}: {text}"
    return value


def must_fail(kind, text):
    try:
        typed(kind, text)
    except (ValueError, AssertionError):
        return
    raise AssertionError(f"{kind.__name__} takes {text}")


def ask(path, body=None, method=None, headers=None):
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(BASE + path, data, {"Content-Type": "application/json", **(headers or {})}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=300) as reply:
            return reply.read().decode()
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{path} {body}: {error.code} {error.read().decode()}") from error


def events(path, body):
    """The data of every event but [DONE], each with the name it goes by."""
    name = None
    for line in ask(path, {**body, "stream": True}).splitlines():
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data" and value != "[DONE]":
            yield name, value


def without_nulls(text):
    """OpenAI's completions have nulls that its client's type knows nothing of: no reason to finish yet, no log-probability of the first token."""
    chunk = json.loads(text)
    for choice in chunk["choices"]:
        choice["finish_reason"] = choice["finish_reason"] or "stop"
        logprobs = choice["logprobs"] or {}
        for name, nothing in (("token_logprobs", 0.0), ("top_logprobs", {})):
            if logprobs.get(name) and logprobs[name][0] is None:
                logprobs[name][0] = nothing
    return json.dumps(chunk)


def completions():
    common = {"prompt": "The grass is", "max_tokens": 8, "temperature": 0}
    ours = OURS & {"stop_reason", "token_ids", "prompt_token_ids", "prompt_logprobs", "prompt_progress"}
    for more in ({}, {"logprobs": 2, "echo": True}, {"n": 2, "seed": 1, "temperature": 1}, {"prompt": ["a", "b"]}, {"stop": " "}, {"return_token_ids": True},
                 {"prompt_logprobs": 1}, {"logprobs": 0}, {"max_tokens": 1}, {"max_tokens": 0, "echo": True, "logprobs": 1}):
        typed(openai.Completion, without_nulls(ask("/v1/completions", {**common, **more})), ours)
    for more in ({}, {"stream_options": {"include_usage": True}}, {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
                 {"logprobs": 2, "echo": True}, {"n": 2}, {"return_progress": True}, {"return_token_ids": True}):
        chunks = [typed(openai.Completion, without_nulls(data), ours) for _, data in events("/v1/completions", {**common, **more})]
        assert len(chunks) > 1, chunks


def chats():
    common = {"messages": HELLO, "max_tokens": 8, "temperature": 0}
    calling = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 300}
    ours = OURS & {"stop_reason", "token_ids", "prompt_token_ids", "prompt_logprobs", "prompt_progress"}
    requests = ({}, {"logprobs": True, "top_logprobs": 2}, {"n": 2}, {"response_format": SCHEMA, "max_tokens": 60}, calling, {**calling, "n": 2},
                {**calling, "parallel_tool_calls": False, "logprobs": True}, {"tools": [TOOL]}, {"return_token_ids": True})
    for more in requests:
        whole = typed(chat.ChatCompletion, ask("/v1/chat/completions", {**common, **more}), ours)
        if "tool_choice" in more:
            assert all(choice.message.tool_calls and choice.finish_reason in ("tool_calls", "length") for choice in whole.choices), whole
    for more in (*requests, {"stream_options": {"include_usage": True}}, {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
                 {"return_progress": True}):
        chunks = [typed(chat.ChatCompletionChunk, data, ours) for _, data in events("/v1/chat/completions", {**common, **more})]
        assert len(chunks) > 1 and len({chunk.id for chunk in chunks}) == 1, chunks


def response_events(body):
    """A stream of /v1/responses: the order that OpenAI documents, with nothing missing and nothing twice."""
    stream, place, items = [], 0, {}
    for name, data in events("/v1/responses", body):
        event = typed(responses.ResponseStreamEvent, data, OURS & {"store"} | {"name", "bytes"})  # openai 2 needs the name, openai 3 does not know it
        assert event.type == name and event.sequence_number == place, data
        place += 1
        stream.append(event)
        if name == "response.output_item.added":
            assert event.output_index == len(items), data
            items[event.output_index] = {"id": event.item.id, "open": True, "deltas": "", "part": None}
        elif name == "response.output_item.done":
            item = items[event.output_index]
            assert item["open"] and event.item.id == item["id"], data
            said = event.item.arguments if event.item.type == "function_call" else "".join(part.text for part in event.item.content)
            assert said == item["deltas"], (said, item)
            item["open"] = False
        elif "item_id" in type(event).model_fields:
            item = items[event.output_index]
            assert item["open"] and event.item_id == item["id"], data
            item["deltas"] += getattr(event, "delta", "")
    kinds = [event.type for event in stream]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"], kinds
    assert kinds[-1] in ("response.completed", "response.incomplete"), kinds
    assert not any(item["open"] for item in items.values()), items
    final = stream[-1].response
    assert [item.id for item in final.output] == [item["id"] for item in items.values()], final
    assert kinds.count("response.content_part.added") == kinds.count("response.content_part.done"), kinds
    return final


def response_api():
    common = {"model": "test", "input": "Hello", "temperature": 0, "max_output_tokens": 12}
    calling = {"tools": [FLAT_TOOL], "tool_choice": "required", "max_output_tokens": 300}
    text = {"text": {"format": {"type": "json_schema", "name": "city", "strict": True, "schema": CITY}}, "max_output_tokens": 60}
    ours = OURS & {"store"}
    for more in ({}, {"instructions": "Be brief.", "metadata": {"a": "b"}, "user": "me", "top_p": 0.9}, calling, {**calling, "parallel_tool_calls": False},
                 {**calling, "tool_choice": {"type": "function", "name": "get_weather"}}, {"tools": [FLAT_TOOL]}, text, {"truncation": "auto"},
                 {"include": ["message.output_text.logprobs"], "top_logprobs": 2}, {"store": False}, {"reasoning": {"effort": "low"}},
                 {"text": {"format": {"type": "json_object"}}}, {"service_tier": "auto"}, {"max_output_tokens": 1}, {"top_logprobs": 0},
                 {**calling, "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}}):
        whole = typed(responses.Response, ask("/v1/responses", {**common, **more}), ours)
        final = response_events({**common, **more})
        assert final.output_text == whole.output_text and final.status == whole.status, (more, final, whole)
        assert [item.type for item in final.output] == [item.type for item in whole.output], (more, final, whole)
        if more.get("store") is False:
            continue
        assert typed(responses.Response, ask(f"/v1/responses/{whole.id}"), ours) == whole
        for item in typed(ResponseItemList, ask(f"/v1/responses/{whole.id}/input_items")).data:
            assert item.id, item
    first = typed(responses.Response, ask("/v1/responses", {**common, **calling, "parallel_tool_calls": False}), ours)
    call = first.output[0]
    answer = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny"}
    second = typed(responses.Response, ask("/v1/responses", {**common, "previous_response_id": first.id, "input": [answer]}), ours)
    assert second.previous_response_id == first.id
    typed(ResponseItemList, ask(f"/v1/responses/{second.id}/input_items"))
    history = [{"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]}, json.loads(call.model_dump_json(exclude_none=True)), answer,
               {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
                "content": [{"type": "output_text", "text": "Sunny", "annotations": []}]}, {"role": "developer", "content": "Be brief."}]
    third = typed(responses.Response, ask("/v1/responses", {**common, "input": history}), ours)
    typed(ResponseItemList, ask(f"/v1/responses/{third.id}/input_items"))
    late = [typed(responses.ResponseStreamEvent, data, ours) for _, data in events("/v1/responses", {
        **common, "max_output_tokens": 100000, "ignore_eos": True, "timeout": 0.5})]
    assert late[-1].type in ("response.failed", "error"), late[-1]


def others_of_openai():
    ours = OURS & {"root", "max_model_len", "meta", "display_name", "lifecycle", "type", "created_at", "has_more", "first_id", "last_id"}
    typed(SyncPage[openai.Model], ask("/v1/models"), ours)
    typed(openai.Model, ask("/v1/models/test"), ours)
    for more in ({}, {"input": ["a", "b"]}, {"input": [5, 6, 7]}, {"input": [[5, 6], [7]]}, {"dimensions": 4}):
        typed(openai.CreateEmbeddingResponse, ask("/v1/embeddings", {"model": "test", "input": "Hello", **more}))
    typed(openai.CreateEmbeddingResponse, json.dumps({**json.loads(packed := ask("/v1/embeddings", {"input": "a", "encoding_format": "base64"})), "data": []}))
    assert isinstance(json.loads(packed)["data"][0]["embedding"], str)
    line = json.dumps({"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "max_tokens": 1}})
    mark = uuid.uuid4().hex
    form = "".join(f"--{mark}\r\nContent-Disposition: form-data; {name}\r\n\r\n{value}\r\n" for name, value in (
        ('name="purpose"', "batch"), ('name="file"; filename="in.jsonl"', line + "\n"))) + f"--{mark}--\r\n"
    file = typed(openai.FileObject, ask("/v1/files", form.encode(), headers={"Content-Type": f"multipart/form-data; boundary={mark}"}))
    typed(openai.FileObject, ask(f"/v1/files/{file.id}"))
    typed(SyncPage[openai.FileObject], ask("/v1/files"), ours)
    batch = typed(openai.Batch, ask("/v1/batches", {"input_file_id": file.id, "endpoint": "/v1/completions", "completion_window": "24h",
                                                    "metadata": {"a": "b"}}))
    while typed(openai.Batch, ask(f"/v1/batches/{batch.id}")).status not in ("completed", "failed"):
        time.sleep(0.05)
    done = typed(openai.Batch, ask(f"/v1/batches/{batch.id}"))
    assert done.request_counts.completed == 1, done
    result = json.loads(ask(f"/v1/files/{done.output_file_id}/content"))
    typed(openai.Completion, json.dumps(result["response"]["body"]), OURS & {"stop_reason"})
    typed(SyncPage[openai.Batch], ask("/v1/batches"), ours)
    typed(openai.Batch, ask(f"/v1/batches/{batch.id}/cancel", b"", "POST"))
    typed(openai.FileDeleted, ask(f"/v1/files/{file.id}", method="DELETE"))


def messages():
    common = {"model": "test", "messages": HELLO, "max_tokens": 8, "temperature": 0}
    calling = {"tools": [ANTHROPIC_TOOL], "tool_choice": {"type": "any"}, "max_tokens": 300}
    typed_output = {"output_config": {"format": {"type": "json_schema", "schema": CITY}}, "max_tokens": 60}
    text = typed(anthropic.Message, ask("/v1/messages", {**common, "max_tokens": 30})).content[0].text
    for more in ({}, {"max_tokens": 30, "stop_sequences": [text[10:13]]}, calling, {**calling, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
                 {**calling, "tool_choice": {"type": "tool", "name": "get_weather"}}, {"tools": [ANTHROPIC_TOOL]}, typed_output,
                 {"system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}], "metadata": {"user_id": "1"}},
                 {"messages": [*HELLO, {"role": "assistant", "content": "Hi"}]}, {"top_k": 3, "top_p": 0.5, "temperature": 1},
                 {"thinking": {"type": "disabled"}, "service_tier": "auto"}):
        whole = typed(anthropic.Message, ask("/v1/messages", {**common, **more}))
        if "stop_sequences" in more:
            assert whole.stop_reason == "stop_sequence" and whole.stop_sequence == more["stop_sequences"][0], whole
        open_block, ended = None, []
        for name, data in events("/v1/messages", {**common, **more}):
            event = typed(anthropic.RawMessageStreamEvent, data)
            assert event.type == name, data
            if name.startswith("content_block"):
                assert (open_block is None) == (name == "content_block_start") and event.index == len(ended), data
                open_block = None if name == "content_block_stop" else event.index
                ended += [event.index] if name == "content_block_stop" else []
            last = event.type
        assert last == "message_stop" and open_block is None, last
    typed(anthropic.MessageTokensCount, ask("/v1/messages/count_tokens", {"model": "test", "messages": HELLO, "tools": [ANTHROPIC_TOOL], "system": "Be brief."}))
    as_anthropic = {"anthropic-version": "2023-06-01"}
    ours = OURS & {"object", "created", "owned_by", "root", "max_model_len", "meta"} | {"object", "created", "owned_by"}
    for model in json.loads(ask("/v1/models", headers=as_anthropic))["data"]:
        typed(anthropic.ModelInfo, json.dumps(model), ours)


def ollama_api():
    common = {"model": "test", "options": {"num_predict": 8, "temperature": 0}}
    calling = {"tools": [TOOL], "options": {"num_predict": 300, "temperature": 0}, "tool_choice": "required"}
    logprobs = {"logprobs": True, "top_logprobs": 2}
    for path, kind, body in (("/api/chat", ollama.ChatResponse, {"messages": HELLO}), ("/api/generate", ollama.GenerateResponse, {"prompt": "Hello"})):
        for more in ({}, {"format": CITY}, {"format": "json"}, logprobs, {"keep_alive": "5m"}, {"keep_alive": -1}, *([calling] if path == "/api/chat" else [])):
            more = {**common, **body, **more}
            # Ollama's server has them, its client's type has not.
            ours = {"bytes"}
            assert typed(kind, ask(path, {**more, "stream": False}), ours).done, more
            lines = [typed(kind, line, ours) for line in ask(path, more).splitlines()]
            assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True], lines
        typed(kind, ask(path, {"model": "test"}))
    typed(ollama.ListResponse, ask("/api/tags"), {"name", "parent_model"})
    typed(ollama.ProcessResponse, ask("/api/ps"), {"parent_model"})
    typed(ollama.ShowResponse, ask("/api/show", {"model": "test"}), {"parent_model"})
    for more in ({}, {"input": ["a", "b"]}, {"truncate": False}, {"dimensions": 4}):
        typed(ollama.EmbedResponse, ask("/api/embed", {"model": "test", "input": "Hello", **more}))


def main():
    plain = ask("/v1/completions", {"prompt": "x", "max_tokens": 1})
    ours = {"stop_reason"}
    typed(openai.Completion, plain, ours)
    for wrong in (plain.replace('"created":', '"created":"","was":'), plain.replace('"index":0', '"index":"0"'), plain.replace('"model"', '"modell"')):
        assert wrong != plain
        must_fail(openai.Completion, wrong)
    for check in (completions, chats, response_api, others_of_openai, messages, ollama_api):
        check()
    print("types of openai", version("openai"), "anthropic", version("anthropic"), "ollama", version("ollama"), "are happy")


if __name__ == "__main__":
    main()
