"""Exported files: read back by their own libraries, everything is there."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from tests.core import PATIENT
from tests.core.samples.grown import Step, forests, line_of
from trio_sessions.core.samples import PrefixCacheInfo, Sample, SamplesReply, assemble, assemble_leaves, decode_samples
from trio_sessions.errors import ConfigurationError
from trio_sessions.export import COLUMNS, FORMATS, SCHEMA_VERSION, SampleExport, format_of
from trio_sessions.export.formats import ParquetWriter
from trio_sessions.testing.strategies import json_values

DOCS = Path(__file__).parents[2] / "docs" / "samples.md"
ARRAYS = ("tokens", "loss_mask", "rollout_log_probs")
ROWS = ("rollout_routed_experts", "rollout_indexer_topk")


def a_sample(**changes) -> Sample:
    forest = line_of(Step(suffix=[1, 2], output=[1000, 1001], experts=True, version="é7", cached=3, prompt_tokens=2))
    sample = assemble(forest.line(), forest.rules())
    assert sample is not None
    return replace(sample, **changes)


def a_reply(*samples: Sample, **metadata) -> SamplesReply:
    return SamplesReply(samples, metadata, None if samples else "no_records")


def export(path: Path, sessions, **options) -> Path:
    with SampleExport(path, **options) as out:
        for session_id, reply in sessions.items():
            out.add(session_id, reply)
        out.publish()
    return path


def rows_in(path: Path):
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    return pyarrow.parquet.read_table(path).to_pylist()


def assert_row(row, session_id: str, index: int, sample: Sample) -> None:
    assert list(row) == [column.name for column in COLUMNS]
    assert (row["schema_version"], row["session_id"], row["sample_index"]) == (SCHEMA_VERSION, session_id, index)
    for name in ARRAYS:
        assert row[name] == getattr(sample, name).tolist()
    for name in ROWS:
        rows = getattr(sample, name)
        if rows is None:
            assert row[name] is row[f"{name}_shape"] is None
        else:
            assert np.array(row[name], dtype=np.int32).reshape(row[f"{name}_shape"]).tolist() == rows.tolist()
    assert json.loads(row["metadata"]) == sample.metadata
    reward = json.loads(row["reward_json"]) if row["reward_json"] is not None else row["reward"]
    assert (reward, type(reward) is bool) == (sample.reward, type(sample.reward) is bool)
    assert tuple(row["weight_versions"]) == sample.weight_versions
    cache = sample.prefix_cache_info
    assert (row["cached_tokens"], row["total_prompt_tokens"]) == (cache.cached_tokens, cache.total_prompt_tokens)
    for name in ("response", "response_length", "status"):
        assert row[name] == getattr(sample, name)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@PATIENT
@given(forest=forests(), rewards=st.lists(json_values(), min_size=1, max_size=3), metadata=json_values())
def test_nothing_is_lost_in_rows(tmp_path_factory, suffix, forest, rewards, metadata):
    samples = assemble_leaves(forest.forest(), forest.rules(), mismatches=lambda leaf: None)
    samples = [
        replace(sample, reward=rewards[n % len(rewards)], metadata={**sample.metadata, "x": metadata})
        for n, sample in enumerate(samples)
    ]
    path = tmp_path_factory.mktemp("export") / f"s.{suffix}"
    export(path, {"a": a_reply(*samples), "b": a_reply(), "c": a_reply(*samples[:1])})
    expected = [("a", n, sample) for n, sample in enumerate(samples)] + [("c", 0, sample) for sample in samples[:1]]
    rows = rows_in(path)
    assert len(rows) == len(expected)
    for row, told in zip(rows, expected, strict=True):
        assert_row(row, *told)


@PATIENT
@given(forest=forests(), reward=json_values(), metadata=st.dictionaries(st.text(), json_values(), max_size=2))
def test_nothing_is_lost_in_safetensors(tmp_path_factory, forest, reward, metadata):
    samples = [
        replace(sample, reward=reward)
        for sample in assemble_leaves(forest.forest(), forest.rules(), mismatches=lambda leaf: None)
    ]
    path = tmp_path_factory.mktemp("export") / "s.safetensors"
    export(path, {"a": a_reply(*samples, **metadata), "b": a_reply(), "c": a_reply(*samples[:1])})
    reply = decode_samples(path.read_bytes())
    described = reply.session_metadata
    assert described["schema_version"] == SCHEMA_VERSION
    spans = [(s["session_id"], s["start"], s["end"], s["empty_reason"]) for s in described["sessions"]]
    whole, more = len(samples), len(samples[:1])
    none = None if samples else "no_records"
    assert spans == [
        ("a", 0, whole, none),
        ("b", whole, whole, "no_records"),
        ("c", whole, whole + more, none),
    ]
    assert described["sessions"][0]["metadata"] == metadata
    for got, sent in zip(reply.samples, [*samples, *samples[:1]], strict=True):
        assert got.reward == sent.reward
        assert got.metadata == sent.metadata
        for name in (*ARRAYS, *ROWS):
            assert np.array_equal(getattr(got, name), getattr(sent, name))


def test_safetensors_are_read_by_the_library_too(tmp_path):
    tensors = load_file(export(tmp_path / "s.safetensors", {"a": a_reply(a_sample()), "b": a_reply(a_sample())}))
    assert tensors["tokens.1"].tolist() == [1, 2, 1000, 1001]
    assert tensors["rollout_routed_experts.0"].dtype == np.int32


def test_the_parquet_schema_is_what_the_columns_say(tmp_path):
    file = pyarrow.parquet.ParquetFile(export(tmp_path / "s.parquet", {"a": a_reply()}))
    schema = file.schema_arrow
    assert schema.metadata == {b"trio_sessions.schema_version": b"1"}
    spelled = {
        field.name: re.sub(r"element: |item: ", "", str(field.type)).replace("double", "float64") for field in schema
    }
    assert spelled == {column.name: column.type for column in COLUMNS}
    assert [field.nullable for field in schema] == [column.nullable for column in COLUMNS]
    assert file.metadata.num_rows == 0


def test_parquet_rows_are_written_in_groups(tmp_path):
    path = tmp_path / "s.parquet"
    sessions = {str(n): a_reply(a_sample()) for n in range(20)}
    with path.open("wb") as file:
        writer = ParquetWriter(file, group_bytes=3000)
        for session_id, reply in sessions.items():
            writer.add(session_id, reply)
        writer.finish()
    read = pyarrow.parquet.ParquetFile(path)
    assert 1 < read.num_row_groups < 20
    assert read.read().column("session_id").to_pylist() == list(sessions)


def test_the_table_in_the_docs_is_the_schema():
    text = DOCS.read_text(encoding="utf-8")
    documented = [
        (cells[0].strip("` "), cells[1].strip().removesuffix(", or null"), cells[1].strip().endswith(", or null"))
        for cells in (line.strip("|").split("|") for line in text.splitlines())
        if len(cells) == 3 and cells[1].strip().removesuffix(", or null") in {column.type for column in COLUMNS}
    ]
    assert documented == [(column.name, column.type, column.nullable) for column in COLUMNS]
    assert f"version {SCHEMA_VERSION}" in text


@pytest.mark.parametrize("suffix", ["parquet", "json"])
def test_datasets_reads_it(tmp_path, suffix):
    name = {"json": "jsonl"}.get(suffix, suffix)
    nested = a_sample(metadata={"x": [1, "a", None]}, reward=0.5)
    plain = a_sample(metadata={"x": {"y": 2}}, reward={"k": 1}, rollout_routed_experts=None)
    path = export(tmp_path / f"s.{name}", {"a": a_reply(nested, plain), "b": a_reply(), "c": a_reply(plain)})
    program = (
        "import json, sys\n"
        "from datasets import load_dataset\n"
        f"rows = load_dataset({suffix!r}, data_files=sys.argv[1], split='train')\n"
        "print(json.dumps([rows.column_names, str(rows.features['tokens']), rows[:]]))\n"
    )
    environment = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    names, tokens, rows = json.loads(done.stdout.splitlines()[-1])
    assert names == [column.name for column in COLUMNS]
    assert "int64" in tokens
    for n, (session_id, index, sample) in enumerate([("a", 0, nested), ("a", 1, plain), ("c", 0, plain)]):
        assert_row({name: rows[name][n] for name in names}, session_id, index, sample)


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize(
    "wrong",
    [
        {"metadata": {"x": object()}},
        {"metadata": {"x": float("nan")}},
        {"rollout_log_probs": np.array([0.0, -np.inf])},
        {"prefix_cache_info": PrefixCacheInfo(cached_tokens=2**63)},
    ],
)
def test_a_session_that_cannot_be_written_leaves_no_trace(tmp_path, suffix, wrong):
    path = tmp_path / f"s.{suffix}"
    with SampleExport(path) as out:
        out.add("a", a_reply(a_sample()))
        with pytest.raises(ValueError, match=r"JSON|finite|64 bits"):
            out.add("b", a_reply(a_sample(), a_sample(**wrong)))
        out.publish()
    if suffix == "safetensors":
        assert len(decode_samples(path.read_bytes()).samples) == 1
    else:
        assert [row["session_id"] for row in rows_in(path)] == ["a"]


@pytest.mark.parametrize("suffix", FORMATS)
def test_what_is_not_published_is_not_there(tmp_path, suffix):
    with SampleExport(tmp_path / f"s.{suffix}") as out:
        out.add("a", a_reply(a_sample()))
        assert [path.suffix for path in tmp_path.iterdir()] == [".partial"]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(LookupError), SampleExport(tmp_path / f"s.{suffix}") as out:
        raise LookupError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_file_that_is_there_is_replaced_only_on_request(tmp_path, suffix):
    path = tmp_path / f"s.{suffix}"
    path.write_text("precious")
    with pytest.raises(ConfigurationError, match="exists already; --force replaces it"):
        SampleExport(path)
    assert path.read_text() == "precious"
    export(path, {"a": a_reply(a_sample())}, replace=True)
    assert path.read_bytes() != b"precious"
    assert list(tmp_path.iterdir()) == [path]


def test_one_that_appears_meanwhile_stays(tmp_path):
    path = tmp_path / "s.jsonl"
    with SampleExport(path) as out:
        path.write_text("precious")
        with pytest.raises(ConfigurationError, match="exists already"):
            out.publish()
    assert path.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_system_without_links(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    path = export(tmp_path / "s.jsonl", {"a": a_reply(a_sample())})
    assert list(tmp_path.iterdir()) == [path]
    with SampleExport(tmp_path / "t.jsonl") as out:
        (tmp_path / "t.jsonl").write_text("precious")
        with pytest.raises(ConfigurationError, match="exists already"):
            out.publish()


def test_only_files_are_replaced(tmp_path):
    (tmp_path / "d.jsonl").mkdir()
    with pytest.raises(ConfigurationError, match="is not a file"):
        SampleExport(tmp_path / "d.jsonl", replace=True)
    with pytest.raises(ConfigurationError, match="is not a file"):
        SampleExport(Path(os.devnull), "jsonl", replace=True)
    with pytest.raises(ConfigurationError, match="No such file or directory"):
        SampleExport(tmp_path / "absent" / "s.jsonl")


def test_the_file_has_ordinary_rights(tmp_path):
    path = export(tmp_path / "s.jsonl", {})
    (tmp_path / "other").touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)


@pytest.mark.parametrize(
    ("name", "format_"), [("a.jsonl", "jsonl"), ("b.x.Parquet", "parquet"), ("c.SAFETENSORS", "safetensors")]
)
def test_the_suffix_names_the_format(name, format_):
    assert format_of(Path(name)) == format_


@pytest.mark.parametrize("name", ["a", "a.json", "a.parquet.gz", ".parquet"])
def test_another_suffix_names_none(name):
    with pytest.raises(ConfigurationError, match="--format"):
        format_of(Path(name))


def test_a_format_may_have_any_name(tmp_path):
    path = export(tmp_path / "dump", {"a": a_reply(a_sample())}, format="jsonl")
    assert json.loads(path.read_text(encoding="utf-8"))["session_id"] == "a"


def test_without_pyarrow_the_extra_is_named(tmp_path):
    program = (
        "import sys\n"
        "sys.modules['pyarrow'] = None\n"
        "from trio_sessions.cli import main\n"
        "sys.exit(main(['samples', 'a', '--out', 's.parquet', '--gateway', 'http://127.0.0.1:9']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "trio-sessions: error: --out: Parquet files need pyarrow: pip install 'trio-sessions[export]'\n"
    )
    assert list(tmp_path.iterdir()) == []
