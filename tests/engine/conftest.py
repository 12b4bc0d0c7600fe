"""Fixtures of the engine's tests: tiny random models of any family, the converted starter model, and runs of them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.rundir import RunDir
from engine.spec import RunSpec
from tests.engine.models import make_tiny, starter_folder

TinyModel = Callable[[str], Path]


@pytest.fixture(scope="session")
def starter() -> Path:
    """Folder of the starter model."""
    return starter_folder()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """Folder of a tiny random model of a family, made once per session."""
    made: dict[str, Path] = {}

    def tiny(family: str = "llama") -> Path:
        if family not in made:
            made[family] = make_tiny(family, tmp_path_factory.mktemp("models") / f"tiny-{family}")
        return made[family]

    return tiny


@pytest.fixture(autouse=True)
def fixed_random_state() -> None:
    torch.manual_seed(7)


@pytest.fixture(scope="session")
def chat_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 short chats whose answers follow a pattern that can be learned."""
    path = tmp_path_factory.mktemp("data") / "chat.jsonl"
    words = ["sun", "rain", "owl", "tea", "salt", "bread"]
    rows = [
        [
            {"role": "user", "content": f"{word}{'?' * count}"},
            {"role": "assistant", "content": f"{word} " * count + "ok"},
        ]
        for word in words
        for count in range(1, 5)
    ]
    path.write_text("\n".join(json.dumps({"messages": row}) for row in rows))
    return path


@pytest.fixture
def make_run(tmp_path: Path, tiny_model: TinyModel, chat_file: Path) -> Callable[..., RunDir]:
    """A run folder of a tiny model, in float32 on the CPU; sections of the spec as keyword arguments."""

    def make(name: str = "run", *, family: str = "llama", **sections: dict[str, object]) -> RunDir:
        values = {
            "data": {"dataset": str(chat_file), "max_length": 64},
            "training": {"max_steps": 10, "dtype": "float32", "device": "cpu"},
            "optimizer": {"learning_rate": 1e-2},
            "saving": {"sample_prompts": 1, "save_steps": 5, "eval_steps": 5},
        }
        merged = {key: {**value, **sections.pop(key, {})} for key, value in values.items()}
        folder = RunDir(tmp_path / name)
        folder.write_spec(RunSpec.model_validate({"model": str(tiny_model(family)), **merged, **sections}))
        return folder

    return make


@pytest.fixture
def unproven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the clean process, which other tests run: it takes seconds."""
    monkeypatch.setattr("engine.train.verify_result", lambda *_: {"divergence": 0.0, "effect": 1.0})
