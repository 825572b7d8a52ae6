"""Templates that ask for the date see the one they are told."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.render.conversations import PATIENT, assistant, ids_of, prompt_of, terminator, user
from tests.render.families import TEMPLATES, chatml, from_template, renderer_of, turn

MOMENTS = st.datetimes(min_value=datetime(1990, 1, 1), max_value=datetime(2100, 1, 1))
DIRECTIVES = st.builds(
    lambda flag, letter: f"%{flag}{letter}",
    st.sampled_from(["", "-", "_", "0", "^", "#", "E", "O"]),
    st.sampled_from("YmdbBAHMyjepIUq%"),
)
FORMATS = st.lists(DIRECTIVES | st.sampled_from([" ", "-", "/", ", ", "the ", "100%", "E"]), max_size=6).map("".join)
ASKS = "{% if strftime_now is defined %}{% set today = strftime_now(format) %}Today: {{ today }}.{% endif %}\n"


@PATIENT
@given(moment=MOMENTS, form=FORMATS)
@example(datetime(2024, 1, 5), "%_d %0d %-d %^b %#B 100%")
@example(datetime(2024, 1, 5), "%")
def test_a_format_is_written_as_python_writes_it(moment, form):
    renderer = from_template(chatml(turn(), head=ASKS), defaults={"format": form})
    ids = renderer.render([user("hello")], tools=None, kwargs={"format": form}, now=moment)
    written = renderer.decode(ids).partition("Today: ")[2].rpartition(".<|im_start|>user")[0]
    assert written == moment.strftime(form)


@pytest.mark.parametrize("name", ["chatml", "llama", "glm"])
def test_a_template_that_does_not_ask_is_rendered_as_ever(name):
    renderer = renderer_of(name)
    plain = renderer.render([user("hello")], tools=None, kwargs={})
    assert renderer.render([user("hello")], tools=None, kwargs={}, now=datetime(2020, 1, 1)).tolist() == plain.tolist()


@pytest.mark.parametrize("head", ["\n", "  \n", "  {% set x = 1 %}\n", "a\n", "{#- c -#}\n"])
def test_the_first_line_of_a_template_stays_what_it_is(head):
    template = head + "{% if false %}{{ strftime_now('%Y') }}{% endif %}" + TEMPLATES["chatml"]
    renderer = from_template(template)
    asked = renderer.render([user("hello")], tools=None, kwargs={}, now=datetime(2020, 1, 1)).tolist()
    assert asked == renderer.render([user("hello")], tools=None, kwargs={}).tolist()


@PATIENT
@given(start=MOMENTS, later=st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=800)))
def test_case_19_across_midnight_the_prefix_stays_with_the_date_of_the_start(start, later):
    renderer = renderer_of("reads the clock")
    history = [user("hello"), assistant("world")]
    prompt = renderer.render(history[:1], tools=None, kwargs={}, now=start).tolist()
    stored = ids_of(*prompt, *renderer.encode("world"), terminator(renderer))
    extension = renderer.extend(
        stored, stored_messages=history, appended=[user("more")], tools=None, kwargs={}, now=start
    )
    assert prompt_of(stored, extension)[: len(prompt)] == prompt
    canonical = renderer.canonical(history, tools=None, kwargs={}, now=start)
    assert renderer.decode(canonical).startswith(str(start.year))
    # Told another date the template writes another prefix; that is why a session remembers its own.
    other = renderer.decode(renderer.canonical(history, tools=None, kwargs={}, now=start + later))
    assert other.startswith(str((start + later).year))
