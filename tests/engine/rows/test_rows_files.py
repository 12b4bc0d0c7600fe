"""Reading dataset files: formats, encodings, limits, and the reported faults of this kind."""

import csv
import io
import json

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.failure import Failure
from engine.rows import check, read, sniff, usable
from engine.rows import json_files as json_files
from engine.rows.tables import BATCH_BYTES, rows_at_once

ASKED = {"role": "user", "content": "hi"}
SAID = {"role": "assistant", "content": "yo"}
CHAT = {"messages": [ASKED, SAID]}


@pytest.fixture
def write(tmp_path):
    def write(name, data):
        path = tmp_path / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    return write


def report_of(path):
    return check(path, sniff(path, path.name))


def lines(*rows):
    return "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)


def test_D01_mark_at_the_start_of_a_csv_is_dropped(write):
    report = report_of(write("sheet.csv", b"\xef\xbb\xbfprompt,completion\nhi,yo\n"))
    assert report.columns == ["prompt", "completion"]
    assert (report.kind, report.usable) == ("chat", 1)


@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl"])
def test_D02_mark_at_the_start_of_json_is_dropped(write, name):
    text = json.dumps([CHAT]) if name.endswith(".json") else lines(CHAT)
    report = report_of(write(name, b"\xef\xbb\xbf" + text.encode()))
    assert (report.usable, report.problems) == (1, [])


def test_D04_null_first_and_text_later_loads(write):
    rows = [{"system": None, "instruction": "i", "output": "o"}] * 20_000
    rows.append({"system": "x", "instruction": "i", "output": "o"})
    path = write("rows.jsonl", lines(*rows))
    assert report_of(path).usable == 20_001
    *_, last = usable(path, "jsonl")
    assert last.messages[0] == {"role": "system", "content": "x"}


def test_D07_nulls_that_parquet_fills_in_are_dropped(tmp_path):
    call = {"function": {"name": "f", "arguments": {"a": "1"}}}
    other = {"function": {"name": "g", "arguments": {"b": 2}}}
    turns = [ASKED, {"role": "assistant", "content": None, "tool_calls": [call, other]}, SAID]
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([CHAT, {"messages": turns[:2]}]), path)
    first, second = usable(path, sniff(path, path.name))
    assert first.messages == [ASKED, SAID]
    assert [one["function"]["arguments"] for one in second.messages[1]["tool_calls"]] == [{"a": "1"}, {"b": 2}]


def test_D10_no_usable_row_says_so_with_reason_and_first_row(write):
    report = report_of(write("rows.jsonl", lines({"instruction": "i", "output": {"a": 1}}, {"conversations": []})))
    assert report.kind is None
    assert report.summary.startswith("0 of 2 rows usable. First problem, row 1")
    assert "output" in report.summary


def test_D14_quoted_fields_hold_newlines_and_quotes(write):
    text = 'question,answer\n"two\nlines","say ""yes"", please"\nplain,too\n'
    first, second = usable(write("sheet.csv", text), "csv")
    assert [turn["content"] for turn in first.messages] == ["two\nlines", 'say "yes", please']
    assert second.number == 2
    assert second.line == 4


def test_D17_one_empty_row_is_set_aside_and_the_others_kept(write):
    rows = [{"instruction": "i", "output": "o"}] * 99
    report = report_of(write("rows.jsonl", lines(*rows[:40], {"instruction": "i", "output": ""}, *rows[40:])))
    assert (report.rows, report.usable) == (100, 99)
    assert [(one.row, one.code) for one in report.problems] == [(41, "empty_answer")]


def test_D19_a_file_that_is_gone_is_said_to_be_gone(tmp_path):
    for call in (lambda path: sniff(path, path.name), lambda path: list(read(path, "jsonl"))):
        with pytest.raises(Failure, match="gone"):
            call(tmp_path / "data.jsonl")


