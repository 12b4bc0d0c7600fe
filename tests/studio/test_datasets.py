"""Datasets: whatever is dropped on the page."""

import hashlib
import io

import pytest

from studio import datasets, runs
from studio.db.tables import Dataset
from studio.errors import Conflict, Invalid, NotFound, TooLarge
from tests.conftest import ROWS


def add(studio, content=ROWS, filename="rows.jsonl", **more):
    with studio.session() as session:
        return datasets.add(
            session, studio.storage, studio.settings, stream=io.BytesIO(content), filename=filename, **more
        )


def test_a_file_is_kept_under_its_id_with_its_hash(both):
    dataset = add(both, name="Meine Daten")
    assert (dataset.status, dataset.format, dataset.bytes) == ("checking", "jsonl", len(ROWS))
    assert dataset.sha256 == hashlib.sha256(ROWS).hexdigest()
    path = both.storage.dataset_file(dataset)
    assert path.read_bytes() == ROWS
    assert path.name == "data.jsonl"
    assert not list(both.storage.incoming.iterdir())
    with both.session() as session:
        assert datasets.get(session, dataset.id).name == "Meine Daten"
        assert [row.id for row in datasets.list_datasets(session)] == [dataset.id]


def test_a_file_of_this_machine_is_copied(both, tmp_path):
    (tmp_path / "x.jsonl").write_bytes(ROWS)
    with both.session() as session:
        dataset = datasets.add(session, both.storage, both.settings, path=tmp_path / "x.jsonl", filename="x.jsonl")
    assert (tmp_path / "x.jsonl").exists()
    assert both.storage.dataset_file(dataset).read_bytes() == ROWS


@pytest.mark.parametrize(
    ("content", "filename"),
    [(b"", "empty.jsonl"), (b" \n\n", "blank.csv"), (b"\x89PNG\x00\x01", "cat.jsonl"), (b"PK\x03\x04zip", "book.xlsx")],
)
def test_what_is_no_dataset_is_refused_and_leaves_nothing(both, content, filename):
    with pytest.raises(Invalid) as caught:
        add(both, content, filename)
    assert caught.value.param == "file"
    assert filename in caught.value.message
    assert not list(both.storage.incoming.iterdir())
    assert not list((both.storage.data_dir / "datasets").iterdir())


def test_a_file_above_the_limit_is_refused_while_it_comes(both):
    small = both.settings.model_copy(update={"max_upload_mib": 1})
    stream = io.BytesIO(b'{"text": "x"}\n' * 100_000)
    with pytest.raises(TooLarge, match="1 MiB"), both.session() as session:
        datasets.add(session, both.storage, small, stream=stream, filename="big.jsonl")
    assert not list(both.storage.incoming.iterdir())


@pytest.mark.parametrize("filename", ["../../evil.jsonl", "C:\\x\\evil.jsonl", "🦙" * 200 + ".jsonl", "a\x00b.jsonl"])
def test_a_file_name_is_only_ever_shown(both, filename):
    dataset = add(both, filename=filename)
    assert "/" not in dataset.filename
    assert "\\" not in dataset.filename
    assert len(dataset.filename) <= 300
    assert both.storage.dataset_file(dataset).is_relative_to(both.storage.data_dir / "datasets")


def test_a_rolled_back_upload_leaves_no_file(both):
    with pytest.raises(RuntimeError), both.session() as session:  # noqa: PT012 - the error comes last
        datasets.add(session, both.storage, both.settings, stream=io.BytesIO(ROWS), filename="rows.jsonl")
        raise RuntimeError
    assert not list((both.storage.data_dir / "datasets").iterdir())


def test_a_name_above_300_characters_is_refused(both):
    with pytest.raises(Invalid, match="301 characters"):
        add(both, name="x" * 301)


def test_D19_a_dataset_that_runs_were_made_from_stays_as_deleted_and_starts_no_more(both, ready):
    spec = ready(both)
    with both.session() as session:
        run = runs.create(session, spec)
    with both.session() as session, pytest.raises(Conflict, match="cancel it first"):
        datasets.delete(session, both.storage, run.dataset_id)
    with both.session() as session:
        runs.cancel(session, run.id)
        datasets.delete(session, both.storage, run.dataset_id)
    with both.session() as session:
        assert session.get_one(Dataset, run.dataset_id).status == "deleted"
        assert datasets.list_datasets(session) == []
        with pytest.raises(NotFound, match="gone"):
            datasets.get(session, run.dataset_id)
        with pytest.raises(Invalid, match="gone"):
            runs.create(session, spec)
    assert not both.storage.dataset_dir(run.dataset_id).exists()


def test_a_dataset_that_nobody_used_goes_wholly(both):
    dataset = add(both)
    with both.session() as session:
        datasets.delete(session, both.storage, dataset.id)
    with both.session() as session:
        assert session.get(Dataset, dataset.id) is None
    assert not both.storage.dataset_dir(dataset.id).exists()


@pytest.mark.parametrize("hub_id", ["../x", "a b", "http://evil/x", "a/b/c", "", "x" * 200])
def test_what_is_no_hub_id_is_refused(both, hub_id):
    with both.session() as session, pytest.raises(Invalid, match="not a dataset id"):
        datasets.add_from_hub(session, hub_id)


def test_a_hub_dataset_waits_to_be_fetched(both):
    with both.session() as session:
        dataset = datasets.add_from_hub(session, "owner/name", "sub", "test")
    assert (dataset.status, dataset.name) == ("fetching", "owner/name sub test")
    assert dataset.origin["split"] == "test"
