"""The documents say what main does: names, paths and commands in them exist, and nothing is missing."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from engine.spec import RunSpec, settings
from studio.settings import Settings

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")] if path.is_file()
)
ADRS = sorted((ROOT / "docs" / "adr").glob("*.md"))
SPEC = RunSpec.model_validate({"model": "m", "data": {"dataset": "d"}})
OVERSOLD = r"blazing(ly)?|seamless(ly)?|supercharged?|game.chang\w+|simply|obviously|cutting.edge"
POSTPONED = r"TODO|FIXME|XXX|lorem ipsum|coming soon"
FORBIDDEN = rf"\b({OVERSOLD}|{POSTPONED})\b"


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_reference_page_is_fresh() -> None:
    answer = subprocess.run([sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("name", sorted(settings(SPEC)))
def test_every_spec_field_is_in_the_reference(name: str) -> None:
    assert f"| `{name}` |" in text("docs/reference.md")


@pytest.mark.parametrize("name", sorted(Settings.model_fields))
def test_every_setting_is_in_the_reference(name: str) -> None:
    assert f"| `ATELIER_{name.upper()}` |" in text("docs/reference.md")


@pytest.mark.parametrize("name", PAGES)
def test_every_path_named_in_a_document_exists(name: str) -> None:
    """A path is a word in backticks that starts with one of our folders."""
    folders = "engine|studio|worker|migrations|tests|docs"
    for path in re.findall(rf"`((?:{folders})/[\w./-]*)`", text(name)):
        assert (ROOT / path).exists(), f"{name} names {path}"


@pytest.mark.parametrize("name", PAGES)
def test_every_link_between_documents_leads_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text(name)):
        assert ((ROOT / name).parent / target).exists(), f"{name} links to {target}"


@pytest.mark.parametrize("name", PAGES)
def test_no_document_oversells_or_postpones(name: str) -> None:
    assert not re.findall(FORBIDDEN, text(name), re.IGNORECASE)


def commands() -> list[str]:
    """The first two plain words after ./atelier in the README's examples: `runs list`."""
    found = re.findall(r"\./atelier ([a-z]+(?: [a-z]+\b(?!\.))?)", text("README.md"))
    return sorted(set(found) - {"up", "test", "check"})


@pytest.mark.parametrize("command", commands())
def test_every_command_of_the_readme_exists(command: str) -> None:
    asked = [sys.executable, "-m", "studio", *command.split(), "--help"]
    answer = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("path", ADRS, ids=lambda path: path.name)
def test_a_decision_is_short_and_complete(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 40
    assert re.match(r"# \d{4} \w", lines[0])
    assert lines[0].split()[1] == path.name[:4]
    assert [line for line in lines if line.startswith("## ")] == [
        "## Status",
        "## Context",
        "## Decision",
        "## Consequences",
    ]


def test_decisions_are_numbered_without_gaps() -> None:
    assert [int(path.name[:4]) for path in ADRS] == list(range(1, len(ADRS) + 1))


def test_the_changelog_has_a_place_for_what_comes_next() -> None:
    assert "\n## [Unreleased]\n" in text("CHANGELOG.md")


def test_compose_keeps_secrets_out_and_binds_to_loopback() -> None:
    compose = yaml.safe_load(text("compose.yaml"))
    services = compose["services"]
    assert set(services) == {"web", "worker-runs", "worker-prepare", "redis", "postgres"}
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)
    secrets = [
        value
        for service in services.values()
        for name, value in service.get("environment", {}).items()
        if "PASSWORD" in name or "URL" in name
    ]
    assert secrets
    assert all("${" in value or "@" not in value for value in secrets)


def test_the_image_runs_as_a_person_without_rights() -> None:
    lines = text("Dockerfile").splitlines()
    user = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert user
    assert user[-1] != "root"
    assert any(line.startswith("HEALTHCHECK ") for line in lines)
