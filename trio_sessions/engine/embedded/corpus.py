"""The text that the embedded model learns from: hand-written prose and generated agent episodes.

Everything here is written for this project. The generator is seeded, so the same seed gives the same corpus on any
machine, and small enough that a model for another tokenizer can be trained from it while an engine starts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["PROSE", "AssistantTurn", "Episode", "episodes"]


@dataclass(frozen=True, slots=True)
class AssistantTurn:
    """What an assistant says in one turn.

    Attributes:
        reasoning: thinking before the answer, empty for none.
        content: the answer, empty when the turn is only a tool call.
        call: tool name and arguments, None for no call.
    """

    reasoning: str
    content: str
    call: tuple[str, dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Episode:
    """One task: what the user asked, the assistant's turns, and what the tools answered between them."""

    user: str
    turns: tuple[AssistantTurn, ...]
    observations: tuple[str, ...]


PROSE: Final[tuple[str, ...]] = (
    "The tide had gone out further than anyone in the village could remember. Boats lay on their sides in the mud, "
    "and children walked out to the old wall to look for crabs. By evening the water came back, as it always does, "
    "and the boats stood up again.",
    "A queue is a promise about order. The first request to arrive is the first to be served, and nobody waits for "
    "ever as long as the work is finished faster than it comes in. When it is not, the honest answer is to say no "
    "early instead of making everybody wait.",
    "My grandmother kept bees behind the house. She never wore gloves, and she spoke to them while she worked. She "
    "said that bees do not mind a calm person, and that most trouble in life comes from being in a hurry.",
    "The train to the coast leaves at seven in the morning. It stops at every small station, so bring a book and "
    "something to eat. The last part of the line runs along the cliff, and on a clear day you can see the islands.",
    "To bake bread you need flour, water, salt and time. The dough should rest until it has doubled in size. If the "
    "kitchen is cold, let it rest longer. Bake it in a hot oven until the crust sounds hollow when you tap it.",
    "A good test fails for one reason and says which. It does not sleep, it does not depend on the clock, and it can "
    "be run in any order. When it fails, the person who reads the message should know where to look first.",
    "The library closed at nine, but the lamp in the reading room burned until midnight. The old librarian liked to "
    "finish one chapter before going home, and the chapters of the books he chose were long.",
    "Rain fell on the town for three days. The river rose to the second step of the bridge and stayed there. On the "
    "fourth day the sun came out, and people hung their coats in the windows to dry.",
    "Measure before you change anything, and measure again afterwards. A number that was taken on a busy machine "
    "tells you about the machine. Two numbers from the same run tell you about the change.",
    "The garden was planned by somebody who liked straight lines, and kept by somebody who did not. Roses grew over "
    "the hedges, the path had lost its edge, and nobody could say that it was worse for it.",
    "Water boils at a lower temperature in the mountains. That is why beans take longer to cook there, and why the "
    "people of the high valleys eat more bread than beans.",
    "She learned to play the piano late, at sixty, on an instrument with three silent keys. For years she believed "
    "that the pauses belonged to the music.",
    "The parser reads one token at a time and never looks back. When it meets something it does not know, it stops "
    "and reports the line and the column. It is better to stop at once than to guess.",
    "In winter the lake freezes from the shore to the middle. The first skaters keep close to the reeds. By January "
    "there are paths on the ice, and by March nobody trusts them any more.",
    "The map showed a road where there was only grass. We followed it anyway, and after an hour we found the stones "
    "of an old wall and a well with clean water.",
    "A cache answers quickly and is sometimes wrong. A database answers slowly and is usually right. Most of the "
    "work lies in deciding which of the two a question deserves.",
    "The market opens before sunrise. Fish is sold first, then vegetables, then bread. By ten o'clock only the "
    "people who sell flowers are left, and they are in no hurry.",
    "Every machine in the workshop had a name. The saw was called after a teacher, the drill after a dog. When one "
    "of them broke, the workers spoke of it as of a friend who was ill.",
    "Stars do not twinkle by themselves. What we see is the air above us, moving and bending the light. From the "
    "moon, where there is no air, every star is a still point.",
    "The letter had been on its way for eleven years. It was about a small debt and a large apology. Both people "
    "had forgotten the debt long ago, but the apology was welcome.",
    "Locks should be held for as short a time as possible. Do the slow work first, then take the lock, look whether "
    "the world is still as you left it, and write down the result.",
    "The bridge was built in two halves from both banks. When they met in the middle, the difference was less than "
    "the width of a hand. The engineers did not celebrate; they measured it again.",
    "He walked to work along the canal, because the street was louder and the canal had herons. A heron stands still "
    "for so long that one forgets it, and then it is gone.",
    "An index makes reading fast and writing slow. Add one when you read more often than you write, and remove it "
    "when nobody can say which query needs it.",
    "The soup was made of onions, old bread and cheese. It had been invented by people who had nothing else, and it "
    "was now the most expensive dish in the restaurant.",
    "At the end of the street there was a shop that repaired clocks. All of them showed a different time. The owner "
    "said that this was the only way to know that they were running on their own.",
    "Numbers in a report should come with their units, their date and the name of the machine. Without these they "
    "are decoration. With them, somebody else can find out that they are wrong.",
    "The fox came to the edge of the yard every evening and sat down. The dog looked at it through the fence. After "
    "some weeks they seemed to have agreed on something.",
    "Snow makes a city quiet. Tyres roll softly, voices do not carry, and even the bells sound as if they were "
    "further away. In the morning one can see who got up first.",
    "A message that was sent twice should have the effect of a message that was sent once. This is easy to say. It "
    "needs a name for every message and a place to remember the names.",
)
"""Short paragraphs without line breaks."""

