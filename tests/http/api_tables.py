"""The tables of docs/api.md, made from what /openapi.json says: fields of requests, and metrics.

A table stands between `<!-- table: NAMES -->` and `<!-- end of table -->`; NAMES are schemas, or the word metrics.
"""

import json
import re

MARK = re.compile(r"(<!-- table: ([^>]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
# Bounds that only keep numbers inside a type say nothing to a reader.
HUGE = 2 ** 31 - 2


def number(value):
    return str(int(value)) if float(value).is_integer() else str(value)


def range_of(schema):
    low, high = schema.get("minimum"), schema.get("maximum")
    over, under = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    low = None if low is not None and low < -HUGE else low
    high = None if high is not None and high > HUGE else high
    if low is not None and high is not None:
        return f" {number(low)} … {number(high)}"
    parts = [f"{sign} {number(bound)}" for sign, bound in ((">", over), ("≥", low), ("<", under), ("≤", high)) if bound is not None]
    return " " + ", ".join(parts) if parts else ""


def type_of(schema):
    """A schema in a few words."""
    if "$ref" in schema:
        return schema["$ref"].rsplit("/", 1)[1].lower()
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(type_of(option) for option in schema["anyOf"] if option != {"type": "null"}))
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " or ".join(f"`{value}`" if isinstance(value, str) and value else json.dumps(value) for value in values) or "-"
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " or ".join(name for name in kind if name != "null")
    if kind in ("integer", "number"):
        return kind + range_of(schema)
    if kind == "string":
        return "string" + (f" of ≤ {schema['maxLength']} bytes" if "maxLength" in schema else "")
    if kind == "array":
        count = f" (≤ {schema['maxItems']})" if "maxItems" in schema else ""
        return "list of " + type_of(schema.get("items", {})) + count if "items" in schema else "list" + count
    return kind


def rows_of(properties, prefix="", note=""):
    for name, schema in properties.items():
        if "x-alias-of" in schema:
            continue
        names = ", ".join(f"`{prefix}{n}`" for n in [name, *schema.get("x-aliases", [])])
        default = f"; default {str(schema['default']).lower() if isinstance(schema['default'], bool) else number(schema['default'])}" \
            if "default" in schema else ""
        meaning = note + schema["description"]
        yield f"| {names} | {type_of(schema)}{default} | {meaning} |".replace("|0", "| 0")
        for option in schema.get("anyOf", []):
            if all("description" in nested for nested in option.get("properties", {"": {}}).values()):
                yield from rows_of(option["properties"], f"{prefix}{name}.")


def field_table(document, names):
    """The fields of one or more requests; what only some of them take is marked."""
    schemas = {name: document["components"]["schemas"][name] for name in names}
    lines = ["| field | type | meaning |", "|---|---|---|"]
    notes = {"CompletionRequest": "completions: ", "ChatRequest": "chat: "}
    seen = {}
    for name, schema in schemas.items():
        for field, description in schema["properties"].items():
            shared = all(other["properties"].get(field) == description for other in schemas.values())
            key = (field, str(description))
            if key not in seen:
                seen[key] = None
                lines += rows_of({field: description}, note="" if shared else notes.get(name, ""))
    return "\n".join(lines) + "\n"


def metrics_table(document):
    lines = ["| metric | vLLM's name | type | meaning |", "|---|---|---|---|"]
    for metric in document["paths"]["/metrics"]["get"]["x-metrics"]:
        own = f"`{metric['name']}`" if metric["name"] else ""
        vllm = ", ".join(f"`{name}`" for name in metric["vllm"])
        lines.append(f"| {own} | {vllm} | {metric['type']} | {metric['help']} |")
    return "\n".join(lines) + "\n"


def with_tables(text, document):
    """The document's text with its tables as they should be."""
    def table(match):
        names = match[2].split()
        made = metrics_table(document) if names == ["metrics"] else field_table(document, names)
        return match[1] + made + match[3]
    return MARK.sub(table, text)
