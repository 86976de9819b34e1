#include "server/api/openapi.h"

namespace bam {

// Schemas of the APIs beside OpenAI's completions and chat; what they share with chat is described there.
const char* openapi_dialect_schemas() {
  return R"({
"Deleted": {"type": "object", "properties": {"id": {"type": "string"}, "object": {"type": "string"}, "deleted": {"const": true}},
"required": ["id", "object", "deleted"]},
"ResponsesRequest": {"type": "object", "properties": {"model": {"type": ["string", "null"], "maxLength": 1024}, "input": {"anyOf": [{"type": "string"}, {"type": "array",
"minItems": 1, "maxItems": 4096, "items": {"$ref": "#/components/schemas/ResponseItem"}}]}, "instructions": {"type": ["string", "null"]},
"max_output_tokens": {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 1099511627776}, {"type": "null"}]}, "previous_response_id":
{"type": ["string", "null"]}, "store": {"type": ["boolean", "null"]}, "stream": {"type": ["boolean", "null"]}, "temperature": {"anyOf":
[{"type": "number", "minimum": 0, "maximum": 100}, {"type": "null"}]}, "top_p": {"anyOf": [{"type": "number", "exclusiveMinimum": 0, "maximum": 1},
{"type": "null"}]}, "text": {"anyOf": [{"type": "object", "properties": {"format": {"type": "object", "properties": {"type": {"enum": ["text",
"json_object", "json_schema"]}, "schema": {"type": "object"}}, "required": ["type"]}}}, {"type": "null"}]}, "tools": {"anyOf": [{"type": "array",
"maxItems": 128, "items": {"type": "object", "properties": {"type": {"const": "function"}, "name": {"type": "string", "pattern":
"^[A-Za-z0-9_.:-]{1,128}$"}, "description": {"type": ["string", "null"]}, "parameters": {"type": ["object", "null"]}}, "required": ["type", "name"]}},
{"type": "null"}]}, "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required"]}, {"type": "object"}, {"type": "null"}]},
"parallel_tool_calls": {"type": ["boolean", "null"]}, "metadata": {"type": ["object", "null"]}}, "required": ["input"]},
"ResponseItem": {"anyOf": [{"type": "object", "properties": {"type": {"const": "message"}, "role": {"enum": ["user", "assistant", "system",
"developer"]}, "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object", "properties": {"type": {"enum":
["input_text", "output_text"]}, "text": {"type": "string"}}, "required": ["type", "text"]}}]}}, "required": ["role", "content"]}, {"type":
"object", "properties": {"type": {"const": "function_call"}, "call_id": {"type": "string"}, "name": {"type": "string"}, "arguments": {"type":
"string"}}, "required": ["type", "call_id", "name", "arguments"]}, {"type": "object", "properties": {"type": {"const": "function_call_output"},
"call_id": {"type": "string"}, "output": {"type": "string"}}, "required": ["type", "call_id", "output"]}]},
"Response": {"type": "object", "properties": {"id": {"type": "string"}, "object": {"const": "response"}, "created_at": {"type": "integer"},
"status": {"enum": ["completed", "incomplete", "cancelled"]}, "model": {"type": "string"}, "output": {"type": "array", "items": {"type":
"object", "properties": {"type": {"enum": ["message", "function_call"]}, "id": {"type": "string"}}, "required": ["type", "id", "status"]}},
"usage": {"anyOf": [{"type": "object", "properties": {"input_tokens": {"type": "integer"}, "output_tokens": {"type": "integer"}, "total_tokens":
{"type": "integer"}}, "required": ["input_tokens", "input_tokens_details", "output_tokens", "output_tokens_details", "total_tokens"]}, {"type":
"null"}]}}, "required": ["id",
"object", "created_at", "status", "error", "incomplete_details", "model", "output", "usage"]},
"ResponseItems": {"type": "object", "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": {"type": "object"}},
"has_more": {"type": "boolean"}}, "required": ["object", "data", "has_more"]},
"AnthropicError": {"type": "object", "properties": {"type": {"const": "error"}, "error": {"type": "object", "properties": {"type": {"type":
"string"}, "message": {"type": "string"}}, "required": ["type", "message"]}}, "required": ["type", "error"]},
"AnthropicMessage": {"type": "object", "properties": {"role": {"enum": ["user", "assistant"]}, "content": {"anyOf": [{"type": "string"}, {"type":
"array", "items": {"anyOf": [{"type": "object", "properties": {"type": {"const": "text"}, "text": {"type": "string"}}, "required": ["type",
"text"]}, {"type": "object", "properties": {"type": {"enum": ["tool_use", "tool_result"]}}, "required": ["type"]}]}}]}}, "required": ["role",
"content"]},
"CountTokensRequest": {"type": "object", "properties": {"model": {"type": "string", "maxLength": 1024}, "messages": {"type": "array", "minItems": 1,
"maxItems": 4096, "items": {"$ref": "#/components/schemas/AnthropicMessage"}}, "system": {"type": ["string", "null"]}}, "required":
["messages"]},
"MessagesRequest": {"type": "object", "properties": {"model": {"type": "string", "maxLength": 1024}, "messages": {"type": "array", "minItems": 1,
"maxItems": 4096, "items": {"$ref": "#/components/schemas/AnthropicMessage"}}, "max_tokens": {"type": "integer", "minimum": 1, "maximum":
1099511627776}, "system": {"type": ["string", "null"]}, "stop_sequences": {"type": "array", "maxItems": 16, "items": {"type": "string", "minLength":
1}}, "stream": {"type": ["boolean", "null"]}, "temperature": {"type": "number", "minimum": 0, "maximum": 100}, "top_p": {"type": "number",
"exclusiveMinimum": 0, "maximum": 1}, "top_k": {"type": "integer", "minimum": -1, "maximum": 2147483647}, "tools": {"type": "array", "maxItems":
128, "items": {"type": "object", "properties": {"name": {"type": "string", "pattern": "^[A-Za-z0-9_.:-]{1,128}$"}, "description": {"type":
"string"}, "input_schema": {"type": "object"}}, "required": ["name", "input_schema"]}}, "tool_choice": {"type": "object", "properties": {"type":
{"enum": ["auto", "any", "none", "tool"]}}, "required": ["type"]}, "output_config": {"anyOf": [{"type": "object", "additionalProperties": false,
"properties": {"effort": {"type": ["string", "null"]}, "format": {"anyOf": [{"type": "object", "additionalProperties": false, "properties": {"type":
{"const": "json_schema"}, "schema": {"type": "object"}}, "required": ["type", "schema"]}, {"type": "null"}]}}}, {"type": "null"}]}}, "required":
["messages", "max_tokens"]},
"AnthropicReply": {"type": "object", "properties": {"id": {"type": "string"}, "type": {"const": "message"}, "role": {"const": "assistant"},
"model": {"type": "string"}, "content": {"type": "array", "minItems": 1, "items": {"type": "object", "properties": {"type": {"enum": ["text",
"tool_use"]}}, "required": ["type"]}}, "stop_reason": {"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]}, "stop_sequence":
{"type": ["string", "null"]}, "usage": {"type": "object", "properties": {"input_tokens": {"type": "integer"}, "output_tokens": {"type":
"integer"}}, "required": ["input_tokens", "output_tokens"]}}, "required": ["id", "type", "role", "model", "content", "stop_reason",
"stop_sequence", "usage"]},
"TokenCount": {"type": "object", "properties": {"input_tokens": {"type": "integer", "minimum": 0}}, "required": ["input_tokens"]},
"OllamaError": {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]},
"OllamaOptions": {"anyOf": [{"type": "object", "properties": {"num_predict": {"type": "integer", "minimum": -2, "maximum": 1099511627776},
"temperature": {"type": "number", "minimum": 0, "maximum": 100}, "seed": {"type": "integer"}, "stop": {"type": "array", "maxItems": 16, "items":
{"type": "string", "minLength": 1}}}}, {"type": "null"}]},
"OllamaChatRequest": {"type": "object", "properties": {"model": {"type": "string", "maxLength": 1024}, "messages": {"type": "array", "maxItems":
4096, "items": {"type": "object", "properties": {"role": {"type": "string", "minLength": 1, "maxLength": 64}, "content": {"type": "string"}},
"required": ["role", "content"]}}, "stream": {"type": ["boolean", "null"]}, "format": {"anyOf": [{"const": "json"}, {"type": "object"}, {"type":
"null"}]}, "options": {"$ref": "#/components/schemas/OllamaOptions"}, "keep_alive": {}}, "required": ["model"]},
"OllamaGenerateRequest": {"type": "object", "properties": {"model": {"type": "string", "maxLength": 1024}, "prompt": {"type": "string"}, "system":
{"type": "string"}, "raw": {"type": "boolean"}, "stream": {"type": ["boolean", "null"]}, "format": {"anyOf": [{"const": "json"}, {"type":
"object"}, {"type": "null"}]}, "options": {"$ref": "#/components/schemas/OllamaOptions"}, "keep_alive": {}}, "required": ["model"]},
"OllamaReply": {"type": "object", "properties": {"model": {"type": "string"}, "created_at": {"type": "string"}, "done": {"const": true},
"done_reason": {"enum": ["stop", "length", "load", "unload"]}}, "required": ["model", "created_at", "done", "done_reason"]},
"OllamaModels": {"type": "object", "properties": {"models": {"type": "array", "minItems": 1, "items": {"type": "object", "properties": {"name":
{"type": "string"}, "model": {"type": "string"}, "size": {"type": "integer"}, "digest": {"type": "string"}, "details": {"type": "object"}},
"required": ["name", "model", "size", "digest", "details"]}}}, "required": ["models"]},
"OllamaShowRequest": {"type": "object", "properties": {"model": {"type": "string", "maxLength": 1024}}, "required": ["model"]},
"OllamaShow": {"type": "object", "required": ["details", "model_info", "capabilities", "template"]},
"OllamaVersion": {"type": "object", "properties": {"version": {"type": "string"}}, "required": ["version"]},
"EmbeddingsRequest": {"type": "object", "properties": {"model": {"type": ["string", "null"], "maxLength": 1024}, "input": {"anyOf": [{"type": "string",
"minLength": 1}, {"type": "array", "minItems": 1, "maxItems": 64, "items": {"type": "string", "minLength": 1}}, {"type": "array", "minItems": 1, "items":
{"type": "integer", "minimum": 0, "maximum": 2147483647}}]}, "dimensions": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]},
"encoding_format": {"anyOf": [{"enum": ["float", "base64"]}, {"type": "null"}]}, "pooling": {"anyOf": [{"enum": ["mean", "last"]}, {"type":
"null"}]}}, "required": ["input"]},
"Embeddings": {"type": "object", "properties": {"object": {"const": "list"}, "data": {"type": "array", "minItems": 1, "items": {"type": "object",
"properties": {"object": {"const": "embedding"}, "index": {"type": "integer"}, "embedding": {"anyOf": [{"type": "array", "items": {"type":
"number"}}, {"type": "string"}]}}, "required": ["object", "index", "embedding"]}}, "model": {"type": "string"}, "usage": {"type": "object"}},
"required": ["object", "data", "model", "usage"]},
"OllamaEmbedRequest": {"type": "object", "properties": {"model": {"type": "string", "maxLength": 1024}, "input": {"anyOf": [{"type": "string",
"minLength": 1}, {"type": "array", "minItems": 1, "maxItems": 64, "items": {"type": "string", "minLength": 1}}]}, "dimensions": {"type": "integer", "minimum": 1},
"truncate": {"type": "boolean"}, "options": {"$ref": "#/components/schemas/OllamaOptions"}}, "required": ["model", "input"]},
"OllamaEmbeddingRequest": {"type": "object", "properties": {"model": {"type": "string", "maxLength": 1024}, "prompt": {"type": "string"},
"options": {"$ref": "#/components/schemas/OllamaOptions"}}, "required": ["model", "prompt"]},
"OllamaEmbedding": {"type": "object", "properties": {"embedding": {"type": "array", "items": {"type": "number"}}}, "required": ["embedding"]},
"OllamaEmbeddings": {"type": "object", "properties": {"model": {"type": "string"}, "embeddings": {"type": "array", "items": {"type": "array",
"items": {"type": "number"}}}}, "required": ["model", "embeddings"]},
"File": {"type": "object", "properties": {"id": {"type": "string"}, "object": {"const": "file"}, "bytes": {"type": "integer"}, "filename":
{"type": "string"}, "purpose": {"type": "string"}}, "required": ["id", "object", "bytes", "created_at", "filename", "purpose"]},
"FileList": {"type": "object", "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": {"$ref":
"#/components/schemas/File"}}}, "required": ["object", "data"]},
"BatchRequest": {"type": "object", "properties": {"input_file_id": {"type": "string"}, "endpoint": {"enum": ["/v1/chat/completions",
"/v1/completions", "/v1/embeddings", "/v1/responses"]}, "completion_window": {"type": ["string", "null"], "pattern": "^[1-9][0-9]{0,6}[smhd]$"}, "metadata": {"type":
["object", "null"]}}, "required": ["input_file_id", "endpoint"]},
"Batch": {"type": "object", "properties": {"id": {"type": "string"}, "object": {"const": "batch"}, "status": {"enum": ["in_progress",
"completed", "failed", "expired", "cancelling", "cancelled"]}, "request_counts": {"type": "object", "required": ["total", "completed", "failed"]}},
"required": ["id", "object", "endpoint", "input_file_id", "status", "created_at", "request_counts"]},
"BatchList": {"type": "object", "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": {"$ref":
"#/components/schemas/Batch"}}}, "required": ["object", "data"]},
"LlamaCppRequest": {"type": "object", "properties": {"prompt": {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": {"type":
"integer", "minimum": 0, "maximum": 2147483647}}]}, "n_predict": {"type": "integer", "minimum": -1, "maximum": 1099511627776}, "temperature":
{"type": "number", "minimum": 0, "maximum": 100}, "stream": {"type": ["boolean", "null"]}, "n_probs": {"type": "integer", "minimum": 0, "maximum":
20}, "stop": {"type": "array", "maxItems": 16, "items": {"type": "string", "minLength": 1}}, "cache_prompt": {"type": "boolean"}}, "required":
["prompt"]},
"LlamaCppReply": {"type": "object", "properties": {"content": {"type": "string"}, "stop": {"const": true}, "stop_type": {"enum": ["eos", "limit",
"word", "none"]}, "tokens_predicted": {"type": "integer"}, "tokens_evaluated": {"type": "integer"}, "timings": {"type": "object"}}, "required":
["index", "content", "tokens", "stop", "stop_type", "tokens_predicted", "tokens_evaluated", "generation_settings", "timings"]},
"ApplyTemplateRequest": {"type": "object", "properties": {"messages": {"type": "array", "minItems": 1, "maxItems": 4096, "items": {"$ref":
"#/components/schemas/Message"}}}, "required": ["messages"]},
"AppliedTemplate": {"type": "object", "properties": {"prompt": {"type": "string"}}, "required": ["prompt"]},
"ResponsesEvent": {"anyOf": [{"type": "object", "properties": {"type": {"enum": ["response.created", "response.in_progress", "response.failed"]},
"sequence_number": {"type": "integer"}, "response": {"type": "object", "properties": {"id": {"type": "string"}, "object": {"const": "response"},
"created_at": {"type": "integer"}, "status": {"enum": ["in_progress", "completed", "incomplete", "failed"]}, "model": {"type": "string"}, "output":
{"type": "array", "items": {"type": "object", "properties": {"type": {"enum": ["message", "function_call"]}, "id": {"type": "string"}, "status":
{"enum": ["in_progress", "completed", "incomplete"]}}, "required": ["type", "id", "status"]}}}, "required": ["id", "object", "created_at", "status",
"error", "incomplete_details", "model", "output", "usage"]}}, "required": ["type", "sequence_number", "response"], "additionalProperties": false},
{"type": "object", "properties": {"type": {"enum": ["response.completed", "response.incomplete"]}, "sequence_number": {"type": "integer"},
"response": {"$ref": "#/components/schemas/Response"}}, "required": ["type", "sequence_number", "response"], "additionalProperties": false},
{"type": "object", "properties": {"type": {"enum": ["response.output_item.added", "response.output_item.done"]}, "sequence_number": {"type":
"integer"}, "output_index": {"type": "integer"}, "item": {"type": "object", "properties": {"type": {"enum": ["message", "function_call"]}, "id":
{"type": "string"}, "status": {"enum": ["in_progress", "completed", "incomplete"]}}, "required": ["type", "id", "status"]}}, "required": ["type",
"sequence_number", "output_index", "item"], "additionalProperties": false}, {"type": "object", "properties": {"type": {"enum":
["response.content_part.added", "response.content_part.done"]}, "sequence_number": {"type": "integer"}, "item_id": {"type": "string"},
"output_index": {"type": "integer"}, "content_index": {"type": "integer"}, "part": {"type": "object", "properties": {"type": {"const":
"output_text"}, "text": {"type": "string"}, "annotations": {"type": "array"}, "logprobs": {"type": "array", "items": {"type": "object"}}},
"required": ["type", "text", "annotations", "logprobs"], "additionalProperties": false}}, "required": ["type", "sequence_number", "item_id",
"output_index", "content_index", "part"], "additionalProperties": false}, {"type": "object", "properties": {"type": {"const":
"response.output_text.delta"}, "sequence_number": {"type": "integer"}, "item_id": {"type": "string"}, "output_index": {"type": "integer"},
"content_index": {"type": "integer"}, "delta": {"type": "string"}, "logprobs": {"type": "array", "items": {"type": "object"}}}, "required": ["type",
"sequence_number", "item_id", "output_index", "content_index", "delta", "logprobs"], "additionalProperties": false}, {"type": "object",
"properties": {"type": {"const": "response.output_text.done"}, "sequence_number": {"type": "integer"}, "item_id": {"type": "string"},
"output_index": {"type": "integer"}, "content_index": {"type": "integer"}, "text": {"type": "string"}, "logprobs": {"type": "array", "items":
{"type": "object"}}}, "required": ["type", "sequence_number", "item_id", "output_index", "content_index", "text", "logprobs"],
"additionalProperties": false}, {"type": "object", "properties": {"type": {"const": "response.function_call_arguments.delta"}, "sequence_number":
{"type": "integer"}, "item_id": {"type": "string"}, "output_index": {"type": "integer"}, "delta": {"type": "string"}}, "required": ["type",
"sequence_number", "item_id", "output_index", "delta"], "additionalProperties": false}, {"type": "object", "properties": {"type": {"const":
"response.function_call_arguments.done"}, "sequence_number": {"type": "integer"}, "item_id": {"type": "string"}, "output_index": {"type":
"integer"}, "name": {"type": "string"}, "arguments": {"type": "string"}}, "required": ["type", "sequence_number", "item_id", "output_index", "name",
"arguments"], "additionalProperties": false}]},
"MessagesEvent": {"anyOf": [{"type": "object", "properties": {"type": {"const": "message_start"}, "message": {"type": "object", "properties": {"id":
{"type": "string"}, "type": {"const": "message"}, "role": {"const": "assistant"}, "model": {"type": "string"}, "content": {"type": "array",
"maxItems": 0}, "stop_reason": {"type": "null"}, "stop_sequence": {"type": "null"}, "usage": {"type": "object", "properties": {"input_tokens":
{"type": "integer"}, "cache_creation_input_tokens": {"type": "integer"}, "cache_read_input_tokens": {"type": "integer"}, "output_tokens": {"type":
"integer"}}, "required": ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens"], "additionalProperties":
false}}, "required": ["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"], "additionalProperties": false}},
"required": ["type", "message"], "additionalProperties": false}, {"type": "object", "properties": {"type": {"const": "content_block_start"},
"index": {"type": "integer"}, "content_block": {"anyOf": [{"type": "object", "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
"required": ["type", "text"], "additionalProperties": false}, {"type": "object", "properties": {"type": {"const": "tool_use"}, "id": {"type":
"string"}, "name": {"type": "string"}, "input": {"type": "object"}}, "required": ["type", "id", "name", "input"], "additionalProperties": false}]}},
"required": ["type", "index", "content_block"], "additionalProperties": false}, {"type": "object", "properties": {"type": {"const":
"content_block_delta"}, "index": {"type": "integer"}, "delta": {"anyOf": [{"type": "object", "properties": {"type": {"const": "text_delta"}, "text":
{"type": "string"}}, "required": ["type", "text"], "additionalProperties": false}, {"type": "object", "properties": {"type": {"const":
"input_json_delta"}, "partial_json": {"type": "string"}}, "required": ["type", "partial_json"], "additionalProperties": false}]}}, "required":
["type", "index", "delta"], "additionalProperties": false}, {"type": "object", "properties": {"type": {"const": "content_block_stop"}, "index":
{"type": "integer"}}, "required": ["type", "index"], "additionalProperties": false}, {"type": "object", "properties": {"type": {"const":
"message_delta"}, "delta": {"type": "object", "properties": {"stop_reason": {"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]},
"stop_sequence": {"type": ["string", "null"]}}, "required": ["stop_reason", "stop_sequence"], "additionalProperties": false}, "usage": {"type":
"object", "properties": {"input_tokens": {"type": "integer"}, "cache_creation_input_tokens": {"type": "integer"}, "cache_read_input_tokens":
{"type": "integer"}, "output_tokens": {"type": "integer"}}, "required": ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens",
"output_tokens"], "additionalProperties": false}}, "required": ["type", "delta", "usage"], "additionalProperties": false}, {"type": "object",
"properties": {"type": {"const": "message_stop"}}, "required": ["type"], "additionalProperties": false}, {"$ref":
"#/components/schemas/AnthropicError"}]},
"LlamaCppEvent": {"anyOf": [{"type": "object", "properties": {"index": {"type": "integer"}, "content": {"type": "string"}, "tokens": {"type":
"array", "items": {"type": "integer"}}, "stop": {"const": false}, "id_slot": {"type": "integer"}, "tokens_predicted": {"type": "integer"},
"tokens_evaluated": {"type": "integer"}, "completion_probabilities": {"type": "array", "items": {"type": "object"}}, "prompt_progress": {"type":
"object", "required": ["total", "cache", "processed", "time_ms"]}}, "required": ["index", "content", "tokens", "stop", "id_slot",
"tokens_predicted", "tokens_evaluated"], "additionalProperties": false}, {"$ref": "#/components/schemas/LlamaCppReply"}, {"$ref":
"#/components/schemas/Error"}]},
"OllamaLine": {"anyOf": [{"type": "object", "properties": {"model": {"type": "string"}, "created_at": {"type": "string"}, "done": {"const": false}},
"required": ["model", "created_at", "done"]}, {"$ref": "#/components/schemas/OllamaReply"}, {"$ref": "#/components/schemas/OllamaError"}]}
})";
}

}  // namespace bam
