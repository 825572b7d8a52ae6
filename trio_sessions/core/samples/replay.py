"""Replay payloads of a line of turns as one array of rows.

A payload is base64 of int32, row by row. In the ordinary mode every turn's payload holds the rows of its whole
sequence, so that the last one is enough. In the incremental mode the engine's weights change in place: a turn holds
the rows from ``routed_experts_start_len`` on, and what it does not hold is what earlier turns were answered.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from trio_sessions.core.samples.sample import Rows
from trio_sessions.core.samples.turns import Turn
from trio_sessions.errors import SampleAssemblyFailed

__all__ = ["indexer_topk", "routed_experts"]

_WIRE: Final = np.dtype("<i4")
_PADDING: Final = b"="
# Whole groups of four.
_PIECE_CHARACTERS: Final = 2**20


def routed_experts(turns: Sequence[Turn], *, rows: int, num_layers: int | None, incremental: bool) -> Rows | None:
    """Experts of the first ``rows`` ids of a line.

    Args:
        turns: the line's turns, the last of which ends the sample.
        rows: ids of the sample but one.
        num_layers: layers in a row.
        incremental: whether every turn holds only the rows from the start its request names.

    Returns:
        int32, shape (rows, num_layers, top k), or None where the turns hold none.

    Raises:
        SampleAssemblyFailed: rows are missing, or a payload is not base64 of whole rows.
    """
    held = any(turn.routed_experts is not None for turn in turns) if incremental else turns[-1].routed_experts
    if not held:
        return None
    if num_layers is None:
        raise SampleAssemblyFailed(
            "routed_experts cannot be cut into rows: how many layers a row has is not set (--num-layers)"
        )
    if incremental:
        return _joined_experts(turns, rows, num_layers)
    last = len(turns) - 1
    return _whole("routed_experts", last, turns[last].routed_experts, _rows_of(turns[last]), num_layers)[:rows]


def indexer_topk(turns: Sequence[Turn], *, rows: int, incremental: bool) -> Rows | None:
    """Indexer choices of the first ``rows`` ids of a line; as ``routed_experts``.

    An engine may answer the whole sequence although the experts were asked for incrementally: how many values there
    are says which of the two it is.
    """
    last = len(turns) - 1
    if turns[last].indexer_topk is None:
        return None
    if not incremental:
        layers = _indexer_layers(turns[last], last)
        return _whole("indexer_topk", last, turns[last].indexer_topk, _rows_of(turns[last]), layers)[:rows]
    return _joined_choices(turns, rows)


def _joined_choices(turns: Sequence[Turn], rows: int) -> Rows:
    if turns[0].indexer_topk is None:
        # Whether a later payload is whole could only be guessed from its size.
        raise SampleAssemblyFailed("additional indexer rows: record 0 has no indexer_topk payload")
    top_k = _first_top_k(turns)
    parts: list[Rows] = []
    # From the last turn back: one that holds its whole sequence makes every earlier payload superfluous.
    wanted = _rows_of(turns[-1])
    for index in range(len(turns) - 1, -1, -1):
        turn = turns[index]
        layers, values = _indexer_layers(turn, index), _values("indexer_topk", index, turn.indexer_topk)
        total, start = _rows_of(turn), turn.routed_experts_start or 0
        first = 0 if values.size == total * layers * top_k else start
        if total != wanted or values.size != (total - first) * layers * top_k:
            raise SampleAssemblyFailed(
                f"additional indexer rows: record {index} has {values.size} values; expected the rows up to {wanted} "
                f"from 0 or {start} on, with {layers} layers and {top_k} choices"
            )
        parts.append(values.reshape(total - first, layers, top_k))
        wanted = first
        if wanted == 0:
            break
    else:
        raise SampleAssemblyFailed(f"additional indexer rows: rows before {wanted} are in no record")
    return np.concatenate(parts[::-1])[:rows]


def _first_top_k(turns: Sequence[Turn]) -> int:
    """Choices a layer, from the first turn that has rows: its payload is whole, whatever the engine makes of starts."""
    for index, turn in enumerate(turns):
        if _rows_of(turn):
            whole = _whole("indexer_topk", index, turn.indexer_topk, _rows_of(turn), _indexer_layers(turn, index))
            return int(whole.shape[2])
    return 0


def _joined_experts(turns: Sequence[Turn], rows: int, num_layers: int) -> Rows:
    joined: Rows | None = None
    covered = 0
    for index, turn in enumerate(turns):
        if joined is not None and covered >= rows:
            break
        start, end = turn.routed_experts_start, _rows_of(turn)
        if turn.routed_experts is None:
            raise SampleAssemblyFailed(f"additional R3: record {index} has no routed_experts payload")
        if start is None:
            raise SampleAssemblyFailed(f"additional R3: record {index} request carries no routed_experts_start_len")
        if start != covered:
            raise SampleAssemblyFailed(f"additional R3: record {index} starts at row {start}; expected {covered}")
        if index and turn.checkpoint.kept < start:
            raise SampleAssemblyFailed(
                f"additional R3: record {index} starts at row {start}, but its prompt kept only "
                f"{turn.checkpoint.kept} ids of the turn before"
            )
        if end < start:
            raise SampleAssemblyFailed(f"additional R3: record {index} starts at row {start} behind its end {end}")
        values = _values("routed_experts", index, turn.routed_experts)
        if bool(values.size) != bool(end - start):
            raise SampleAssemblyFailed(
                f"additional R3: record {index} payload presence does not match {end - start} rows"
            )
        if values.size:
            part = _shaped("routed_experts", index, values, end - start, num_layers)
            if joined is None:
                # Every later part goes to its place at once: rows are held once, and one part beside them.
                joined = np.empty((rows, num_layers, part.shape[2]), dtype=np.int32)
            if part.shape[2] != joined.shape[2]:
                raise SampleAssemblyFailed(
                    f"additional R3: record {index} has {part.shape[2]} experts a layer; expected {joined.shape[2]}"
                )
            joined[covered : min(end, rows)] = part[: max(rows - covered, 0)]
        covered = end
    assert covered >= rows, "the last turn's rows reach to the end of the sample"
    return np.empty((0, num_layers, 0), dtype=np.int32) if joined is None else joined


def _rows_of(turn: Turn) -> int:
    """Rows of the turn's whole sequence: its last id was sampled and never computed."""
    return max(turn.prompt_length + turn.output_length - 1, 0)