def test_D20_all_faults_are_listed_with_their_lines_at_once(write):
    rows = [
        lines(CHAT).encode(),
        '{"messages": [{"role": "user", "content": "café"}]}'.encode("cp1252"),
        b'{"messages": [',
        lines({"messages": [ASKED, ASKED, SAID]}).encode(),
        b"",
        lines({"messages": [ASKED, {**SAID, "weight": 2}]}).encode(),
        lines({"messages": [ASKED]}).encode(),
    ]
    report = report_of(write("rows.jsonl", b"\n".join(rows)))
    found = [(one.row, one.line, one.code) for one in report.problems]
    assert found == [
        (2, 2, "not_utf8"),
        (3, 3, "broken_json"),
        (4, 4, "repeated_role"),
        (5, 6, "bad_weight"),
        (6, 7, "no_assistant"),
    ]
    assert (report.rows, report.usable) == (6, 1)
    assert all(one.fix for one in report.problems)


def test_spreadsheet_in_windows_encoding_and_semicolons_is_read(write):
    [row] = usable(write("sheet.csv", "frage;question;answer\n1;café;“ja”\n".encode("cp1252")), "csv")
    assert [turn["content"] for turn in row.messages] == ["café", "“ja”"]


def test_invalid_utf8_in_a_json_array_sets_only_its_row_aside(write):
    data = json.dumps([CHAT, CHAT]).encode().replace(b"yo", b"caf\xe9", 1)
    report = report_of(write("rows.json", data))
    assert [(one.row, one.code) for one in report.problems] == [(1, "not_utf8")]
    assert report.usable == 1
    assert json.loads(report.model_dump_json())["rows"] == 2


@pytest.mark.parametrize(
    ("name", "data", "code"),
    [
        ("a.jsonl", b"", "empty_file"),
        ("a.jsonl", b" \n\n", "empty_file"),
        ("a.jsonl", b"\x00\x01\x02", "binary_file"),
        ("a.csv", b"PK\x03\x04rest", "unknown_format"),
        ("a.csv", "a,b\n1,2".encode("utf-16"), "unknown_format"),
        ("a.csv", b'{"text": "x"}\n{"text": "y"}\n', "wrong_extension"),
        ("a.parquet", b"question,answer\n", "wrong_extension"),
        ("a.txt", b"hello", "unknown_format"),
    ],
)
def test_files_that_cannot_be_a_dataset_are_refused_with_advice(write, name, data, code):
    path = write(name, data)
    with pytest.raises(Failure) as caught:
        sniff(path, name)
    assert caught.value.code == code
    assert caught.value.advice


@pytest.mark.parametrize(
    ("name", "data", "format", "rows"),
    [
        ("a.json", '{"text": "x"}\n{"text": "y"}\n', "jsonl", 2),
        ("a.jsonl", '[{"text": "x"},\n {"text": "y"}]', "json", 2),
        ("a.json", '{"version": 1, "data": [{"text": "x"}], "by": "me"}', "json", 1),
        ("a.json", json.dumps(CHAT), "json", 1),
        ("a.json", json.dumps(CHAT, indent=2), "json", 1),
        ("a.jsonl", lines(CHAT), "jsonl", 1),
        ("a.json", "[]", "json", 0),
    ],
)
def test_json_is_told_apart_by_content(write, name, data, format, rows):
    path = write(name, data)
    assert sniff(path, name) == format
    report = check(path, format)
    assert (report.rows, report.usable, report.problems) == (rows, rows, [])


def test_broken_json_in_an_array_keeps_what_came_before(write):
    report = report_of(write("rows.json", '[{"text": "a"},\n {"text": "b"},\n {"text": "c" "d"}, {"text": "e"}]'))
    assert report.usable == 2
    [problem] = report.problems
    assert (problem.row, problem.line, problem.code) == (3, 3, "broken_json")
    assert "Nothing after it" in problem.message


