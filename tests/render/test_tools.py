from __future__ import annotations

import pytest

from tests.render.conversations import ids_of, terminator, user
from tests.render.families import TEMPLATES, from_template, renderer_of
from trio_sessions.errors import InvalidRequest
from trio_sessions.render.tools import engine_tools

GIVEN = {"function": {"parameters": {"type": "object"}, "name": "f", "extra": 1}, "type": "function", "cache": True}
DUMPED = (
    '{"type": "function", "function": '
    '{"description": null, "name": "f", "parameters": {"type": "object"}, "strict": false}}'
)


def test_definitions_are_rendered_as_the_engine_dumps_them():
    renderer = renderer_of("qwen3")
    text = renderer.decode(renderer.render([user("a")], tools=[GIVEN], kwargs={}))
    assert f"<tools>\n{DUMPED}\n</tools>" in text


def test_a_bare_function_is_wrapped():
    assert engine_tools([GIVEN["function"]]) == engine_tools([GIVEN])


def test_the_order_of_keys():
    (tool,) = engine_tools([GIVEN | {"function": {"strict": True, "name": "f", "description": "d"}}])
    assert list(tool) == ["type", "function"]
    assert list(tool["function"].items()) == [
        ("description", "d"),
        ("name", "f"),
        ("parameters", None),
        ("strict", True),
    ]


def test_a_template_that_refuses_the_wrapper_gets_functions():
    renderer = renderer_of("bare functions")
    text = renderer.decode(renderer.render([user("a")], tools=[GIVEN], kwargs={}))
    assert '[{"description": null, "name": "f"' in text


@pytest.mark.parametrize("none", [None, [], ()])
def test_no_tools(none):
    assert engine_tools(none) is None


@pytest.mark.parametrize(
    ("tools", "complaint"),
    [
        ({}, "tools must be a list, got dict"),
        ("x", "tools must be a list, got str"),
        ([5], "tools[0] must be an object, got int"),
        ([GIVEN, None], "tools[1] must be an object, got NoneType"),
        ([{"function": []}], "tools[0].function must be an object, got list"),
        ([{"function": {}}], "tools[0].function must have a name, and it must be a string"),
        ([{}], "tools[0].function must have a name, and it must be a string"),
    ],
)
def test_malformed_tools_are_refused_by_place(tools, complaint):
    renderer = renderer_of("qwen3")
    with pytest.raises(InvalidRequest) as caught:
        renderer.render([user("a")], tools=tools, kwargs={})
    assert str(caught.value) == complaint
    with pytest.raises(InvalidRequest):
        renderer.extend(ids_of(terminator(renderer)), stored_messages=[], appended=[user("a")], tools=tools, kwargs={})


@pytest.mark.parametrize(
    ("tools_as", "written"),
    [
        ("given", '{"function": {"name": "f", "note": 1}, "type": "function"}'),
        ("function", '{"description": null, "name": "f", "parameters": null, "strict": false}'),
        (
            "sglang",
            '{"type": "function", "function": {"description": null, "name": "f", "parameters": null, "strict": false}}',
        ),
    ],
)
def test_tools_are_written_as_the_launch_wants_them(tools_as, written):
    renderer = from_template(TEMPLATES["chatml"], tools_as=tools_as)
    tools = [{"function": {"name": "f", "note": 1}, "type": "function"}]
    text = renderer.decode(renderer.render([user("a")], tools=tools, kwargs={}))
    assert text.startswith(f"<|im_start|>system\n[{written}]<|im_end|>")
    assert renderer.profile.tools == {"given": "given", "function": "function", "sglang": "wrapper"}[tools_as]
