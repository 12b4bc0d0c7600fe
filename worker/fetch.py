"""Downloads from the Hub: only the files that are needed, with a share of progress, and clear words when offline."""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import huggingface_hub
import pyarrow.parquet as pq
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # the client whose errors the library raises
from tqdm import tqdm  # type: ignore[import-untyped]

from studio import datasets
from studio.context import Studio
from studio.db.tables import Dataset
from studio.errors import Invalid, NotFound, StudioError, Unavailable

log = logging.getLogger(__name__)

NEEDED = re.compile(
    r"(.*\.safetensors|.*\.safetensors\.index\.json|config\.json|generation_config\.json|.*tokenizer.*|.*\.tiktoken"
    r"|vocab\.(json|txt)|merges\.txt|special_tokens_map\.json|added_tokens\.json|chat_template\.\w+|README\.md"
    r"|LICENSE.*)"
)
CONVERTED = "refs/convert/parquet"  # the Hub's own Parquet copy of every public dataset: <subset>/<split>/<n>.parquet
DATA_ENDINGS = (".jsonl", ".json", ".csv", ".parquet")


def model(hub_id: str, revision: str, progress: Callable[[float], None]) -> tuple[Path, str]:
    """(folder in the Hub's cache, commit). `progress` hears the share of needed bytes that are here: 1.0 when all are.

    Files that training does not need are neither fetched nor counted. Raises StudioError with what to do.
    """
    with _in_words(f"the model {hub_id}"):
        info = huggingface_hub.HfApi().model_info(hub_id, revision=revision or None, files_metadata=True, timeout=10)
        wanted = needed_files([(file.rfilename, file.size or 0) for file in info.siblings or ()])
        if not any(name.endswith(".safetensors") for name, _size in wanted):
            raise Invalid(
                f"{hub_id} has no weights in safetensors format; no others are read: pickle files can run code.",
                code="model_has_no_weights",
                advice="Choose another repository of the same model that has safetensors.",
            )
        folder, total, here = Path(), max(1, sum(size for _name, size in wanted)), 0
        for name, size in wanted:
            bar = _bar(progress, here, total)
            path = huggingface_hub.hf_hub_download(hub_id, name, revision=info.sha, tqdm_class=bar)
            folder = Path(path).parent
            here += size
            progress(min(1.0, here / total))
        return folder, info.sha or ""


