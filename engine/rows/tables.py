"""CSV and Parquet, row by row in bounded memory."""

import codecs
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from engine.failure import Failure
from engine.rows.json_files import MAX_ROW_BYTES, too_large
from engine.rows.model import Problem, RawRow, cut

CHUNK = 1 << 20
PARQUET_BATCH = 64  # rows, at most
BATCH_BYTES = 16 << 20
DELIMITERS = ",;\t|"


def encoding_of(path: Path) -> str:
    """`utf-8-sig` when the whole file is UTF-8 (with or without a mark), else `cp1252`, what spreadsheets write."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with path.open("rb") as file:
        try:
            while chunk := file.read(CHUNK):
                decoder.decode(chunk)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return "cp1252"
    return "utf-8-sig"


def read_csv(path: Path) -> Iterator[RawRow]:
    """Rows under a header line. Quoted fields may hold delimiters, quotes and newlines; every value is text.

    The delimiter (comma, semicolon, tab or bar) is the one that the header line has most of. Raises Failure when there
    is no usable header.
    """
    csv.field_size_limit(MAX_ROW_BYTES)
    with path.open(encoding=encoding_of(path), errors="replace", newline="") as file:
        header_line = file.readline(MAX_ROW_BYTES)
        delimiter = max(DELIMITERS, key=header_line.count)
        file.seek(0)
        reader = csv.reader(file, delimiter=delimiter)
        columns = _header(reader, path.name)
        number = 0
        while True:
            line = reader.line_num + 1
            try:
                values = next(reader)
            except StopIteration:
                return
            except csv.Error:
                number += 1
                yield RawRow(number, line, None, too_large(number, line))
                continue
            if not values:
                continue  # a blank line
            number += 1
            yield _csv_row(number, line, columns, values)


def _header(reader: Any, name: str) -> list[str]:
    """Column names of the first line."""
    try:
        columns = [column.strip() for column in next(reader, [])]
    except csv.Error as error:
        raise Failure("bad_header", f"The first line of {name} cannot be read: {error}.") from error
    if not any(columns):
        raise Failure("bad_header", f"The first line of {name} has no column names.", ["Name the columns there."])
    twice = sorted({column for column in columns if column and columns.count(column) > 1})
    if twice:
        message = f"{name} has the column “{cut(twice[0])}” more than once."
        raise Failure("bad_header", message, ["Give each column its own name."])
    return columns


def _csv_row(number: int, line: int, columns: list[str], values: list[str]) -> RawRow:
    """Values under their column names; columns without a name (a spreadsheet's row index) are left out."""
    if len(values) != len(columns):
        message = f"The row has {len(values)} fields, the header has {len(columns)}."
        fix = "Put quotes around fields that hold the delimiter or newlines."
        problem = Problem(row=number, line=line, code="wrong_columns", message=message, fix=fix)
        return RawRow(number, line, None, problem)
    return RawRow(number, line, {key: value for key, value in zip(columns, values, strict=True) if key})


def _batches(file: pyarrow.parquet.ParquetFile) -> Iterator[pyarrow.RecordBatch]:
    """Batches of some rows. One group after the other without threads: else memory grows with the file."""
    size = rows_at_once(file.metadata)
    for group in range(file.num_row_groups):
        yield from file.iter_batches(batch_size=size, row_groups=[group], use_threads=False)


def read_parquet(path: Path) -> Iterator[RawRow]:
    """Rows of a Parquet file, some at a time. Raises Failure when the file is damaged."""
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in _batches(file):
                for at in range(len(batch)):
                    value = batch.slice(at, 1).to_pylist()[0]
                    number += 1
                    if _characters(value) > MAX_ROW_BYTES:
                        yield RawRow(number, None, None, too_large(number, None))
                    else:
                        yield RawRow(number, None, {key: without_fill(item) for key, item in value.items()})
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        message = f"The file is damaged and cannot be read after row {number}: {cut(error, 200)}"
        raise Failure("damaged_file", message, ["Write the Parquet file again."]) from error


def rows_at_once(metadata: Any) -> int:
    """How many rows of a Parquet file may be unpacked together.

    A value that a row group holds once may stand in all of its rows (a few hundred bytes can unpack to gigabytes), so
    this many rows of the largest dictionaries have to be a bearable amount.
    """
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    largest = max(
        (sum(_dictionary_bytes(group.column(at)) for at in range(group.num_columns)) for group in groups), default=0
    )
    return int(min(max(BATCH_BYTES // max(largest, 1), 1), PARQUET_BATCH))


def _dictionary_bytes(column: Any) -> int:
    """About how large the unpacked dictionary of a column is: its share of the column's bytes."""
    if not column.has_dictionary_page or column.dictionary_page_offset is None:
        return 0
    packed = column.data_page_offset - column.dictionary_page_offset
    return int(packed * column.total_uncompressed_size / max(column.total_compressed_size, 1))


def _characters(value: Any) -> int:
    """About how much text a value holds."""
    if isinstance(value, dict):
        return sum(_characters(item) for item in value.values())
    if isinstance(value, list):
        return sum(_characters(item) for item in value)
    return len(value) if isinstance(value, str | bytes) else 8


def without_fill(value: Any) -> Any:
    """A nested value without the nulls that Arrow puts where one row lacks another row's keys."""
    if isinstance(value, dict):
        return {key: without_fill(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_fill(item) for item in value]
    return value
