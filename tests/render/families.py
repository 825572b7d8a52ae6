"""Small templates, each with one trait of a real family, and renderers for them."""

from __future__ import annotations

from functools import cache
from types import MappingProxyType

from tests.render.vocabularies import byte_level, metaspace
from tests.tokenizers import qwen3_tokenizer
from trio_sessions.render.codec import TextCodec
from trio_sessions.render.jinja import ChatTemplate
from trio_sessions.render.load import load_renderer
from trio_sessions.render.template import TemplateRenderer

CHATML_SPECIALS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|call|>")
THINKING_SPECIALS = (*CHATML_SPECIALS, "<think>", "</think>")
LLAMA_SPECIALS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
MISTRAL_SPECIALS = ("[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]")
GLM_SPECIALS = ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>")

_CALLS_AS_OBJECT = (
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}"
    "{% for k, v in c.function.arguments.items() %}<{{ k }}>{{ v }}</{{ k }}>{% endfor %}</call>{% endfor %}"
)
_CALLS_AS_STRING = (
    "{% for c in m.tool_calls or [] %}{{ '<call>' + c.function.name + ' ' }}"
    "{{ c.function.arguments + '</call>' }}{% endfor %}"
)
_CALLS_EITHER = (
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} "
    "{% if c.function.arguments is string %}{{ c.function.arguments }}"
    "{% else %}{{ c.function.arguments | tojson }}{% endif %}</call>{% endfor %}"
)
_OPENER = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
_TOOLS = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"


def chatml(body: str, *, head: str = "", opener: str = _OPENER) -> str:
    return _TOOLS + head + "{% for m in messages %}" + body + "{% endfor %}" + opener


def turn(calls: str = _CALLS_EITHER) -> str:
    return "<|im_start|>{{ m.role }}\n{{ m.content }}" + calls + "<|im_end|>\n"