_PLACES: Final = (
    "Lisbon", "Oslo", "Kyoto", "Nairobi", "Lima", "Prague", "Hanoi", "Dublin", "Cairo", "Tallinn", "Quito",
    "Toronto", "Marseille", "Krakow", "Utrecht", "Porto", "Bergen", "Zürich", "São Paulo", "Reykjavík",
)  # fmt: skip
_FILES: Final = (
    "main.py", "config.toml", "README.md", "parser.py", "server.py", "tests/test_queue.py", "data/input.csv",
    "notes.txt", "src/cache.py", "app/routes.py", "setup.cfg", "logs/today.log", "schema.sql", "Makefile",
)  # fmt: skip
_TOPICS: Final = (
    "the history of lighthouses", "how bees find their way home", "the price of copper", "bread without yeast",
    "the longest bridge in Europe", "sorting large files", "why the sky is blue", "the tides in the North Sea",
    "cold weather and batteries", "how trains change tracks", "the first printed books", "safe mushrooms",
    "token exact training", "fair queues", "retry with backoff", "structured concurrency",
)  # fmt: skip
_BUGS: Final = (
    "an off by one error", "a missing import", "a lock that is held too long", "a test that depends on the clock",
    "a file that is never closed", "a wrong default", "a comparison of text with a number", "a stale cache entry",
)  # fmt: skip
_WEATHER: Final = ("sunny", "cloudy", "rainy", "windy", "foggy", "clear", "stormy", "snowy")
_COMMANDS: Final = (
    "ls -la", "pytest -q", "git status", "cat notes.txt", "python main.py", "grep -n error logs/today.log",
    "wc -l data/input.csv", "du -sh .", "head -n 20 README.md", "make test",
)  # fmt: skip
_OPENINGS: Final = (
    "The user wants to know", "I have been asked about", "The question is about", "Let me think about",
    "First I should look at", "I need to find out more about", "The task is clear: look at", "So this is about",
)  # fmt: skip
_PLANS: Final = (
    "I will call the tool and read what it says.", "One call should be enough.", "I should check it before I answer.",
    "There is a tool for that.", "I do not know it by heart, so I will look it up.", "Then I can give a short answer.",
    "If that fails, I will try another way.", "I will keep the answer short.", "That needs the exact value.",
)  # fmt: skip
_CLOSINGS: Final = (
    "Let me know if you need anything else.", "Is there anything else that I can do?", "I hope that helps.",
    "Tell me if you want more detail.", "That is all I found.", "You can check it again later.", "",
    "I would look at it once more before the release.", "Shall I go on with the next step?",
)  # fmt: skip
_VERDICTS: Final = (
    "I know enough to answer now.", "The result is what I expected.", "That answers the question.",
    "The tool gave a clear answer.", "Now I can write it down in a few words.", "Nothing else is needed.",
)  # fmt: skip


def episodes(count: int, seed: int) -> Iterator[Episode]:
    """``count`` episodes; the same seed gives the same ones."""
    rng = random.Random(seed)  # noqa: S311 - text for a toy model, not a secret
    makers = (_weather, _read, _fix, _search, _sum, _run, _talk, _explain)
    for _ in range(count):
        yield rng.choice(makers)(rng)


def _thought(rng: random.Random, about: str) -> str:
    return f"{rng.choice(_OPENINGS)} {about}. {rng.choice(_PLANS)}"


def _close(rng: random.Random, text: str) -> str:
    return f"{text} {rng.choice(_CLOSINGS)}".rstrip()


