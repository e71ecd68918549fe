"""Chat templates render as transformers renders them, and cannot do anything else."""

from collections.abc import Iterator
from typing import Any

import pytest

from mansard.loading.chat_template import BUILT_IN, ChatTemplate, ChatTemplateError
from mansard.loading.gguf import GgufFile
from mansard.loading.packaged import packaged_gguf

CONVERSATIONS: tuple[list[dict[str, Any]], ...] = (
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "  Äh… <b>&'\"😀 \n"}],
    [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "sure?\n\n"},
    ],
)
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d <&> é", "parameters": {"type": "object"}}}]
LLAMA31_STYLE = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "Today: " + date_string + "\\n" + system_message }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n" }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if loop.index0 > 5 %}{% break %}{% endif %}
    {{- '<|' + message['role'] + '|>' + message['content'] | trim }}{% generation %}!{% endgeneration %}
{% endfor %}
  {% if add_generation_prompt %}
<|assistant|>
  {% endif %}
end"""
NAMESPACE = """{% set ns = namespace(seen=0, roles=[]) %}{% for m in messages %}{% set ns.seen = ns.seen + 1 %}
{% set ns.roles = ns.roles + [m.role] %}{% endfor %}{{ ns.seen }} {{ ns.roles | tojson }} {{ messages | tojson }}
{{ strftime_now('%Y') | length }} {{ messages[0].content.strip().split()|join('-') }}{{ "%s=%d"|format('a', 3) }}"""


@pytest.fixture(scope="module")
def smollm2_source() -> str:
    return str(GgufFile.open(packaged_gguf("smollm2")).metadata["tokenizer.chat_template"])


def theirs(source: str, messages: list[dict[str, Any]], **variables: Any) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered, _ = render_jinja_template(
        conversations=[messages], chat_template=source, bos_token="<s>", eos_token="</s>", **variables
    )
    return str(rendered[0])


@pytest.mark.parametrize("name", ["smollm2", "llama3.1", "namespace", *BUILT_IN])
def test_renders_as_transformers_does(name: str, smollm2_source: str) -> None:
    sources = {"smollm2": smollm2_source, "llama3.1": LLAMA31_STYLE, "namespace": NAMESPACE, **BUILT_IN}
    template = ChatTemplate(sources[name], "<s>", "</s>")
    for messages in CONVERSATIONS:
        for prompted in (True, False):
            for tools in (None, TOOLS):
                options: dict[str, Any] = {"add_generation_prompt": prompted, "tools": tools}
                got = template.render(messages, **options, date_string="1 Jan 2026")
                assert got == theirs(sources[name], messages, **options, date_string="1 Jan 2026")


def test_smollm2_prompt_is_what_its_card_shows(smollm2_source: str) -> None:
    template = ChatTemplate(smollm2_source, "<|im_start|>", "<|im_end|>")
    assert template.render([{"role": "user", "content": "Hi"}]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


# ---- Untrusted code. ---


@pytest.fixture(scope="module")
def process() -> Iterator[ChatTemplate]:
    """One process for all the templates that it survives."""
    template = ChatTemplate("", time_limit_s=20.0)
    yield template
    template.close()


REACHING_OUT = {
    "dunder chain": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "function globals": "{{ raise_exception.__globals__ }}",
    "attr filter": "{{ ''|attr('__class__') }}",
    "format reference": "{{ '{0.__class__.__init__.__globals__}'.format(namespace) }}",
    "format reference to a filter": "{{ ['{0.__class__.__mro__}'.format]|map('attr', '__self__')|list|first }}",
    "format by a filter": "{{ ['x']|map('attr', '__class__')|list|first }}",
    "namespace attribute": "{{ namespace.__init__.__globals__ }}",
    "mutation": "{{ messages.append(1) }}",
    "environment": "{{ self._TemplateReference__context.environment }}",
    "include": "{% include 'x' %}",
    "import": "{% import 'os' as os %}{{ os }}",
    "from import": "{% from 'os' import system %}",
    "extends": "{% extends '/etc/passwd' %}",
}


@pytest.mark.parametrize("name", REACHING_OUT)
def test_template_cannot_reach_out(name: str) -> None:
    """The sandbox raises, or hands out an undefined value, which shows as nothing."""
    try:
        text = ChatTemplate(REACHING_OUT[name]).render([{"role": "user", "content": "x"}])
    except ChatTemplateError as error:
        assert "the chat template failed" in str(error)
    else:
        assert text == ""


EXHAUSTING = {
    "range": "{% for i in range(10**9) %}x{% endfor %}",
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "recursion": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "exponential recursion": "{% macro f(n) %}"
    "{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "repeat": "{{ 'a' * 10**9 }}",
    "folded repeat": "{{ ('a' * 1000000000) | length }}",
    "10 MB repeat": "{{ 'a' * (10 * 1024 * 1024) }}",
    "doubling": "{% set ns = namespace(a='a') %}"
    "{% for i in range(40) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}{{ ns.a }}",
    "power": "{{ 10 ** (10 ** 10) }}",
    "padding": "{{ 'a' | center(1000000000) }}",
    "format width": "{{ '%999999999d' | format(1) }}",
    "text of nested lists": "{% set ns = namespace(a=['x']) %}{% for i in range(60) %}"
    "{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a }}",
    "generated text": "{{ lipsum(n=10000000) }}",
    "slices": "{{ 'a' | slice(1000000000) | list }}",
    "long output": "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}",
    "10 MB of template": "a" * (10 << 20),
    "deep nesting": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "deep blocks": "{% if 1 %}" * 2000 + "{% endif %}" * 2000,
}


@pytest.mark.parametrize("name", EXHAUSTING)
def test_template_cannot_exhaust_time_memory_or_output(name: str) -> None:
    with pytest.raises(ChatTemplateError):
        ChatTemplate(EXHAUSTING[name], time_limit_s=0.3).render([])


def test_a_stopped_process_is_replaced() -> None:
    """The first render is killed for its messages alone; the next must not suffer for it."""
    source = "{% for i in range(messages|length * 90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}done"
    template = ChatTemplate(source, time_limit_s=0.3)
    assert template.render([]) == "done"
    with pytest.raises(ChatTemplateError, match=r"was stopped: it may use at most 0\.3 s"):
        template.render([{"role": "user", "content": "x"}])
    assert template.render([]) == "done"
    template.close()
    assert template.render([]) == "done"


def test_a_process_that_ended_between_renders_is_replaced() -> None:
    """The system may end an idle process to get memory back."""
    template = ChatTemplate("{{ 1 + 1 }}")
    assert template.render([]) == "2"
    worker = template._worker
    assert worker is not None
    worker._process.kill()
    worker._process.wait()
    assert template.render([]) == "2"


def test_ordinary_long_chats_stay_within_the_limits() -> None:
    messages = [{"role": "user", "content": "é" * 2000} for _ in range(500)]
    assert len(ChatTemplate(BUILT_IN["chatml"]).render(messages)) > 1_000_000


# ---- What a caller may give. ---


def test_template_refuses_in_its_own_words() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ChatTemplateError, match="roles must alternate"):
        template.render([])


def test_syntax_error_is_a_template_error() -> None:
    with pytest.raises(ChatTemplateError, match="TemplateSyntaxError"):
        ChatTemplate("{% if %}").render([])


def test_text_parts_become_one_text() -> None:
    template = ChatTemplate("{{ messages[0].content }}|{{ messages[1].content }}")
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": None}]
    assert template.render(messages) == "a\nb|None"


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ({"content": "x"}, r"messages\[0\] must be an object with a role"),
        ("x", r"messages\[0\] must be an object"),
        ({"role": "user", "content": 7}, "content is a int"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "type 'image_url'"),
        ({"role": "user", "content": ["x"]}, "type 'str'"),
        ({"role": "user", "content": [{"type": "text", "text": 3}]}, "type 'text'"),
        ({"role": "user", "content": "x", "extra": object()}, "must be JSON values"),
    ],
)
def test_malformed_messages_are_refused(process: ChatTemplate, message: Any, named: str) -> None:
    with pytest.raises(ChatTemplateError, match=named):
        process.render([message])


def test_lone_surrogates_pass_through(process: ChatTemplate) -> None:
    assert ChatTemplate("{{ messages[0].content }}").render([{"role": "user", "content": "a\ud83d"}]) == "a\ud83d"


def test_without_a_template_the_remedy_is_named(tmp_path: Any) -> None:
    with pytest.raises(ChatTemplateError, match=r"--chat-template .*chatml, gemma, llama3"):
        ChatTemplate.choose(None)
    with pytest.raises(ChatTemplateError, match="nosuchfile"):
        ChatTemplate.choose("own", "nosuchfile")
    path = tmp_path / "t.jinja"
    path.write_text("from a file{{ eos_token }}", encoding="utf-8")
    assert ChatTemplate.choose("own", str(path), eos_token="!").render([]) == "from a file!"
    assert ChatTemplate.choose("own").render([]) == "own"
    assert ChatTemplate.choose("own", "chatml").source == BUILT_IN["chatml"]
    assert ChatTemplate.choose(None, "{{ 1 + 1 }}").render([]) == "2"
