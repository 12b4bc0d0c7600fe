"""Dataset files: which format one is, by content, and its rows one by one in bounded memory."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath

from engine.failure import Failure
from engine.rows.json_files import read_json, read_jsonl
from engine.rows.model import FORMATS, Format, RawRow
from engine.rows.shapes import HOLDS
from engine.rows.tables import DELIMITERS, read_csv, read_parquet

__all__ = ["FORMATS", "Format", "RawRow", "read", "sniff"]

HEAD = 1 << 20
EXTENSIONS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
}
FOREIGN = {
    b"PK\x03\x04": "a zip or Excel file",
    b"\x1f\x8b": "a gzip file",
    b"%PDF": "a PDF",
    b"\x28\xb5\x2f\xfd": "a zstd file",
    b"ARROW1": "an Arrow file",
    b"GGUF": "a GGUF model",
    b"\xff\xfe": "text in UTF-16",
    b"\xfe\xff": "text in UTF-16",
}
READERS: dict[Format, Callable[[Path], Iterator[RawRow]]] = {
    "jsonl": read_jsonl,
    "json": read_json,
    "csv": read_csv,
    "parquet": read_parquet,
}


def read(path: Path, format: Format) -> Iterator[RawRow]:
    """Rows in file order, bad ones included; raises Failure when the file as a whole cannot be read."""
    if not path.is_file():
        raise Failure("file_gone", f"The file {path.name} is gone.", ["Upload the dataset again."])
    return READERS[format](path)


def sniff(path: Path, filename: str) -> Format:
    """The format of a file from its content; `filename` only decides where the content leaves a choice.

    Raises Failure for a file that is empty, binary, of an unknown type, or named as something that it is not.
    """
    if not path.is_file():
        raise Failure("file_gone", f"The file {filename} is gone.", ["Upload the dataset again."])
    with path.open("rb") as file:
        head = file.read(HEAD)
    named = EXTENSIONS.get(PurePath(filename).suffix.lower())
    if not head.strip():
        raise Failure("empty_file", f"{filename} is empty.", ["Upload a file with at least one row."])
    if head.startswith(b"PAR1"):
        return _as_named("parquet", named, filename)
    _refuse_foreign(head, filename)
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] in (b"{", b"["):
        return _as_named(_json_kind(text, named), named, filename)
    if named in ("jsonl", "json") and _has_header(text):
        message = f"{filename} looks like CSV, not {named.upper()}: its first line names columns."
        raise Failure("wrong_extension", message, [f"Rename it to {PurePath(filename).stem}.csv."])
    if named in ("csv", "jsonl", "json"):
        return named  # a JSON file whose first row is broken is reported row by row
    if named == "parquet":
        raise Failure("wrong_extension", f"{filename} is not a Parquet file.", ["Give the file its real extension."])
    raise Failure("unknown_format", f"{filename} is not a known kind of dataset.", [_ACCEPTED])


_ACCEPTED = "Use JSONL, JSON, CSV or Parquet, with the matching extension (.jsonl, .json, .csv, .parquet)."


def _refuse_foreign(head: bytes, filename: str) -> None:
    """Raise Failure for anything that is not text."""
    for magic, what in FOREIGN.items():
        if head.startswith(magic):
            advice = "Save it as UTF-8." if "UTF-16" in what else _ACCEPTED
            raise Failure("unknown_format", f"{filename} is {what}, which cannot be read as a dataset.", [advice])
    if b"\x00" in head:
        raise Failure("binary_file", f"{filename} is binary, not text.", [_ACCEPTED])


def _as_named(found: Format, named: Format | None, filename: str) -> Format:
    """`found`, unless the file name claims something of another family."""
    json_like = ("json", "jsonl")
    if named is None or named == found or (named in json_like and found in json_like):
        return found
    message = f"{filename} holds {found.upper()}, not {named.upper()}."
    raise Failure("wrong_extension", message, [f"Rename it to {PurePath(filename).stem}.{found}."])


def _has_header(text: bytes) -> bool:
    """Whether the first line is that of a table: several names, one of them of a column that rows are made of."""
    line = text.partition(b"\n")[0].decode("utf-8", errors="replace")
    names = {name.strip().strip('"').lower() for name in re.split(f"[{re.escape(DELIMITERS)}]", line)}
    return len(names) > 1 and bool(names & HOLDS)


def _json_kind(text: bytes, named: Format | None) -> Format:
    """JSON or JSON Lines: one value over several lines, or a value per line."""
    if text.startswith(b"["):
        return "json"
    lines = text.split(b"\n", 2)
    first, rest = lines[0].strip(), b"\n".join(lines[1:]).lstrip()
    try:
        whole = isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        whole = False
    if whole:
        return "jsonl" if rest or named == "jsonl" else "json"
    return "jsonl" if named == "jsonl" and first not in (b"{", b"[") else "json"
