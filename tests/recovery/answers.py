"""What clients were answered, and whether a server still says so."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trio_sessions.core.samples import decode_samples

Message = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """A turn's answer that a client has whole.

    Attributes:
        id: of the response.
        message: what was sampled.
        body: the engine's JSON with ids and log probs; None where it was streamed.
    """

    id: str
    message: Message
    body: dict[str, Any] | None = None

    @classmethod
    def read(cls, raw: bytes, *, stream: bool) -> Answer:
        """The answer in a body that came to its end."""
        if not stream:
            body = json.loads(raw)
            return cls(body["id"], body["choices"][0]["message"], body)
        events = [line.removeprefix(b"data: ") for line in raw.split(b"\n\n") if line]
        assert events[-1] == b"[DONE]"
        [chunk] = map(json.loads, events[:-1])
        return cls(chunk["id"], chunk["choices"][0]["delta"])

    @property
    def sampled(self) -> list[list[Any]]:
        """Log prob and id of every id."""
        assert self.body is not None
        entries: list[list[Any]] = self.body["choices"][0]["meta_info"]["output_token_logprobs"]
        return entries


@dataclass(eq=False)
class Turn:
    """A turn that was sent.

    Attributes:
        messages: of the request; empty of a turn that was found and whose request is not known.
        sent: when, by the clients' common count.
        stream: whether a stream was asked for.
        parent: the turn it extends.
        answered: when the answer was there.
        answer: what it was; also of a turn whose answer never came and that was found in the records.
        record: its record, once it was read.
    """

    messages: Sequence[Message]
    sent: int
    stream: bool = False
    parent: Turn | None = None
    answered: int | None = None
    answer: Answer | None = None
    record: dict[str, Any] | None = None

    @property
    def conversation(self) -> list[Message]:
        """The messages up to the answer."""
        assert self.answer is not None
        return [*self.messages, self.answer.message]

    def extends(self) -> str | None:
        """The response that it goes on from."""
        return None if self.parent is None or self.parent.answer is None else self.parent.answer.id

    def answer_with(self, raw: bytes, now: int) -> None:
        """The whole answer is there."""
        self.answer, self.answered = Answer.read(raw, stream=self.stream), now

    def is_recorded_as(self, record: dict[str, Any]) -> bool:
        """Whether that is this turn, as far as its client knows it."""
        response = record["response"]
        return bool(
            (not self.messages or record["request"]["messages"] == self.messages)
            and self.record in (None, record)
            and (
                self.answer is None
                or (
                    response["id"] == self.answer.id
                    and self.answer.body in (None, response)
                    and all(
                        response["choices"][0]["message"].get(name) == value
                        for name, value in self.answer.message.items()
                    )
                )
            )
        )

    def note_record(self, record: dict[str, Any]) -> None:
        """That is this turn; from now on it stays so."""
        self.record = record
        if self.answer is None:
            response = record["response"]
            self.answer = Answer(response["id"], response["choices"][0]["message"], response)


@dataclass(frozen=True)
class Seen:
    """The bytes of a session, and between which turns they were read."""

    turns: tuple[Turn, ...]
    state: bytes
    samples: bytes


@dataclass
class Tally:
    """What was checked."""

    kills: int = 0
    sessions: int = 0
    turns: int = 0
    equal: int = 0
    deleted: int = 0
    in_flight_kept: int = 0
    in_flight_gone: int = 0
    missing: int = 0


@dataclass(eq=False)
class Book:
    """What the client of one session knows of it.

    Attributes:
        id: of the session.
        tally: where checks are counted.
        relaxed: whether the last turns may be missing.
        turns: the line that stands; in tree mode all turns that were answered, as their answers came.
        lines: all lines that stood, in order.
        pending: turns that were sent and not answered.
        replaces: whether the pending turn takes the place of the last.
        seen: what was read of it last.
        deletion: whether its deletion was asked for, and answered.
    """

    id: str
    tally: Tally
    relaxed: bool
    turns: list[Turn] = field(default_factory=list)
    lines: list[tuple[Turn, ...]] = field(default_factory=lambda: [()])
    pending: list[Turn] = field(default_factory=list)
    replaces: bool = False
    seen: Seen | None = None
    deletion: str = ""

    def see(self, state: bytes, samples: bytes) -> None:
        """It was read while no turn of it was running: as before, if no turn came between."""
        turns = tuple(self.turns)
        if self.seen is not None and self.seen.turns == turns:
            assert state == self.seen.state
            assert samples == self.seen.samples
            self.tally.equal += 1
        self.seen = Seen(turns, state, samples)

    def settle(self, status: int, state: bytes, samples: bytes) -> bool:
        """Compare with what a server says after a crash, and take over what it has; whether it is there."""
        if self.deletion and status == 404:
            self.tally.deleted += 1
            return False
        assert self.deletion != "answered", "it was deleted"
        if status == 404 and self.relaxed:
            self.tally.missing += 1
            return False
        assert status == 200, state
        self.deletion = ""
        said = json.loads(state)
        self._take_over(said, samples)
        assert_exact(said)
        self.tally.sessions += 1
        self.tally.turns += len(self.turns)
        # Where nothing was found of what was in flight, nothing else changed either.
        self.see(state, samples)
        return True

    def _take_over(self, said: dict[str, Any], samples: bytes) -> None:
        raise NotImplementedError


class LinearBook(Book):
    """Of a session with one line of turns."""

    def answered(self, turn: Turn) -> None:
        """The pending turn was answered."""
        self.pending.remove(turn)
        self.turns = [*(self.turns[:-1] if self.replaces else self.turns), turn]
        self.lines.append(tuple(self.turns))
        self.replaces = False

    def _take_over(self, said: dict[str, Any], samples: bytes) -> None:
        records = said["records"]
        before = tuple(self.turns)
        possible = list(reversed(self.lines)) if self.relaxed else [before]
        if self.pending:
            possible.insert(0, (*(before[:-1] if self.replaces else before), *self.pending))
        found = next((line for line in possible if self._is_recorded(line, records)), None)
        assert found is not None, (
            f"session {self.id} has {len(records)} turns, {[record['response']['id'] for record in records]}; "
            f"its client {[turn.answer and turn.answer.id for turn in before]}, and {len(self.pending)} in flight"
        )
        for turn, record in zip(found, records, strict=True):
            turn.note_record(record)
        if self.pending:
            kept = found is possible[0]
            self.tally.in_flight_kept += kept
            self.tally.in_flight_gone += not kept
            if kept:
                # Sent again, it takes the place of itself.
                self.replaces = True
        if found not in (before, possible[0]):
            self.tally.missing += 1
            # What was in flight stood behind turns that are not there.
            self.pending, self.replaces = [], False
        self.turns = list(found)
        self.lines = [*self.lines[: self.lines.index(found) if found in self.lines else None], found]

    @staticmethod
    def _is_recorded(line: tuple[Turn, ...], records: list[dict[str, Any]]) -> bool:
        return len(line) == len(records) and all(
            turn.is_recorded_as(record) for turn, record in zip(line, records, strict=True)
        )


@dataclass(eq=False)
class TreeBook(Book):
    """Of a session that branches.

    Attributes:
        nodes: by response id, as they were shown last.
    """

    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)

    def answered(self, turn: Turn) -> None:
        """A pending turn was answered."""
        self.pending.remove(turn)
        self.turns.append(turn)

    def _take_over(self, said: dict[str, Any], samples: bytes) -> None:
        nodes = {node["response_id"]: node for node in said["metadata"]["tree"]["nodes"]}
        by_number = {node["id"]: node for node in nodes.values()}
        assert list(by_number) == list(range(len(nodes)))
        known = {turn.answer.id: turn for turn in self.turns if turn.answer is not None}
        lost = [turn for name, turn in known.items() if name not in nodes]
        assert self.relaxed or not lost, f"session {self.id} lost {len(lost)} of {len(known)} turns"
        kept = 0
        for name, node in nodes.items():
            parent = None if node["parent"] is None else by_number[node["parent"]]["response_id"]
            if name not in known:
                sent = next(turn for turn in self.pending if turn.extends() == parent)
                self.pending.remove(sent)
                # Of several that went on from there it may be any.
                turn = Turn([], sent.sent, parent=sent.parent, answer=Answer(name, {}))
                self.turns.append(turn)
                known[name] = turn
                kept += 1
            turn = known[name]
            assert turn.extends() == parent
            assert self.nodes.get(name, node) == node
        self.tally.in_flight_kept += kept
        self.tally.in_flight_gone += len(self.pending)
        for turn in self.turns:
            for other in self.turns:
                if turn.answered is not None and turn.answered < other.sent and other not in lost:
                    assert turn not in lost
                    assert self._number(nodes, turn) < self._number(nodes, other)
        self.tally.missing += len(lost)
        self.turns = [turn for turn in self.turns if turn not in lost]
        self.pending = [turn for turn in self.pending if turn.parent not in lost]
        self.nodes = nodes
        for record in said["records"]:
            turn = known[record["response"]["id"]]
            assert turn.is_recorded_as(record)
            turn.note_record(record)
        self._check_samples(said, samples, known)

    @staticmethod
    def _number(nodes: dict[str, dict[str, Any]], turn: Turn) -> int:
        assert turn.answer is not None
        number: int = nodes[turn.answer.id]["id"]
        return number

    @staticmethod
    def _check_samples(said: dict[str, Any], samples: bytes, known: dict[str, Turn]) -> None:
        """Ids and log probs of every branch."""
        tree = said["metadata"]["tree"]
        nodes = {node["id"]: node for node in tree["nodes"]}
        branches = {leaf["node_id"]: leaf["path_node_ids"] for leaf in tree["leaves"]}
        made = decode_samples(samples).samples
        assert {sample.metadata["leaf"]["node_id"] for sample in made} == branches.keys()
        for sample in made:
            before = len(sample.tokens) - sample.response_length
            for number in branches[sample.metadata["leaf"]["node_id"]]:
                node = nodes[number]
                answer = known[node["response_id"]].answer
                if answer is None or answer.body is None:
                    continue
                start, end = node["completion_span"]
                ids = [entry[1] for entry in answer.sampled]
                assert sample.metadata["accumulated_token_ids"][start:end] == ids
                if end > len(sample.tokens):
                    # It ends with a turn that was cut by length.
                    continue
                assert sample.tokens[start:end].tolist() == ids
                log_probs = sample.rollout_log_probs[start - before : end - before]
                assert np.array_equal(log_probs, [entry[0] for entry in answer.sampled])


def assert_exact(said: dict[str, Any]) -> None:
    """Every prompt of the active path starts with what was sampled before it."""
    stored: list[int] = []
    for record in said["records"]:
        prompt = record["request"]["input_ids"]
        assert prompt[: len(stored)] == stored
        stored = prompt + [entry[1] for entry in record["response"]["choices"][0]["meta_info"]["output_token_logprobs"]]
    assert said["metadata"]["accumulated_token_ids"] == stored
