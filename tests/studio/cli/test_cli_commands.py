"""The command line: what it prints, and that errors are sentences with exit status 1."""

import json
import zipfile

import pytest
import yaml
from typer.testing import CliRunner

from engine.spec import RunSpec
from studio import runs
from studio.cli import COMMANDS, build
from studio.cli.console import run_and_explain
from studio.cli.spec import EXAMPLE
from tests.engine.models import starter_folder

ROW = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'


@pytest.fixture
def atelier(settings, monkeypatch, capsys):
    """Runs a command on the test's data folder: (exit status, stdout, stderr)."""
    monkeypatch.setenv("ATELIER_DATA_DIR", str(settings.data_dir))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        def command():
            build(arguments)(arguments, prog_name="atelier")

        try:
            status = run_and_explain(command)
        except SystemExit as ended:
            status = ended.code or 0
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def run(studio, ready):
    with studio.session() as session:
        return runs.create(session, ready(studio).model_copy(update={"name": "[bold]x[/bold]\x1b[2J"}))


def test_help_names_every_command(atelier):
    status, out, _ = atelier("--help")
    assert status == 0
    assert all(name in out for name in COMMANDS)


@pytest.mark.parametrize("command", ["runs", "models", "data", "spec", "train", "worker", "version"])
def test_each_command_has_help(command):
    answer = CliRunner().invoke(build([command]), [command, "--help"])
    assert answer.exit_code == 0, answer.output


def test_an_empty_installation_says_what_to_do(atelier):
    assert atelier("runs", "list")[1].strip() == "There are no runs yet."
    assert "atelier data add" in atelier("data", "list")[1]
    assert json.loads(atelier("runs", "list", "--json")[1]) == []


def test_runs_are_listed_shown_and_cancelled(atelier, run):
    out = atelier("runs", "list")[1]
    assert run.id in out
    assert "[bold]x[/bold]" in out
    assert "\x1b" not in out
    assert [told["id"] for told in json.loads(atelier("runs", "list", "--json")[1])] == [run.id]
    assert json.loads(atelier("runs", "show", run.id, "--json")[1])["spec"]["model"] == "tiny"
    assert "queued" in atelier("runs", "show", run.id)[1]
    assert atelier("runs", "pause", run.id)[1] == f"{run.id} is paused.\n"
    assert atelier("runs", "resume", run.id)[1] == f"{run.id} is queued.\n"
    assert atelier("runs", "cancel", run.id)[1] == f"{run.id} is cancelled.\n"
    status, out, err = atelier("runs", "resume", run.id)
    assert (status, out) == (1, "")
    assert "cancelled" in err


def test_the_adapter_is_downloaded_whole_and_never_over_a_file(atelier, studio, run, tmp_path):
    assert atelier("runs", "download", run.id)[0] == 1
    with studio.session() as session:
        session.get_one(type(run), run.id).status = "succeeded"
    adapter = studio.storage.run_dir(run.id).adapter
    adapter.mkdir(parents=True)
    (adapter / "adapter_config.json").write_text("{}")
    target = tmp_path / "mine.zip"
    assert atelier("runs", "download", run.id, "--out", str(target))[0] == 0
    assert zipfile.ZipFile(target).namelist() == [f"{run.id}-adapter/adapter_config.json"]
    status, _, err = atelier("runs", "download", run.id, "--out", str(target))
    assert (status, "--force" in err) == (1, True)
    assert atelier("runs", "download", run.id, "--out", str(target), "--force")[0] == 0
    assert atelier("runs", "download", run.id, "--out", str(tmp_path / "no" / "where.zip"))[0] == 1


def test_data_is_checked_without_a_server(atelier, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text(ROW * 3 + "{broken\n")
    status, out, _ = atelier("data", "check", str(file))
    assert (status, "3 of 4 rows usable" in out) == (1, True)  # one in four is more than a run tolerates
    assert json.loads(atelier("data", "check", str(file), "--json")[1])["problems"][0]["row"] == 4
    file.write_text("{broken\n")
    assert atelier("data", "check", str(file))[0] == 1
    file.write_text("")
    status, _, err = atelier("data", "check", str(file))
    assert (status, "empty" in err) == (1, True)


def test_data_is_read_as_declared(atelier, tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("Frage,answer\n2+2?,4\n")
    status, out, _ = atelier("data", "check", str(file), "--map", "prompt=frage", "--set", "data.max_bad_fraction=0")
    assert (status, "prompt, 1 of 1 rows usable" in out) == (0, True)
    status, _, err = atelier("data", "check", str(file), "--map", "promt=frage")
    assert (status, "“prompt”" in err) == (1, True)


def test_data_and_models_are_added(atelier, tmp_path, model_folder):
    file = tmp_path / "rows.jsonl"
    file.write_text(ROW)
    dataset_id = atelier("data", "add", str(file), "--name", "Mine")[1].strip()
    assert json.loads(atelier("data", "list", "--json")[1])[0]["id"] == dataset_id
    assert "Mine" in atelier("data", "list")[1]
    assert atelier("data", "add", str(tmp_path / "none.csv"))[0] == 1
    assert "tiny" in atelier("models", "add", str(model_folder()))[1]
    assert "tiny" in atelier("models", "list")[1]
    status, _, err = atelier("models", "add", str(tmp_path))
    assert (status, "config.json" in err) == (1, True)


def test_the_example_is_a_valid_spec(atelier):
    out = atelier("spec", "example")[1]
    assert RunSpec.model_validate(yaml.safe_load(out)) == EXAMPLE
    assert out.count("#") > 20
    assert json.loads(atelier("spec", "schema")[1])["properties"]["lora"]


def test_an_unusable_data_folder_is_a_sentence(atelier, tmp_path):
    (tmp_path / "file").write_text("")
    status, out, err = atelier("runs", "list", "--data-dir", str(tmp_path / "file"))
    assert (status, out) == (1, "")
    assert "cannot be written" in err


def test_a_row_is_shown_as_the_tokens_that_are_learned(atelier, tmp_path):
    file, model = tmp_path / "rows.jsonl", str(starter_folder())
    file.write_text(ROW)
    status, out, _ = atelier("data", "show", str(file), "--model", model, "--json")
    assert status == 0
    shown = json.loads(out)["samples"][0]["tokens"]
    assert "".join(token["text"] for token in shown if token["trained"]) == "b<|im_end|>"
    assert "2 of" in atelier("data", "show", str(file), "--model", model)[1]


def test_a_file_is_checked_as_a_model_would_learn_it(atelier, tmp_path):
    file, model = tmp_path / "rows.jsonl", str(starter_folder())
    file.write_text(ROW * 3)
    status, out, _ = atelier("data", "check", str(file), "--model", model)
    assert status == 0
    assert "3 of 3 rows usable" in out
    assert "tokens are trained" in out


def test_a_level_that_a_model_does_not_have_is_refused_with_those_it_has(atelier, tmp_path):
    file, model = tmp_path / "rows.jsonl", str(starter_folder())
    file.write_text(ROW)
    status, _, err = atelier("data", "show", str(file), "--model", model, "--level", "extreme")
    assert status == 1
    assert "no level" in err
