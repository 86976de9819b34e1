#include "server/api/openapi.h"

namespace bam {

// One paragraph per schema; requests that are read by a table of fields are described by it. tests/http/test_schemathesis.py checks real replies against them.
const char* openapi_schemas() {
  return R"({
"Error": {"type": "object", "properties": {"error": {"type": "object", "properties": {"message": {"type": "string"},
"type": {"type": "string"}, "param": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "code": {"anyOf": [{"type":
"string"}, {"type": "null"}]}}, "required": ["message", "type", "param", "code"]}}, "required": ["error"]},
"AnyObject": {"type": "object"},
"Tool": {"type": "object", "properties": {"type": {"const": "function"}, "function": {"type": "object", "properties":
{"name": {"type": "string", "pattern": "^[A-Za-z0-9_.:-]{1,128}$"}, "description": {"type": ["string", "null"]},
"parameters": {"type": ["object", "null"]}, "strict": {"type": ["boolean", "null"]}}, "required": ["name"]}},
"required": ["type", "function"]},
"ToolCall": {"type": "object", "properties": {"id": {"type": "string"}, "type": {"const": "function"}, "function":
{"type": "object", "properties": {"name": {"type": "string"}, "arguments": {"type": "string"}}, "required": ["name",
"arguments"]}}, "required": ["id", "type", "function"]},
"Message": {"type": "object", "properties": {"role": {"type": "string", "minLength": 1, "maxLength": 64}, "content":
{"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object", "required": ["type", "text"],
"properties": {"type": {"const": "text"}, "text": {"type": "string"}}}}, {"type": "null"}]}, "name": {"anyOf":
[{"type": "string"}, {"type": "null"}]}, "tool_call_id": {"type": ["string", "null"]}, "tool_calls": {"anyOf":
[{"type": "array", "maxItems": 128, "items": {"$ref": "#/components/schemas/ToolCall"}}, {"type": "null"}]}},
"required": ["role"]},
"Usage": {"type": "object", "properties": {"prompt_tokens": {"type": "integer"}, "completion_tokens": {"type":
"integer"}, "total_tokens": {"type": "integer"}, "prompt_tokens_details": {"type": "object", "properties":
{"cached_tokens": {"type": "integer"}}, "required": ["cached_tokens"]}, "completion_tokens_details": {"type": "object",
"properties": {"accepted_prediction_tokens": {"type": "integer"}, "rejected_prediction_tokens": {"type": "integer"}},
"required": ["accepted_prediction_tokens", "rejected_prediction_tokens"]}}, "required": ["prompt_tokens",
"completion_tokens", "total_tokens", "prompt_tokens_details", "completion_tokens_details"]},
"Completion": {"type": "object", "properties": {"id": {"type": "string"}, "object": {"const": "text_completion"},
"created": {"type": "integer"}, "model": {"type": "string"}, "system_fingerprint": {"type": "string"}, "choices":
{"type": "array", "items": {"type": "object", "properties": {"index": {"type": "integer"}, "text": {"type":
"string"}, "logprobs": {"anyOf": [{"type": "object", "properties": {"tokens": {"type": "array", "items": {"type":
"string"}}, "token_logprobs": {"type": "array", "items": {"anyOf": [{"type": "number"}, {"type": "null"}]}},
"top_logprobs": {"type": "array", "items": {"anyOf": [{"type": "object", "additionalProperties": {"type":
"number"}}, {"type": "null"}]}}, "text_offset": {"type": "array", "items": {"type": "integer"}}}, "required":
["tokens", "token_logprobs", "top_logprobs", "text_offset"]}, {"type": "null"}]}, "finish_reason": {"enum": ["stop",
"length", "abort"]}, "stop_reason": {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]},
"prompt_logprobs": {"type": "array", "items": {"anyOf": [{"type": "object", "additionalProperties": {"type":
"object", "properties": {"logprob": {"type": "number"}, "rank": {"type": "integer"}, "decoded_token": {"type":
"string"}}, "required": ["logprob", "rank", "decoded_token"]}}, {"type": "null"}]}}, "token_ids": {"type": "array",
"items": {"type": "integer"}}, "prompt_token_ids": {"type": "array", "items": {"type": "integer"}}}, "required":
["index", "text", "logprobs", "finish_reason", "stop_reason"]}}, "usage": {"$ref": "#/components/schemas/Usage"}},
"required": ["id", "object", "created", "model", "system_fingerprint", "choices", "usage"]},
)"
         R"(
