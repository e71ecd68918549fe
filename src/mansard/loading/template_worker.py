"""The process in which chat templates run: reads requests on standard input, answers on standard output.

Started by chat_template.py as a plain script, so it imports nothing of this package. A message is a
big-endian 32-bit length and that many bytes of JSON. The first answer says that it is ready; each request
names a template and its variables and is answered with {"text": …} or {"error": …}.

What contains a template: jinja2's immutable sandbox without a loader; an alarm that ends the process, even
inside one long operation of C code, when a render takes too long; a bound on the address space, so that a
huge string is a MemoryError; and an output that is counted while it is made.
"""

from __future__ import annotations

import json
import signal
import struct
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, BinaryIO, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

HEADER = struct.Struct(">I")


class GenerationTag(Extension):
    """Accept `{% generation %}`, a mark for training masks, and render what is inside."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """Replace the tag by its content."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def raise_exception(message: str) -> NoReturn:
    """Let a template refuse its input."""
    raise jinja2.TemplateError(message)


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as it is; jinja2's own filter escapes it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment() -> jinja2.Environment:
    """Return the sandbox with what Hugging Face's templates expect of it."""
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols])
    made.filters["tojson"] = to_json
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return made


def render(template: jinja2.Template, variables: Mapping[str, Any], max_chars: int) -> str:
    """Render and count.

    Raises: ValueError when the output grows past `max_chars`.
    """
    pieces: list[str] = []
    size = 0
    for piece in template.generate(variables):
        size += len(piece)
        if size > max_chars:
            raise ValueError(f"its output exceeds {max_chars:,} characters")
        pieces.append(piece)
    return "".join(pieces)


def answer(compile_template: Callable[[str], jinja2.Template], request: Mapping[str, Any]) -> dict[str, str]:
    """Render one request; whatever goes wrong is the template's error."""
    try:
        template = compile_template(request["source"])
        return {"text": render(template, request["variables"], request["max_chars"])}
    except MemoryError:
        return {"error": "it needs more memory than it may have"}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:2000]}


def limit_memory(num_bytes: int) -> None:
    """Bound the address space to what is mapped now and `num_bytes` more, where the system can."""
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            mapped = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + num_bytes, mapped + num_bytes))
    except (ImportError, OSError, ValueError):
        return  # not Linux: the time limit still holds


def read_message(stream: BinaryIO) -> Any:
    """Read one message, or None at the end of the stream."""
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    return json.loads(stream.read(HEADER.unpack(header)[0]))


def write_message(stream: BinaryIO, message: object) -> None:
    """Write one message; all non-ASCII is escaped, so lone surrogates pass."""
    data = json.dumps(message).encode("ascii")
    stream.write(HEADER.pack(len(data)) + data)
    stream.flush()


def serve(max_memory_bytes: int) -> None:
    """Answer requests until standard input ends."""
    made = environment()
    compiled: dict[str, jinja2.Template] = {}

    def compile_template(source: str) -> jinja2.Template:
        if source not in compiled:
            compiled[source] = made.from_string(source)
        return compiled[source]

    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    made.from_string("{{ messages|tojson }}").render(messages=[])  # everything is imported before memory is bound
    limit_memory(max_memory_bytes)
    write_message(answers, {"ready": True})
    while (request := read_message(requests)) is not None:
        # The default action of SIGALRM ends the process at once; the other side starts a new one.
        signal.setitimer(signal.ITIMER_REAL, request["time_limit_s"])
        reply = answer(compile_template, request)
        signal.setitimer(signal.ITIMER_REAL, 0)
        write_message(answers, reply)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