def _indexer_layers(turn: Turn, index: int) -> int:
    if not turn.indexer_layers or turn.indexer_layers < 0:
        raise SampleAssemblyFailed(f"record {index} has indexer_topk without indexer_topk_num_layers")
    return turn.indexer_layers


def _whole(name: str, index: int, payload: msgspec.Raw | None, rows: int, layers: int) -> Rows:
    return _shaped(name, index, _values(name, index, payload), rows, layers)


def _values(name: str, index: int, payload: msgspec.Raw | None) -> npt.NDArray[np.int32]:
    """All values of a payload, without a copy where the machine's integers are the wire's."""
    assert payload is not None, "a turn without a payload ends the sample before it"
    text = memoryview(payload)
    try:
        decoded = _decoded(text, payload)
        values = np.frombuffer(decoded, dtype=_WIRE) if decoded else np.empty(0, dtype=_WIRE)
    except (ValueError, msgspec.MsgspecError) as error:
        raise SampleAssemblyFailed(f"record {index} has {name} that is not base64 of int32: {error}") from error
    return values.astype(np.int32, copy=False)


def _decoded(text: memoryview, payload: msgspec.Raw) -> bytes:
    if bytes(text[:1]) == b'"':
        try:
            return _from_base64(text[1:-1])
        except binascii.Error:
            pass
    # An encoder may have spelled a character as an escape; otherwise the error says what is wrong.
    return binascii.a2b_base64(msgspec.json.decode(payload, type=str), strict_mode=True)


def _from_base64(text: memoryview) -> bytes:
    """Piece by piece: decoding lets no other thread run, and a payload may be many megabytes."""
    pieces = []
    for start in range(0, len(text), _PIECE_CHARACTERS):
        piece = text[start : start + _PIECE_CHARACTERS]
        if start + len(piece) < len(text) and bytes(piece[-1:]) == _PADDING:
            raise binascii.Error("padding before the end")
        pieces.append(binascii.a2b_base64(piece, strict_mode=True))
    return b"".join(pieces)


def _shaped(name: str, index: int, values: npt.NDArray[np.int32], rows: int, layers: int) -> Rows:
    if rows == 0 and not values.size:
        return np.empty((0, layers, 0), dtype=np.int32)
    if not values.size or rows == 0 or values.size % (rows * layers):
        raise SampleAssemblyFailed(
            f"record {index} has {name} of {values.size} values, not a multiple of {rows} rows x {layers} layers"
        )
    return values.reshape(rows, layers, values.size // (rows * layers))
