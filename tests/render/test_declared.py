"""What an extension declares of the seam, id by id."""

from __future__ import annotations

import pytest

from tests.render.conversations import assistant, ids_of, stored_after, terminator, user
from tests.render.families import renderer_of, tokenizer_of
from trio_sessions.core.boundary import Origin


def extend(renderer, stored, *appended):
    history = [user("hello"), assistant("x")]
    return renderer.extend(stored, stored_messages=history, appended=appended, tools=None, kwargs={})


def declared(extension):
    return [(event.kind, event.position) for event in extension.events]


def test_a_turn_that_ended_as_the_template_ends_it_declares_nothing():
    renderer = renderer_of("qwen3")
    stored = stored_after(renderer, user("hello"), sampled="x", stop=terminator(renderer))
    extension = extend(renderer, stored, user("more"))
    assert extension.events == ()
    assert set(extension.origins.tolist()) == {Origin.TEMPLATE}


@pytest.mark.parametrize(("sampled", "detail"), [("x", False), ("<think>\nwhy", True)])
def test_a_close_is_declared_where_it_stands(sampled, detail):
    renderer = renderer_of("qwen3")
    prompt = renderer.render([user("hello")], tools=None, kwargs={})
    stored = ids_of(*prompt.tolist(), *renderer.encode(sampled))
    extension = extend(renderer, stored, user("more"))
    assert declared(extension) == [("turn_closed", len(stored))]
    assert ("open thought" in extension.events[0].detail) is detail
    closed = extension.origins.tolist()
    assert closed[: extension.synthetic] == [Origin.SYNTHETIC] * extension.synthetic
    assert set(closed[extension.synthetic :]) == {Origin.TEMPLATE}
    assert renderer.decode(extension.token_ids[: extension.synthetic]).endswith("<|im_end|>")


def test_a_replaced_stop_is_declared_where_it_stood():
    renderer = renderer_of("glm")
    observation = tokenizer_of("glm").convert_tokens_to_ids("<|observation|>")
    stored = stored_after(renderer, user("hello"), sampled="x", stop=observation)
    extension = extend(renderer, stored, user("more"))
    assert declared(extension) == [("stop_replaced", len(stored) - 1)]
    assert str(observation) in extension.events[0].detail
    assert str(int(extension.token_ids[0])) in extension.events[0].detail
    assert set(extension.origins.tolist()) == {Origin.TEMPLATE}


@pytest.mark.parametrize(("name", "stop"), [("glm", "<|endoftext|>"), ("three terminators", "<|endoftext|>")])
def test_another_stop_that_is_kept_is_declared(name, stop):
    renderer = renderer_of(name)
    stored = stored_after(renderer, user("hello"), sampled="x", stop=tokenizer_of(name).convert_tokens_to_ids(stop))
    extension = extend(renderer, stored, user("more"))
    assert declared(extension) == [("other_stop", len(stored) - 1)]
    assert extension.keep == len(stored)


def test_a_mark_of_thinking_in_an_earlier_turn_opens_nothing():
    """Only the turn that was cut short is looked at, not the prompt before it."""
    renderer = renderer_of("opens thinking")
    # The first turn ended inside its thought, and was closed by its stop alone.
    prompt = renderer.render([user("hello")], tools=None, kwargs={}).tolist()
    first = [*prompt, *renderer.encode("why"), terminator(renderer)]
    opened = renderer.profile.thinking.open_id
    second = renderer.encode("\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\nplain")
    assert opened in first
    assert opened not in second
    extension = extend(renderer, ids_of(*first, *second), user("again"))
    assert (extension.synthetic, extension.events[0].detail) == (1, "the turn before it had no stop id and was closed")
