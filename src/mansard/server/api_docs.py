"""Writes docs/api.md from the OpenAPI document.

python -m mansard.server.api_docs docs/api.md           writes
python -m mansard.server.api_docs docs/api.md --check   exits with 1 when the file is not what it would write
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mansard.server.app import bare_app

_JSON = "application/json"
HEAD = """# HTTP API

This page is generated from the OpenAPI document (`GET /openapi.json`, or `python -m mansard.server.api_docs`).

`mansard serve` speaks OpenAI's API; what OpenAI does not have is named as in vLLM, and a few fields as in
llama.cpp's server. With the `openai` client:

```python
from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="any")
answer = client.chat.completions.create(model="smollm2", messages=[{"role": "user", "content": "Hello"}])
print(answer.choices[0].message.content)
```

With curl, streaming:

```sh
curl -N http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
  -d '{"messages": [{"role": "user", "content": "Hello"}], "stream": true}'
```

Anything that takes a base URL of an OpenAI-compatible server works alike: LiteLLM
(`model="openai/smollm2", api_base="http://127.0.0.1:8000/v1"`), LangChain
(`ChatOpenAI(base_url="http://127.0.0.1:8000/v1", api_key="any", model="smollm2")`).

## What holds for all endpoints

- **Errors** are `{"error": {"message", "type", "param", "code"}}` with OpenAI's status codes; `param` names the field.
- **Unknown fields** are accepted and reported in the answer's header `x-mansard-warning`; wrong types are refused.
- **Keys**: started with `--api-key` or `MANSARD_API_KEY`, the server asks for `Authorization: Bearer KEY` everywhere
  but at `/health`, `/ready` and `/version`.
- **Deadlines**: the header `x-request-timeout` (seconds) ends a request with 408 when it takes longer; the server's
  own limit is `--request-timeout`.
- **Queue**: with more requests waiting than `--max-queue`, the answer is 429 with `Retry-After`.
- **Request ids**: `x-request-id` is kept if it has up to 128 letters, digits and `_.:-`, and made up otherwise; every
  answer has it.
- **Streams** are server-sent events that end with `data: [DONE]` (`/v1/responses`: with their last event); a comment is
  sent when nothing else was for 15 s. A client that leaves, streaming or not, frees its place within two steps.
- **Structure**: schemas, regular expressions and grammars are compiled before a request is scheduled and refused with
  the parser's words if they cannot be obeyed. White space between JSON's tokens is at most a space, or a line break
  with up to 16 spaces.
- **Log-probabilities** are those of the model before penalties, biases, masks and temperature, and always finite
  (-9999 stands for minus infinity).
"""


def document() -> dict[str, Any]:
    """Return the OpenAPI document."""
    return bare_app().openapi()


def markdown(source: dict[str, Any]) -> str:
    """Return the page for an OpenAPI document."""
    lines = [HEAD]
    for path, operations in source["paths"].items():
        for method, operation in operations.items():
            lines += [f"\n## {method.upper()} {path}\n", operation["summary"]]
            body = operation.get("requestBody", {}).get("content", {}).get(_JSON)
            if body is not None:
                lines += ["", *_fields(_resolved(body["schema"], source), source)]
            lines += ["", *_answers(operation, source)]
    lines += ["\n## Objects\n", *_objects(source)]
    return "\n".join(lines).rstrip() + "\n"


def _fields(schema: dict[str, Any], source: dict[str, Any]) -> Iterator[str]:
    """Yield a table of a body's fields, those that must be given first."""
    required = set(schema.get("required", ()))
    yield "| field | type | default | |"
    yield "|---|---|---|---|"
    for name, field in sorted(schema["properties"].items(), key=lambda item: (item[0] not in required, item[0])):
        default = "required" if name in required else f"`{json.dumps(field.get('default'))}`"
        yield f"| `{name}` | {_type(field)} | {default} | {field.get('description', '')} |"


def _answers(operation: dict[str, Any], source: dict[str, Any]) -> Iterator[str]:
    content = operation["responses"]["200"]["content"]
    for kind, value in content.items():
        schema = value["schema"]
        what = f"`{schema['$ref'].rsplit('/', 1)[-1]}`" if "$ref" in schema else schema.get("description", "text")
        yield f"Answers `{kind}`: {what}."
    codes = ", ".join(code for code in operation["responses"] if code != "200")
    if codes:
        yield f"Errors: {codes}."


def _objects(source: dict[str, Any]) -> Iterator[str]:
    for name, schema in source["components"]["schemas"].items():
        text = " ".join(schema.get("description", "").split())
        yield f"- **{name}**: {text}"
        for field, value in schema.get("properties", {}).items():
            yield f"  - `{field}`: {_type(value)}"


def _resolved(schema: dict[str, Any], source: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref")
    if reference is None:
        return schema
    found: dict[str, Any] = source["components"]["schemas"][reference.rsplit("/", 1)[-1]]
    return found


def _type(field: dict[str, Any]) -> str:
    """Return a schema's type in a few words."""
    if "$ref" in field:
        return str(field["$ref"].rsplit("/", 1)[-1])
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    if "enum" in field:
        return " or ".join(f"`{json.dumps(value)}`" for value in field["enum"])
    for key in ("anyOf", "oneOf"):
        if key in field:
            return " or ".join(dict.fromkeys(_type(option) for option in field[key] if option.get("type") != "null"))
    kind = str(field.get("type", "any"))
    return f"list of {_type(field['items'])}" if kind == "array" and "items" in field else kind


def main(arguments: list[str] | None = None) -> int:
    """Write or check the page; return the exit status."""
    parser = argparse.ArgumentParser(description="Write the page on the HTTP API.")
    parser.add_argument("path", type=Path, nargs="?", default=Path("docs/api.md"))
    parser.add_argument("--check", action="store_true", help="compare and write nothing")
    given = parser.parse_args(arguments)
    page = markdown(document())
    if given.check:
        if given.path.read_text(encoding="utf-8") != page:
            sys.stderr.write(f"{given.path} is not up to date; run python -m mansard.server.api_docs {given.path}\n")
            return 1
        return 0
    given.path.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