"ChatCompletion": {"type": "object", "properties": {"id": {"type": "string"}, "object": {"const":
"chat.completion"}, "created": {"type": "integer"}, "model": {"type": "string"}, "system_fingerprint": {"type":
"string"}, "choices": {"type": "array", "items": {"type": "object", "properties": {"index": {"type": "integer"},
"message": {"type": "object", "properties": {"role": {"const": "assistant"}, "content": {"type": ["string",
"null"]}, "refusal": {"type": "null"}, "tool_calls": {"type": "array", "minItems": 1, "items": {"$ref":
"#/components/schemas/ToolCall"}}}, "required": ["role", "content", "refusal"]}, "logprobs": {"anyOf": [{"type": "object",
"properties": {"content": {"type": "array", "items": {"type": "object", "properties": {"token": {"type": "string"},
"logprob": {"type": "number"}, "bytes": {"type": "array", "items": {"type": "integer"}}, "top_logprobs": {"type":
"array", "items": {"type": "object", "properties": {"token": {"type": "string"}, "logprob": {"type": "number"},
"bytes": {"type": "array", "items": {"type": "integer"}}}, "required": ["token", "logprob", "bytes"]}}}, "required":
["token", "logprob", "bytes", "top_logprobs"]}}, "refusal": {"type": "null"}}, "required": ["content", "refusal"]},
{"type": "null"}]}, "finish_reason": {"enum": ["stop", "length", "tool_calls",
"abort"]}, "stop_reason": {"anyOf": [{"type":
"string"}, {"type": "integer"}, {"type": "null"}]}, "token_ids": {"type": "array", "items": {"type": "integer"}}}, "required": ["index", "message", "logprobs", "finish_reason",
"stop_reason"]}}, "usage": {"$ref": "#/components/schemas/Usage"}, "prompt_logprobs": {"type": "array", "items": {"anyOf":
[{"type": "object", "additionalProperties": {"type": "object", "properties": {"logprob": {"type": "number"}, "rank":
{"type": "integer"}, "decoded_token": {"type": "string"}}, "required": ["logprob", "rank", "decoded_token"]}},
{"type": "null"}]}}, "prompt_token_ids": {"type":
"array", "items": {"type": "integer"}}}, "required": ["id", "object", "created", "model",
"system_fingerprint", "choices", "usage"]},
"Model": {"type": "object", "properties": {"id": {"type": "string"}, "object": {"const": "model"}, "created":
{"type": "integer"}, "owned_by": {"type": "string"}, "root": {"type": "string"}, "max_model_len": {"type":
"integer"}, "meta": {"type": "object"}}, "required": ["id", "object", "created", "owned_by", "root",
"max_model_len", "meta"]},
"ModelList": {"type": "object", "properties": {"object": {"const": "list"}, "data": {"type": "array", "items":
{"$ref": "#/components/schemas/Model"}}}, "required": ["object", "data"]},
"Tokens": {"type": "object", "properties": {"tokens": {"type": "array", "items": {"anyOf": [{"type": "integer"},
{"type": "object", "required": ["id", "piece"]}]}}, "count":
{"type": "integer"}, "max_model_len": {"type": "integer"}, "token_strs": {"type": "array", "items": {"type":
"string"}}}, "required": ["tokens", "count", "max_model_len"]},
"Text": {"type": "object", "properties": {"prompt": {"type": "string"}, "content": {"type": "string"}}, "required":
["prompt", "content"]},
"TokenizerInfo": {"type": "object", "properties": {"tokenizer_class": {"type": "string"}, "vocab_size": {"type":
"integer"}, "bos_token": {"type": "string"}, "bos_token_id": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
"eos_token": {"type": "string"}, "eos_token_id": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
"eos_token_ids": {"type": "array", "items": {"type": "integer"}}, "add_bos_token": {"type": "boolean"},
"max_model_len": {"type": "integer"}, "chat_template": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
"required": ["tokenizer_class", "vocab_size", "bos_token", "bos_token_id", "eos_token", "eos_token_id",
"eos_token_ids", "add_bos_token", "max_model_len", "chat_template"]},
"LiveRequest": {"type": "object", "properties": {"id": {"type": "string"}, "state": {"enum": ["queued", "prefill",
"decode", "preempted", "paused"]}, "priority": {"type": "integer"}, "n": {"type": "integer"}, "prompt_tokens": {"type":
"integer"}, "cached_tokens": {"type": "integer"}, "processed_tokens": {"type": "integer"}, "generated_tokens":
{"type": "integer"}, "age_ms": {"type": "number"}, "eta_ms": {"type": "number"}}, "required": ["id", "state",
"priority", "n", "prompt_tokens", "cached_tokens", "processed_tokens", "generated_tokens", "age_ms", "eta_ms"]},
"RequestList": {"type": "object", "properties": {"object": {"const": "list"}, "data": {"type": "array", "items":
{"$ref": "#/components/schemas/LiveRequest"}}, "running": {"type": "integer"}, "waiting": {"type": "integer"},
"paused": {"type": "integer"}, "queued_tokens": {"type": "integer"}, "queued_work_seconds": {"type": "number"}},
"required": ["object", "data", "running", "waiting", "paused", "queued_tokens", "queued_work_seconds"]},
"Cancelled": {"type": "object", "properties": {"id": {"type": "string"}, "cancelled": {"type": "boolean"}},
"required": ["id", "cancelled"]},
"CancelledAll": {"type": "object", "properties": {"cancelled": {"type": "integer"}}, "required": ["cancelled"]},
"KvSaveRequest": {"type": "object", "properties": {"name": {"type": "string", "pattern":
"^[A-Za-z0-9._:-]{1,128}$"}, "prompt": {"type": "string"}, "tokens": {"type": "array", "items": {"type": "integer",
"minimum": 0, "maximum": 2147483647}}, "cache_salt": {"anyOf": [{"type": "string", "maxLength": 256}, {"type":
"null"}]}, "add_special_tokens": {"anyOf": [{"type": "boolean"}, {"type": "null"}]}}, "required": ["name"]},
"KvRestoreRequest": {"type": "object", "properties": {"name": {"type": "string", "pattern":
"^[A-Za-z0-9._:-]{1,128}$"}}, "required": ["name"]},
"KvResult": {"type": "object", "properties": {"status": {"const": "ok"}, "message": {"type": "string"}}, "required":
["status", "message"]},
"HeadPrior": {"type": "object", "properties": {"layer": {"type": "integer"}, "head": {"type": "integer"}, "alpha":
{"type": "number"}, "beta": {"type": "number"}, "theta_mu": {"type": "number"}, "mu": {"type": "number"},
"seq_scale": {"type": "number"}, "class": {"enum": ["retrieval", "uniform", "heavy_tail", "local", "other"]},
"reach": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "logit_bound": {"type": "number"}, "tiles_visited":
{"type": "integer"}, "tiles_skipped": {"type": "integer"}, "bound_tests": {"type": "integer"}, "left_out_bound":
{"type": "number", "minimum": 0}}, "required": ["layer", "head", "alpha", "beta", "theta_mu", "mu", "seq_scale",
"class", "reach", "logit_bound", "tiles_visited", "tiles_skipped", "bound_tests", "left_out_bound"]},
"Prior": {"type": "object", "properties": {"position_encoding": {"type": "string"}, "prior_form": {"enum":
["scale_outside", "scale_inside"]}, "prior_eps": {"type": "number"}, "ssmax": {"type": "boolean"}, "ssmax_prior":
{"type": "boolean"}, "head_dim": {"type": "integer"}, "num_layers": {"type": "integer"}, "num_heads": {"type":
"integer"}, "num_kv_heads": {"type": "integer"}, "max_model_len": {"type": "integer"}, "heads": {"type": "array",
"items": {"$ref": "#/components/schemas/HeadPrior"}}}, "required": ["position_encoding", "prior_form", "prior_eps",
"ssmax", "ssmax_prior", "head_dim", "num_layers", "num_heads", "num_kv_heads", "max_model_len", "heads"]},
"Attention": {"type": "object", "properties": {"object": {"const": "attention"}, "id": {"type": "string"}, "model": {"type":
"string"}, "position": {"type": "integer"}, "from": {"type": "integer"}, "to": {"type": "integer"}, "bin_keys": {"type":
"integer"}, "heads": {"type": "array", "items": {"type": "object", "properties": {"layer": {"type": "integer"}, "head":
{"type": "integer"}, "first_key": {"type": "integer"}, "outside": {"type": "number"}, "sum": {"type": "array", "items":
{"type": "number"}}, "max": {"type": "array", "items": {"type": "number"}}, "prior": {"type": "array", "items": {"type":
"number"}}, "spans": {"type": "array", "items": {"type": "number"}}, "peaks": {"type": "array", "items": {"type": "object",
"properties": {"key": {"type": "integer"}, "weight": {"type": "number"}, "prior": {"type": "number"}}, "required": ["key",
"weight", "prior"]}}}, "required": ["layer", "head", "first_key", "outside", "sum", "max", "prior", "spans", "peaks"]}},
"tokens": {"type": "object", "additionalProperties": {"type": "string"}}, "usage": {"type": "object"}}, "required":
["object", "id", "model", "position", "from", "to", "bin_keys", "heads", "tokens", "usage"]},
"PasskeyRequest": {"type": "object", "properties": {"length": {"anyOf": [{"type": "integer", "minimum": 1,
"maximum": 1099511627776}, {"type": "null"}]}, "depths": {"anyOf": [{"type": "array", "minItems": 1, "maxItems": 20,
"items": {"type": "number", "minimum": 0, "maximum": 1}}, {"type": "null"}]}, "seed": {"anyOf": [{"type": "integer",
"minimum": 0, "maximum": 9223372036854775807}, {"type": "null"}]}}, "required": []},
"PasskeyResult": {"type": "object", "properties": {"length": {"type": "integer"}, "hits": {"type": "integer"},
"trials": {"type": "integer"}, "accuracy": {"type": "number"}, "results": {"type": "array", "items": {"type":
"object", "properties": {"depth": {"type": "number"}, "key": {"type": "string"}, "answer": {"type": "string"},
"hit": {"type": "boolean"}, "prompt_tokens": {"type": "integer"}, "cached_tokens": {"type": "integer"}, "ttft_ms":
{"type": "number"}}, "required": ["depth", "key", "answer", "hit", "prompt_tokens", "cached_tokens", "ttft_ms"]}}},
"required": ["length", "hits", "trials", "accuracy", "results"]},
"Status": {"type": "object", "properties": {"status": {"enum": ["ok", "loading", "draining", "stalled", "waiting for a lost rank"]}},
"required": ["status"]},
"Health": {"type": "object", "properties": {"status": {"enum": ["ok", "loading", "draining", "stalled", "waiting for a lost rank"]},
"uptime_seconds": {"type": "integer"}, "connections": {"type": "integer"}, "model": {"type": "string"}, "running":
{"type": "integer"}, "waiting": {"type": "integer"}, "queued_tokens": {"type": "integer"}, "queued_work_seconds":
{"type": "number"}, "last_step_age_seconds": {"type": "number"}, "kv_pages": {"type": "object",
"additionalProperties": {"type": "integer"}}}, "required": ["status"]},
"Version": {"type": "object", "properties": {"version": {"type": "string"}, "server": {"const": "bam"}}, "required":
["version", "server"]},
"Props": {"type": "object", "properties": {"version": {"type": "string"}, "config": {"type": "object"}, "model":
{"$ref": "#/components/schemas/Model"}, "engine": {"type": "object"}, "stages": {"type": "array", "items": {"type":
"object", "properties": {"first_layer": {"type": "integer"}, "layers": {"type": "integer"}, "device": {"type":
"string"}, "kv_pages": {"type": "object", "additionalProperties": {"type": "integer"}}, "steps": {"type":
"integer"}, "busy_seconds": {"type": "number"}, "wait_seconds": {"type": "number"}, "step_ms": {"type": "number"}},
"required": ["first_layer", "layers", "device", "kv_pages", "steps", "busy_seconds", "wait_seconds", "step_ms"]}},
"default_generation_settings": {"type": "object"}, "total_slots": {"type": "integer"}, "chat_template": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
"required": ["version", "config", "model", "engine", "stages", "default_generation_settings", "total_slots",
"chat_template"]},
"Slots": {"type": "array", "items": {"type": "object", "properties": {"id": {"type": "integer"}, "id_task":
{"anyOf": [{"type": "string"}, {"type": "null"}]}, "n_ctx": {"type": "integer"}, "is_processing": {"type":
"boolean"}}, "required": ["id", "id_task", "n_ctx", "is_processing"]}},
)"
         R"(

"CompletionEvent": {"anyOf": [{"$ref": "#/components/schemas/CompletionChunk"}, {"$ref": "#/components/schemas/Error"}]},
"ChatEvent": {"anyOf": [{"$ref": "#/components/schemas/ChatChunk"}, {"$ref": "#/components/schemas/Error"}]},
"CompletionChunk": {"type": "object", "properties": {"id": {"type": "string"}, "object": {"const": "text_completion"}, "created": {"type":
"integer"}, "model": {"type": "string"}, "system_fingerprint": {"type": "string"}, "choices": {"type": "array", "items": {"type": "object",
"properties": {"index": {"type": "integer"}, "text": {"type": "string"}, "logprobs": {"$ref":
"#/components/schemas/Completion/properties/choices/items/properties/logprobs"}, "finish_reason": {"enum": ["stop", "length", "tool_calls", "abort",
null]}, "stop_reason": {"type": ["string", "integer", "null"]}, "token_ids": {"type": "array", "items": {"type": "integer"}}, "prompt_token_ids":
{"type": "array", "items": {"type": "integer"}}}, "required": ["index", "text", "logprobs", "finish_reason", "stop_reason"], "additionalProperties":
false}}, "usage": {"anyOf": [{"$ref": "#/components/schemas/Usage"}, {"type": "null"}]}, "prompt_progress": {"$ref":
"#/components/schemas/PromptProgress"}}, "required": ["id", "object", "created", "model", "system_fingerprint", "choices"], "additionalProperties":
false},
"PromptProgress": {"type": "object", "properties": {"total": {"type": "integer"}, "cache": {"type": "integer"}, "processed": {"type": "integer"},
"time_ms": {"type": "number"}, "eta_ms": {"type": "number"}}, "required": ["total", "cache", "processed", "time_ms", "eta_ms"],
"additionalProperties": false},
"ChatChunk": {"type": "object", "properties": {"id": {"type": "string"}, "object": {"const": "chat.completion.chunk"}, "created": {"type":
"integer"}, "model": {"type": "string"}, "system_fingerprint": {"type": "string"}, "choices": {"type": "array", "items": {"type": "object",
"properties": {"index": {"type": "integer"}, "delta": {"type": "object", "properties": {"role": {"const": "assistant"}, "content": {"type":
"string"}, "tool_calls": {"type": "array", "minItems": 1, "items": {"type": "object", "properties": {"index": {"type": "integer"}, "id": {"type":
"string"}, "type": {"const": "function"}, "function": {"type": "object", "properties": {"name": {"type": "string"}, "arguments": {"type":
"string"}}, "required": ["arguments"], "additionalProperties": false}}, "required": ["index", "function"], "additionalProperties": false}}},
"required": [], "additionalProperties": false}, "logprobs": {"$ref":
"#/components/schemas/ChatCompletion/properties/choices/items/properties/logprobs"}, "finish_reason": {"enum": ["stop", "length", "tool_calls",
"abort", null]}, "stop_reason": {"type": ["string", "integer", "null"]}, "token_ids": {"type": "array", "items": {"type": "integer"}}}, "required":
["index", "delta", "logprobs", "finish_reason"], "additionalProperties": false}}, "usage": {"anyOf": [{"$ref": "#/components/schemas/Usage"},
{"type": "null"}]}, "prompt_progress": {"$ref": "#/components/schemas/PromptProgress"}, "prompt_token_ids": {"type": "array", "items": {"type":
"integer"}}}, "required": ["id", "object", "created", "model", "system_fingerprint", "choices"], "additionalProperties": false}
})";
}

}  // namespace bam