def test_two_lists_in_one_object_are_a_question_back(write):
    path = write("rows.json", '{"train": [{"text": "a"}], "test": [{"text": "b"}]}')
    with pytest.raises(Failure, match="which one"):
        check(path, "json")


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "sheet.csv"])
def test_rows_above_the_size_limit_are_set_aside_or_end_the_file(write, name, monkeypatch):
    monkeypatch.setattr(json_files, "MAX_ROW_BYTES", 1000)
    monkeypatch.setattr("engine.rows.tables.MAX_ROW_BYTES", 1000)
    monkeypatch.setattr(json_files, "CHUNK", 100)
    big = {"text": "x" * 5000}
    data = {
        "rows.jsonl": lines({"text": "a"}, big, {"text": "b"}),
        "rows.json": json.dumps([{"text": "a"}, big]),
        "sheet.csv": f"text\na\n{big['text']}\nb\n",
    }[name]
    report = report_of(write(name, data))
    [problem] = report.problems
    assert problem.row == 2
    assert report.usable == (1 if name == "rows.json" else 2)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000])
def test_deep_nesting_is_a_problem_and_not_a_crash(write, text):
    report = report_of(write("rows.jsonl", lines({"text": "a"}, text)))
    assert [(one.row, one.code) for one in report.problems] == [(2, "broken_json")]


def test_damaged_parquet_is_a_failure_with_a_sentence(write):
    path = write("rows.parquet", b"PAR1" + b"\x00" * 100 + b"PAR1")
    with pytest.raises(Failure, match="damaged"):
        check(path, sniff(path, path.name))


@pytest.mark.parametrize("text", [",,\n1,2,3\n", "a,a\n1,2\n"])
def test_csv_without_usable_header_is_refused(write, text):
    with pytest.raises(Failure, match=r"first line|more than once"):
        check(write("sheet.csv", text), "csv")


def test_problem_list_is_bounded_and_counts_are_exact(write):
    report = check(write("rows.jsonl", lines(*["{"] * 500, {"text": "a"})), "jsonl", problem_limit=10)
    assert len(report.problems) == 10
    assert report.problem_counts == {"broken_json": 500}


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1).filter(str.strip)
PAIRS = st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=5)


@settings(max_examples=60)
@given(PAIRS, st.sampled_from(["jsonl", "json", "csv", "parquet"]), st.integers(1, 40))
def test_law_every_format_gives_back_what_was_written(tmp_path_factory, pairs, format, chunk):
    path = tmp_path_factory.mktemp("law") / f"rows.{format}"
    rows = [{"question": asked, "answer": answer} for asked, answer in pairs]
    if format == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif format == "csv":
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, ["question", "answer"])
        writer.writeheader()
        writer.writerows(rows)
        path.write_bytes(text.getvalue().encode())
    else:
        text = "\n".join(json.dumps(row) for row in rows) if format == "jsonl" else json.dumps(rows, ensure_ascii=False)
        path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_files, "CHUNK", chunk)
        found = [raw.value for raw in read(path, format)]
    assert found == rows


def test_a_parquet_file_that_unpacks_to_gigabytes_is_read_a_few_rows_at_a_time(tmp_path):
    path = tmp_path / "data.parquet"
    table = pyarrow.table({"text": pyarrow.array(["a" * 1_000_000] * 300)})
    pyarrow.parquet.write_table(table, path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 2_000
    most = rows_at_once(pyarrow.parquet.ParquetFile(path).metadata)
    assert 1 <= most * 1_000_000 <= 2 * BATCH_BYTES
    assert sum(1 for row in read(path, "parquet") if row.problem is None) == 300
    small = tmp_path / "small.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": [f"row {n}" for n in range(200)]}), small)
    assert rows_at_once(pyarrow.parquet.ParquetFile(small).metadata) == 64


def test_a_csv_file_under_a_json_name_is_told_to_be_one(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text('prompt,completion\nhello,"a, b"\nagain,c\n')
    with pytest.raises(Failure, match="looks like CSV, not JSONL") as caught:
        sniff(path, "data.jsonl")
    assert "data.csv" in caught.value.advice[0]
    path.write_text("not json at all\nnor here\n")
    assert sniff(path, "data.jsonl") == "jsonl"
