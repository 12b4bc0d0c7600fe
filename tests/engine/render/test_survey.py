"""The survey of chat templates, and the page that is made from it."""

from pathlib import Path

from engine.render.survey import main, survey
from tests.engine.render.nasty import NASTY

PAGE = Path(__file__).parents[3] / "docs" / "templates.md"


def test_the_page_of_templates_is_fresh():
    assert main(["--check", str(PAGE)]) == 0


def test_templates_of_ones_own_can_be_surveyed(tmp_path, capsys):
    (tmp_path / "mine.jinja").write_text(NASTY["drops tools"])
    assert main([str(tmp_path)]) == 0
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.startswith("| `mine` | yes | yes | yes | tool call not rendered |")
    (tmp_path / "page.md").write_text("old")
    assert main([str(tmp_path), "--check", str(tmp_path / "page.md")]) == 1
    assert "out of date" in capsys.readouterr().err


def test_a_template_that_never_ends_is_said(tmp_path, capsys):
    (tmp_path / "bad.jinja").write_text("{{ 9 ** 9 ** 9 }}")
    assert main([str(tmp_path / "bad.jinja")]) == 1
    assert "power" in capsys.readouterr().err


def test_the_end_of_a_turn_is_read_from_the_text():
    ends = {name: survey(name, NASTY[name]).stop for name in ("drops tools", "the stop belongs to the next turn")}
    assert ends == {"drops tools": "<|end|>", "the stop belongs to the next turn": "<|user|>"}