TEMPLATES = MappingProxyType(
    {
        "chatml": chatml(turn()),
        "llama": (
            "{{ bos_token }}{% for m in messages %}"
            "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}" + _CALLS_EITHER + "<|eot_id|>"
            "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
        ),
        "mistral": (
            "{{ bos_token }}{% for m in messages %}"
            "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
            "{% elif m.role == 'tool' %}{% set before = messages[loop.index0 - 1] %}"
            "{% if not before.tool_calls and before.role != 'tool' %}"
            "{{ raise_exception('nothing was called') }}{% endif %}"
            "[TOOL_RESULTS] {{ m.content }}[/TOOL_RESULTS]"
            "{% elif m.role == 'assistant' and m.tool_calls %}"
            "{% if loop.last %}{{ raise_exception('a call must be answered') }}{% endif %}"
            "[TOOL_CALLS] {% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('id') }}{% endif %}"
            "{{ c.function | tojson }}{% endfor %}{{ eos_token }}"
            "{% elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}"
            "{% elif m.role == 'system' and loop.first %}[INST] {{ m.content }} [/INST]"
            "{% else %}{{ raise_exception('roles must be user, assistant or tool') }}{% endif %}{% endfor %}"
        ),
        "glm": (
            "[gMASK]<sop>{% if tools %}<|system|>\n{{ tools | tojson }}{% endif %}{% for m in messages %}"
            "{% if m.role == 'user' %}<|user|>\n{{ m.content }}"
            "{% elif m.role == 'system' %}<|system|>\n{{ m.content }}"
            "{% elif m.role == 'assistant' %}<|assistant|>\n{{ m.content }}"
            + _CALLS_AS_OBJECT
            + "{% elif m.role == 'tool' %}"
            "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|observation|>{% endif %}"
            "\n<tool_response>{{ m.content }}</tool_response>{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
        ),
        "hoists system": chatml(
            "{% if m.role != 'system' %}" + turn() + "{% endif %}",
            head="{% for m in messages if m.role == 'system' %}" + turn() + "{% endfor %}",
        ),
        "drops developer": chatml(
            "{% if m.role in ('user', 'assistant', 'tool', 'system') %}" + turn() + "{% endif %}"
        ),
        "object arguments": chatml(turn(_CALLS_AS_OBJECT)),
        "string arguments": chatml(turn(_CALLS_AS_STRING)),
        # A system message says how many turns came before it.
        "counts turns": chatml(
            "{% if m.role == 'system' and not loop.first %}"
            "<|im_start|>system {{ loop.index0 }}\n{{ m.content }}<|im_end|>\n{% else %}" + turn() + "{% endif %}"
        ),
        # A result repeats the name of the call it answers, which stands in the turn before.
        "looks names up": chatml(
            "{% if m.role == 'tool' %}{% set ns = namespace(name='') %}"
            "{% for p in messages %}{% for c in p.tool_calls or [] %}{% if c.id == m.tool_call_id %}"
            "{% set ns.name = c.function.name %}{% endif %}{% endfor %}{% endfor %}"
            "<|im_start|>tool {{ ns.name }}\n{{ m.content }}<|im_end|>\n{% else %}" + turn() + "{% endif %}"
        ),
        # The results of one round stand in the order of the calls, whatever the order they came in.
        "orders results": chatml(
            "{% if m.role == 'tool' %}{% set at = loop.index0 %}"
            "{% if messages[at - 1].role != 'tool' %}"
            "{% set ns = namespace(start=at, calls=[], results=[], open=true) %}"
            "{% set ns.calls = messages[at - 1].tool_calls or [] %}"
            "{% for r in messages[at:] %}{% if r.role != 'tool' %}{% set ns.open = false %}{% endif %}"
            "{% if ns.open %}{% set ns.results = ns.results + [r] %}{% endif %}{% endfor %}"
            "{% for c in ns.calls %}{% for r in ns.results if r.tool_call_id == c.id %}"
            "<|im_start|>tool\n{{ r.content }}<|im_end|>\n{% endfor %}{% endfor %}"
            "{% set ids = ns.calls | map(attribute='id') | list %}"
            "{% for r in ns.results if r.tool_call_id not in ids %}"
            "<|im_start|>tool\n{{ r.content }}<|im_end|>\n{% endfor %}"
            "{% endif %}{% else %}" + turn() + "{% endif %}"
        ),
        # The first result of a conversation is announced, no later one.
        "marks the first result": chatml(
            "{% if m.role == 'tool' and messages[:loop.index0] | selectattr('role', 'equalto', 'tool') | list == [] %}"
            "<|im_start|>results\n<|im_end|>\n{% endif %}" + turn()
        ),
        "no opener after system": chatml(
            turn(),
            opener="{% if add_generation_prompt and messages[-1].role != 'system' %}<|im_start|>assistant\n{% endif %}",
        ),
        "bare functions": chatml(
            turn(),
            head="{% for t in tools or [] %}{% if not t.name %}{{ raise_exception('no name') }}{% endif %}{% endfor %}",
        ),
        # The definitions stand before the last user message, as in early Mistral templates.
        "tools before user": (
            "{% for m in messages %}{% if tools and m.role == 'user' and loop.last %}<|im_start|>tools\n"
            "{{ tools | tojson }}<|im_end|>\n{% endif %}" + turn() + "{% endfor %}" + _OPENER
        ),
        "parts": chatml(
            "<|im_start|>{{ m.role }}\n{% for p in m.content %}{{ p.text }}{% endfor %}"
            + _CALLS_EITHER
            + "<|im_end|>\n"
        ),
        # A final turn, a call and any other turn end with three different tokens.
        "three terminators": chatml(
            "{% if m.role == 'tool' and not messages[loop.index0 - 1].tool_calls %}"
            "{{ raise_exception('nothing was called') }}{% endif %}"
            "<|im_start|>{{ m.role }}\n{{ m.content }}" + _CALLS_EITHER + "{% if m.tool_calls %}<|call|>"
            "{% elif m.role == 'assistant' and loop.last and not add_generation_prompt %}"
            "<|endoftext|>{% else %}<|im_end|>{% endif %}"
        ),
        # Past thinking is dropped, unless one asks for it.
        "thinks": chatml(
            "<|im_start|>{{ m.role }}\n{% if m.reasoning_content and "
            "(loop.last or (preserve_thinking is defined and preserve_thinking)) %}"
            "<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}" + _CALLS_EITHER + "<|im_end|>\n"
        ),
        "opens thinking": chatml(
            turn(), opener="{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
        ),
        "reads the clock": chatml(turn(), head="{{ strftime_now('%Y') }}"),
        "switches terminator": chatml(
            "<|im_start|>{{ m.role }}\n{{ m.content }}"
            + _CALLS_EITHER
            + "{{ '<|endoftext|>' if short is defined and short else '<|im_end|>' }}\n"
        ),
    }
)
# Templates under which a rendered history is a prefix of the next one, so that suffix and full rendering must agree.
APPEND_ONLY = ("builtin", "chatml", "llama", "mistral", "glm", "object arguments", "string arguments", "parts")


# Under this one a result must follow a call, or another result.
STRICT_RESULTS = "mistral"


def tokenizer_of(name: str):
    match name:
        case "llama":
            return byte_level(LLAMA_SPECIALS, eos="<|eot_id|>", bos="<|begin_of_text|>")
        case "mistral":
            return metaspace(MISTRAL_SPECIALS, eos="</s>", bos="<s>")
        case "thinks" | "opens thinking":
            return byte_level(THINKING_SPECIALS, eos="<|im_end|>")
        case "glm":
            return byte_level(GLM_SPECIALS, eos="<|endoftext|>")
        case _:
            return byte_level(CHATML_SPECIALS, eos="<|im_end|>")


def from_template(template: str, name: str = "chatml", **kwargs: object) -> TemplateRenderer:
    tokenizer = tokenizer_of(name)
    return TemplateRenderer(ChatTemplate(tokenizer, template), TextCodec(tokenizer), **kwargs)


@cache
def renderer_of(name: str) -> TemplateRenderer:
    """The renderer of a template above, of the built-in tokenizer or of Qwen3."""
    if name in ("builtin", "qwen3"):
        loaded = load_renderer(name if name == "builtin" else str(qwen3_tokenizer()))
        assert isinstance(loaded, TemplateRenderer)
        return loaded
    return from_template(TEMPLATES[name], name)
