"""Families by name: their kwargs, and the formats that come without a chat template."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.render.conversations import PATIENT, assistant, call, ids_of, texts, tool, user
from tests.render.real import encoder_of, unpack
from trio_sessions.errors import AppendRoleNotSupported, ConfigurationError, InvalidRequest
from trio_sessions.render.families import FAMILIES
from trio_sessions.render.load import load_renderer
from trio_sessions.render.verify import verify_renderer

REFERENCE = (
    "default qwen3 qwen35 qwennext glm47 nemotron3 kimi25 kimi26 minimax_m25 minimax_m27 deepseekv32 deepseekv4 inkling"
)
ASSISTANT, END = "<｜Assistant｜>", "<｜end▁of▁sentence｜>"


@pytest.mark.parametrize("family", ["auto", *REFERENCE.split()])
def test_every_selector_of_the_reference_serves_a_template(family):
    renderer = load_renderer("builtin", family=family)
    assert renderer.name == family
    assert renderer.appendable_roles({}) >= {"user", "tool"}


@pytest.mark.parametrize(
    ("family", "pinned"),
    [
        ("default", {}),
        ("qwen3", {"clear_thinking": False}),
        ("qwen35", {"preserve_thinking": True}),
        ("glm47", {"clear_thinking": False}),
        ("nemotron3", {"truncate_history_thinking": False}),
        ("kimi26", {"preserve_thinking": True}),
        ("minimax_m27", {"clear_thinking": False}),
        ("deepseekv4", {"drop_thinking": False}),
        ("inkling", {}),
    ],
)
def test_what_a_family_pins_reaches_the_engine(family, pinned):
    assert FAMILIES[family].pinned == pinned
    assert FAMILIES[family].effective({}, {"other": 1}).items() >= {**pinned, "other": 1}.items()


@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if family.pinned])
def test_contradicting_a_pinned_kwarg_names_both_values(family):
    chosen = FAMILIES[family]
    for name, value in chosen.pinned.items():
        # A number is no boolean, though Python calls them equal.
        for other in (not value, int(value), None):
            for launch, requested in (({name: other}, {}), ({}, {name: other})):
                with pytest.raises(InvalidRequest) as caught:
                    chosen.effective(launch, requested)
                text = str(caught.value)
                assert f"{name}={other!r}" in text
                assert f"{name}={value!r}" in text
                assert family in text
        assert chosen.effective({name: value}, {name: value})[name] == value


def test_a_launch_that_contradicts_its_family_does_not_start():
    with pytest.raises(ConfigurationError, match="preserve_thinking=False contradicts preserve_thinking=True"):
        load_renderer("builtin", family="qwen35", chat_template_kwargs={"preserve_thinking": False})


@pytest.mark.parametrize(
    ("kwargs", "thinking"),
    [
        ({}, True),
        ({"thinking": False}, False),
        ({"enable_thinking": False}, False),
        ({"thinking_mode": "chat"}, False),
        ({"thinking_mode": "thinking", "thinking": True}, True),
        ({"enable_thinking": None}, True),
    ],
)
def test_thinking_has_one_name_for_the_engine(kwargs, thinking):
    family = FAMILIES["deepseekv4"]
    assert family.effective({}, kwargs) == {"thinking": thinking, "drop_thinking": False}
    assert family.effective(kwargs, {}) == {"thinking": thinking, "drop_thinking": False}
    # A request wins over the launch, whatever name either of them uses.
    assert family.effective({"enable_thinking": not thinking}, {"thinking": thinking})["thinking"] is thinking


@pytest.mark.parametrize(
    ("kwargs", "complaint"),
    [
        ({"thinking_mode": "loud"}, "thinking_mode must be 'thinking' or 'chat', got 'loud'"),
        ({"thinking_mode": []}, "thinking_mode must be 'thinking' or 'chat', got []"),
        ({"enable_thinking": 1}, "enable_thinking must be true or false, got 1"),
        ({"thinking": True, "thinking_mode": "chat"}, "thinking=True contradicts thinking_mode='chat'"),
    ],
)
def test_thinking_switched_in_words_that_nobody_knows(kwargs, complaint):
    with pytest.raises(InvalidRequest) as caught:
        FAMILIES["deepseekv32"].effective({}, kwargs)
    assert complaint in str(caught.value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("deepseek")


@pytest.fixture(scope="module")
def by_library(folder):
    return load_renderer(str(unpack("deepseek-v4", folder)), family="deepseekv4")


@pytest.fixture(scope="module")
def by_encoder(folder):
    tokenizer = str(unpack("deepseek-v4", folder))
    return load_renderer(tokenizer, family="deepseekv4", chat_template=encoder_of("deepseek-v4"))


@pytest.mark.parametrize("source", ["by_library", "by_encoder"])
@pytest.mark.parametrize("thinking", [True, False])
def test_a_model_without_a_template_passes_the_matrix(source, thinking, folder):
    template = None if source == "by_library" else encoder_of("deepseek-v4")
    renderer = load_renderer(
        str(unpack("deepseek-v4", folder)),
        family="deepseekv4",
        chat_template=template,
        chat_template_kwargs={"thinking": thinking},
    )
    assert {name for name, role in renderer.profile.roles.items() if role.reach} == {"tool"}
    assert renderer.profile.appendable_roles == {"user", "tool", "developer"}
    assert renderer.profile.rewritten == set()
    report = verify_renderer(renderer)
    assert report.passed, str(report)
    assert report.count("passed") >= 30
    # The canonical rendering only ever adds, so nothing that was not sampled may differ from it.
    assert not any("rewrites" in case.detail for case in report.cases)


def test_auto_recognises_the_format_and_says_why(folder):
    renderer = load_renderer(str(unpack("deepseek-v4", folder)))
    assert renderer.name == "deepseekv4"
    (note,) = renderer.notes
    assert "has no chat template, but it has the control tokens of the family deepseekv4" in note


def test_auto_says_which_kwarg_it_chose(folder):
    renderer = load_renderer(str(unpack("glm-4.7-flash", folder)))
    (note,) = renderer.notes
    assert "clear_thinking=false" in note
    # A request may say otherwise, and so may a launch: that is no choice of the user's to overrule.
    assert renderer.effective_kwargs({"clear_thinking": True}) == {"clear_thinking": True}
    asked = load_renderer(str(unpack("glm-4.7-flash", folder)), chat_template_kwargs={"clear_thinking": True})
    assert asked.effective_kwargs({}) == {"clear_thinking": True}
    assert asked.notes == ()


@pytest.mark.parametrize("family", ["auto", "deepseekv32", "default"])
def test_a_model_without_a_template_that_nobody_knows(family, folder):
    with pytest.raises(ConfigurationError, match="has no chat template; give one with --chat-template FILE"):
        load_renderer(str(unpack("deepseek-v3.2", folder)), family=family)


@pytest.mark.parametrize("family", ["auto", "deepseekv4"])
def test_without_the_library_one_is_told_to_install_it(family, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "renderers", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'trio-sessions\[renderers\]'"):
        load_renderer(str(unpack("deepseek-v4", folder)), family=family)


def test_a_tokenizer_of_another_format(folder):
    # Without a template of its own, as the library is asked only then.
    path = unpack("deepseek-v3.2", folder)
    with pytest.raises(
        ConfigurationError, match="the tokenizer does not fit the format deepseek-v4: Expected one token"
    ):
        load_renderer(str(path), family="deepseekv4")


def test_kwargs_that_the_library_refuses(by_library):
    kwargs = by_library.effective_kwargs({"reasoning_effort": "ultra"})
    with pytest.raises(InvalidRequest, match=r"chat_template_kwargs do not fit .*reasoning_effort") as caught:
        by_library.render([user("a")], tools=None, kwargs=kwargs)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("raise OSError('no such model')", "cannot run --chat-template .*: OSError: no such model"),
        ("def encode(messages): ...", "defines no function encode_messages"),
    ],
)
def test_an_encoder_that_is_none(tmp_path, source, complaint):
    file = tmp_path / "encoder.py"
    file.write_text(source)
    with pytest.raises(ConfigurationError, match=complaint):
        load_renderer("builtin", chat_template=file)


def test_a_template_of_ones_own_is_never_replaced_by_a_family(folder):
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
    with pytest.raises(ConfigurationError, match="no control token separates"):
        load_renderer(str(unpack("deepseek-v4", folder)), chat_template=template)


def test_ids_that_their_text_does_not_encode_to_stop_the_launch(folder, monkeypatch):
    import renderers

    create = renderers.create_renderer

    class Padded:
        """A renderer that ends with an id which no text of its own encodes to."""

        def __init__(self, *arguments):
            self._renderer = create(*arguments)

        def render_ids(self, *arguments, **options):
            return [*self._renderer.render_ids(*arguments, **options), *self._spelled]

        # "the" in two pieces.
        _spelled = (86, 263)

    monkeypatch.setattr(renderers, "create_renderer", Padded)
    with pytest.raises(ConfigurationError, match=r"not what their text encodes to .* --chat-template FILE\.py"):
        load_renderer(str(unpack("deepseek-v4", folder)), family="deepseekv4")


def test_a_template_in_a_file(tmp_path):
    file = tmp_path / "template.jinja"
    file.write_text("{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}")
    ids = load_renderer("builtin", chat_template=file).render([user("hello")], tools=None, kwargs={})
    assert load_renderer("builtin").decode(ids) == "<|im_start|>user: hello<|im_end|>"
    with pytest.raises(ConfigurationError, match="cannot read --chat-template"):
        load_renderer("builtin", chat_template=tmp_path / "nowhere.jinja")


CALLED = assistant("", call({"query": "x"}, "call00000"), call({"query": "y", "n": 1}))
TURNS = st.lists(
    st.builds(lambda text: [assistant(text)], texts)
    | st.builds(lambda one, two: [CALLED, tool(one), tool(two, "call00000")], texts, texts)
    | st.builds(lambda text: [user(text)], texts),
    max_size=4,
)


@PATIENT
@given(question=texts, turns=TURNS, thinking=st.booleans())
def test_the_library_writes_what_the_models_own_encoder_writes(by_library, by_encoder, question, turns, thinking):
    conversation = [user(question), *(message for turn in turns for message in turn)]
    kwargs = by_library.effective_kwargs({"thinking": thinking})
    for tools in (None, [{"type": "function", "function": {"name": "lookup", "parameters": {}}}]):
        left, right = (r.render(conversation, tools=tools, kwargs=kwargs).tolist() for r in (by_library, by_encoder))
        assert left == right


def test_case_8_deepseek_v4_refuses_an_appended_system_message(by_library):
    history = [user("a"), assistant("b")]
    stored = by_library.canonical(history, tools=None, kwargs={})
    with pytest.raises(AppendRoleNotSupported, match="nothing separates the message from the turn"):
        by_library.extend(
            stored,
            stored_messages=history,
            appended=[{"role": "system", "content": "c"}],
            tools=None,
            kwargs=by_library.effective_kwargs({}),
        )


@PATIENT
@given(first=texts, second=texts, text=texts, swapped=st.booleans())
def test_case_8_deepseek_v4_folds_results_and_a_users_message_into_one_turn(by_library, first, second, text, swapped):
    kwargs = by_library.effective_kwargs({})
    history = [user("a"), CALLED]
    results = [tool(first), tool(second, "call00000")]
    appended = [*(reversed(results) if swapped else results), user(text)]
    full = by_library.render([*history, *appended], tools=None, kwargs=kwargs).tolist()
    history_ids = by_library.canonical(history, tools=None, kwargs=kwargs).tolist()
    extension = by_library.extend(
        ids_of(*history_ids), stored_messages=history, appended=appended, tools=None, kwargs=kwargs
    )
    # The order of the results is that of the calls, which only the real turn knows.
    assert [*history_ids[: extension.keep], *extension.token_ids.tolist()] == full
    assert by_library.decode(extension.token_ids).count("<｜User｜>") == 1


@pytest.mark.parametrize("kwargs", [{"enable_thinking": False}, {"thinking_mode": "chat"}, {"thinking": False}])
def test_an_encoder_knows_its_switch_without_a_family(folder, kwargs):
    tokenizer = str(unpack("deepseek-v4", folder))
    renderer = load_renderer(tokenizer, chat_template=encoder_of("deepseek-v4"), chat_template_kwargs=kwargs)
    assert renderer.effective_kwargs({}) == {"thinking": False}
    assert renderer.profile.generation_opener.endswith("</think>")
    with pytest.raises(InvalidRequest, match="contradicts"):
        renderer.effective_kwargs({"thinking": True, "enable_thinking": False})


@pytest.mark.parametrize(("family", "noted"), [("glm47", True), ("default", False), ("deepseekv4", True)])
def test_what_is_pinned_to_no_effect_is_noted(family, noted):
    notes = load_renderer("builtin", family=family).notes
    assert any("does not read" in note and family in note for note in notes) is noted


def test_a_case_that_contradicts_what_a_family_pins_is_skipped(folder):
    report = verify_renderer(load_renderer(str(unpack("glm-4.7-flash", folder)), family="glm53"))
    assert report.passed, str(report)
    assert [case.outcome for case in report.cases if case.name == "thinking switched off"] == ["skipped"]