def needed_files(files: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """The (name, bytes) that training needs, small ones first: those at the top of the repository, weights once."""
    top = [(name, size) for name, size in files if "/" not in name and NEEDED.fullmatch(name)]
    sharded = any(name == "model.safetensors.index.json" for name, _size in top)
    shard = re.compile(r"model-\d+-of-\d+\.safetensors")

    def wanted(name: str) -> bool:
        if name.startswith(("adapter_", "consolidated")):
            return False
        return not name.endswith(".safetensors") or (
            bool(shard.fullmatch(name)) if sharded else name == "model.safetensors"
        )

    kept = [(name, size) for name, size in top if wanted(name)]
    if not any(name.endswith(".safetensors") for name, _size in kept):  # weights under an unusual name
        kept += [
            (name, size) for name, size in top if name.endswith(".safetensors") and not name.startswith("adapter_")
        ]
    return sorted(kept, key=lambda file: file[1])


def _bar(tell: Callable[[float], None], before: int, total: int) -> type[Any]:
    """A progress bar class that draws nothing and tells the share of `total` bytes that are here."""

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            super().__init__(*args, **{**kwargs, "disable": True})
            self.here = int(kwargs.get("initial") or 0)

        def update(self, n: float | None = 1) -> bool | None:
            self.here += int(n or 0)
            tell(min(1.0, (before + self.here) / total))
            return None

    return Bar


def dataset(studio: Studio, dataset_id: str, origin: dict[str, Any]) -> None:
    """Download a dataset's split as one file and give it to the dataset. Raises StudioError with what to do."""
    hub_id, subset, split = origin["hub_id"], origin.get("subset") or "", origin.get("split") or "train"
    with TemporaryDirectory(dir=studio.storage.incoming) as folder, _in_words(f"the dataset {hub_id}"):
        revision, names = _choose(hub_id, subset, split)
        paths = [
            Path(
                huggingface_hub.hf_hub_download(hub_id, name, repo_type="dataset", revision=revision, local_dir=folder)
            )
            for name in names
        ]
        path = paths[0] if len(paths) == 1 else _joined(paths, Path(folder) / "joined.parquet")
        with studio.session() as session:
            row = session.get_one(Dataset, dataset_id)
            row.origin = {**origin, "revision": revision}
            shown = f"{hub_id.rpartition('/')[2]}-{split}{path.suffix}"
            datasets.adopt(session, studio.storage, row, path, shown, limit_mib=studio.settings.max_upload_mib)


def _choose(hub_id: str, subset: str, split: str) -> tuple[str, list[str]]:
    """(revision, files) of the split: the Hub's Parquet copy where there is one, else the repository's own file."""
    api = huggingface_hub.HfApi()
    try:
        converted = api.list_repo_files(hub_id, repo_type="dataset", revision=CONVERTED)
        return CONVERTED, choose_converted(converted, subset, split)
    except RevisionNotFoundError:
        info = api.dataset_info(hub_id, timeout=10)
        names = [file.rfilename for file in info.siblings or ()]
        return info.sha or "main", choose_own(names, split)


def choose_converted(names: Sequence[str], subset: str, split: str) -> list[str]:
    """Parquet files `<subset>/<split>/...`; Invalid, naming what there is, when the choice does not fit."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in names:
        parts = name.split("/")
        if len(parts) == 3 and name.endswith(".parquet"):
            found.setdefault((parts[0], parts[1].removeprefix("partial-")), []).append(name)
    subsets = sorted({key[0] for key in found})
    if not subset:
        subset = "default" if "default" in subsets else subsets[0] if len(subsets) == 1 else ""
    if not subset:
        raise Invalid(f"The dataset has several subsets; choose one of: {', '.join(subsets[:20])}.", param="subset")
    if (subset, split) not in found:
        there = ", ".join(f"{a}/{b}" for a, b in sorted(found)[:20])
        raise Invalid(
            f"The dataset has no split {split!r} in the subset {subset!r}; there are: {there}.", param="split"
        )
    return sorted(found[subset, split])


def choose_own(names: Sequence[str], split: str) -> list[str]:
    """The one data file of the repository that fits the split; Invalid when that is not clear."""
    data = [
        name for name in names if name.endswith(DATA_ENDINGS) and not Path(name).name.startswith(("dataset_info", "."))
    ]
    named = [name for name in data if split in Path(name).stem.lower() or split in name.lower().split("/")]
    chosen = named or data
    parquet = [name for name in chosen if name.endswith(".parquet")]
    if len(chosen) == 1 or (parquet and len(parquet) == len(chosen)):
        return sorted(chosen)
    raise Invalid(
        f"No single file of the dataset is the split {split!r}; it has: {', '.join(data[:20]) or 'no data files'}.",
        param="split",
        advice="Download the file you want and upload it here.",
    )


def _joined(paths: Sequence[Path], target: Path) -> Path:
    """Several Parquet files as one, row group by row group."""
    schema = pq.read_schema(paths[0])
    with pq.ParquetWriter(target, schema) as writer:
        for path in paths:
            for batch in pq.ParquetFile(path).iter_batches():
                writer.write_batch(batch.cast(schema))
    return target


@contextmanager
def _in_words(what: str) -> Iterator[None]:
    """Errors of the Hub as sentences."""
    try:
        yield
    except StudioError:
        raise
    except GatedRepoError as error:
        raise Invalid(
            f"Access to {what} has to be granted on its page of the Hub first.",
            code="gated",
            advice="Accept its terms there, then start Atelier with HF_TOKEN set to a token of that account.",
        ) from error
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise NotFound(f"The Hub does not have {what}, or it is private.", code="not_on_hub") from error
    except (OfflineModeIsEnabled, LocalEntryNotFoundError, httpx.RequestError) as error:
        raise Unavailable(
            f"The Hub cannot be reached from here, so {what} was not downloaded.",
            code="offline",
            advice="Connect this machine to the internet (and unset HF_HUB_OFFLINE), or add a folder or file instead.",
        ) from error
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise Unavailable(
            f"Downloading {what} failed: {str(error).splitlines()[0][:300]}", code="download_failed"
        ) from error
