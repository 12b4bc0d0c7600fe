"""Memory of large files: what is kept grows with the tokens of the samples, and with nothing else."""

import json
import tracemalloc

import pytest

from engine.data import prepare
from engine.inspect_data import survey_file
from engine.render.settings import RenderSettings, renderer_for
from engine.rows import check
from engine.spec import RunSpec
from tests.engine.models import byte_tokenizer

SMALL, LARGE = 300, 1_800
NOISE = 1 << 20  # bytes that wait for the garbage collector; rows that were kept would be several times that
ROW = {"messages": [{"role": "user", "content": "q" * 60}, {"role": "assistant", "content": "a" * 60}]}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    made = {}
    for rows in (SMALL, LARGE):
        made[rows] = folder / f"{rows}.jsonl"
        made[rows].write_text("".join(json.dumps(ROW) + "\n" for _ in range(rows)))
    return made


def peak(work):
    """Bytes that Python asked for at most."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def growth(work, files):
    """Bytes per row more, at least."""
    work(files[SMALL])  # whatever is remembered is remembered now
    return (peak(lambda: work(files[LARGE])) - peak(lambda: work(files[SMALL])) - NOISE) / (LARGE - SMALL)


def test_checking_a_file_keeps_nothing_of_its_rows(files):
    assert growth(lambda path: check(path, "jsonl"), files) < 4


def test_preparing_keeps_ids_and_flags_alone(files, monkeypatch):
    monkeypatch.setattr("engine.data.helpers_for", lambda rows: 1)
    tokenizer, tokens = byte_tokenizer(), []

    def go(path):
        spec = RunSpec.model_validate({"model": "m", "data": {"dataset": str(path), "eval_fraction": 0.0}})
        counts = prepare(spec, tokenizer, [tokenizer.eos_token_id], lambda event: None).counts
        tokens.append(counts.total_tokens / counts.rows)

    assert (
        growth(go, files) < tokens[-1] * 5 * 2.25 + 64
    )  # arrays that grow are an eighth larger, and copied when they are cut


def test_the_numbers_of_a_file_keep_a_few_per_row(files, monkeypatch):
    monkeypatch.setattr("engine.inspect_data.helpers_for", lambda rows: 1)
    tokenizer = byte_tokenizer()
    renderer = renderer_for(tokenizer, [tokenizer.eos_token_id], RenderSettings())
    assert growth(lambda path: survey_file(path, renderer), files) < 64