def _weather(rng: random.Random) -> Episode:
    place, sky, degrees = rng.choice(_PLACES), rng.choice(_WEATHER), rng.randrange(-9, 36)
    unit = rng.choice(("celsius", "fahrenheit"))
    answers = (
        f"It is {sky} in {place} today, with {degrees} degrees.",
        f"The weather in {place} is {sky}. The temperature is {degrees} degrees {unit}.",
        f"In {place} it is {degrees} degrees and {sky}, so take a coat with you.",
    )
    return Episode(
        user=rng.choice((f"What is the weather in {place}?", f"Do I need a coat in {place} today?")),
        turns=(
            AssistantTurn(
                _thought(rng, f"the weather in {place}"),
                "",
                ("get_weather", {"city": place, "unit": unit, "days": rng.randrange(1, 8)}),
            ),
            AssistantTurn(rng.choice(_VERDICTS), _close(rng, rng.choice(answers))),
        ),
        observations=(f'{{"city": "{place}", "temperature": {degrees}, "sky": "{sky}"}}',),
    )


def _read(rng: random.Random) -> Episode:
    path, lines = rng.choice(_FILES), rng.randrange(3, 900)
    return Episode(
        user=f"What is in {path}?",
        turns=(
            AssistantTurn(
                _thought(rng, f"the file {path}"),
                "",
                ("read_file", {"path": path, "limit": rng.randrange(10, 200)}),
            ),
            AssistantTurn(
                rng.choice(_VERDICTS),
                _close(
                    rng,
                    f"The file {path} has {lines} lines. I found {rng.choice(_BUGS)} in line {lines // 2}.",
                ),
            ),
        ),
        observations=(rng.choice(PROSE),),
    )


def _fix(rng: random.Random) -> Episode:
    path, bug = rng.choice(_FILES), rng.choice(_BUGS)
    return Episode(
        user=f"Please fix {bug} in {path}.",
        turns=(
            AssistantTurn(
                _thought(rng, f"{bug} in {path}"),
                "",
                (
                    "write_file",
                    {"path": path, "content": rng.choice(PROSE)[:60], "overwrite": rng.random() < 0.5},
                ),
            ),
            AssistantTurn(
                f"The change to {path} is written. {rng.choice(_VERDICTS)}",
                _close(rng, f"I fixed {bug} in {path} and ran the tests. All of them pass now."),
            ),
        ),
        observations=("ok",),
    )


def _search(rng: random.Random) -> Episode:
    topic = rng.choice(_TOPICS)
    text = rng.choice(PROSE)
    return Episode(
        user=f"Can you look up {topic}?",
        turns=(
            AssistantTurn(
                _thought(rng, topic),
                "",
                ("search", {"query": topic, "limit": rng.randrange(1, 20), "recent": rng.random() < 0.5}),
            ),
            AssistantTurn(
                f"The search found a text about {topic}. {rng.choice(_VERDICTS)}",
                _close(rng, f"Here is what I found about {topic}: {text.split('. ')[0]}."),
            ),
        ),
        observations=(text,),
    )


def _sum(rng: random.Random) -> Episode:
    left, right = rng.randrange(2, 900), rng.randrange(2, 900)
    return Episode(
        user=f"How much is {left} plus {right}?",
        turns=(
            AssistantTurn(
                _thought(rng, f"the sum of {left} and {right}"),
                "",
                ("calculate", {"expression": f"{left} + {right}", "precision": rng.randrange(0, 5)}),
            ),
            AssistantTurn(rng.choice(_VERDICTS), _close(rng, f"The sum of {left} and {right} is {left + right}.")),
        ),
        observations=(str(left + right),),
    )


def _run(rng: random.Random) -> Episode:
    command, code = rng.choice(_COMMANDS), rng.choice((0, 0, 0, 1, 2))
    verdict = "It finished without errors." if code == 0 else f"It failed with exit code {code}."
    return Episode(
        user=f"Run `{command}` and tell me what happens.",
        turns=(
            AssistantTurn(
                _thought(rng, f"the command {command}"),
                "",
                ("run_command", {"command": command, "timeout": rng.randrange(1, 120)}),
            ),
            AssistantTurn(f"The exit code is {code}. {rng.choice(_VERDICTS)}", _close(rng, f"I ran it. {verdict}")),
        ),
        observations=(f"exit code {code}",),
    )


def _talk(rng: random.Random) -> Episode:
    greeting = rng.choice(("Hello!", "Good morning.", "Hi there.", "Good evening."))
    answers = (
        f"{greeting} How can I help you today?",
        f"{greeting} I am well, thank you. What would you like to do?",
        f"{greeting} It is good to hear from you.",
    )
    return Episode(
        user=greeting,
        turns=(AssistantTurn("The user says hello. I will greet back.", _close(rng, rng.choice(answers))),),
        observations=(),
    )


def _explain(rng: random.Random) -> Episode:
    topic, (first, *rest) = rng.choice(_TOPICS), rng.choice(PROSE).split(". ")
    text = f"{first}. {rest[0]}." if rest else first
    return Episode(
        user=f"Tell me something about {topic}.",
        turns=(AssistantTurn(_thought(rng, topic), _close(rng, text.replace("..", "."))),),
        observations=(),
    )
