"""Several worker threads render and encode with one renderer at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.render.conversations import assistant, prompt_of, stored_after, terminator, user
from tests.render.families import TEMPLATES, from_template, renderer_of


@pytest.mark.parametrize("name", ["builtin", "qwen3", "mistral", "glm"])
def test_threads_get_what_one_thread_gets(name):
    renderer = renderer_of(name)

    def work(number):
        history = [user(f"question {number} " + "x y " * number), assistant("answer")]
        stored = stored_after(renderer, history[0], sampled="answer", stop=terminator(renderer))
        extension = renderer.extend(
            stored, stored_messages=history, appended=[user(f"more {number} " * (number % 7))], tools=None, kwargs={}
        )
        whole = renderer.canonical(history, tools=None, kwargs={})
        return (
            prompt_of(stored, extension),
            whole.tolist(),
            renderer.compare(whole, stored, np.zeros(len(stored), bool), kwargs={}),
        )

    alone = [work(number) for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(40))) == alone


def test_threads_that_need_the_same_new_profile():
    renderer = from_template(TEMPLATES["switches terminator"])
    stored = stored_after(renderer, user("a"), sampled="b", stop=None)

    def work(number):
        return renderer.extend(
            stored, stored_messages=[], appended=[user("c")], tools=None, kwargs={"short": number % 2 == 0}
        ).token_ids.tolist()

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(work, range(40)))
    assert found == [found[number % 2] for number in range(40)]
    assert found[0][0] != found[1][0]
