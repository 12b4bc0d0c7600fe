"""The plan of a run: JSON as promised, fits or not, what would help, and what suits the devices best."""

from functools import cache

import pytest
from transformers import GptOssConfig, LlamaConfig

from engine.failure import Failure
from engine.plan import Machine, Plan, Planner, Rows, changes, parse, plan, smallest_changes, suited
from engine.plan.choice import on_fewest
from engine.spec import RunSpec

KEYS = ["fits", "layout", "per_device", "parameters", "tokens_per_step", "steps", "seconds", "disk_gib", "why"]
PARTS = {"total_gib", "weights_gib", "gradients_gib", "optimizer_gib", "activations_gib", "buffers_gib"}


@cache
def planner(name: str) -> Planner:
    if name == "gpt-oss":
        return Planner(GptOssConfig(num_hidden_layers=24, num_local_experts=32))
    sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "vocab_size": 32_000}
    return Planner(LlamaConfig(**sizes, max_position_embeddings=32_768))


def spec(length: int = 4096, layout: dict[str, int] | None = None, **training: object) -> RunSpec:
    told = {"model": "m", "data": {"dataset": "d", "max_length": length}, "training": training}
    return RunSpec.model_validate({**told, "layout": layout or {}})


def machine(asked: str) -> Machine:
    return Machine(*parse(asked))


def planned(asked: str, name: str = "llama", rows: Rows | None = None, **settings: object) -> Plan:
    return plan(spec(**settings), machine(asked), rows, planner=planner(name))  # type: ignore[arg-type]


def test_the_json_is_as_promised() -> None:
    told = planned("1xH100", max_steps=10).json()
    assert list(told) == KEYS
    assert set(told["per_device"]) == PARTS
    parts = sum(size for name, size in told["per_device"].items() if name != "total_gib")
    assert told["per_device"]["total_gib"] == pytest.approx(parts, abs=0.005)
    assert told["layout"] == {"data": 1, "shard": 1, "tensor": 1, "expert": 1, "context": 1}
    assert set(told["parameters"]) == {"total", "active", "trainable", "local"}
    assert (told["fits"], told["tokens_per_step"], told["steps"]) == (True, 4096, 10)
    assert told["seconds"] > 0
    assert told["disk_gib"] > 0


def test_what_does_not_fit_says_the_smallest_change_that_would() -> None:
    tight = planned("1x24GB", length=8192, per_device_train_batch_size=2)
    assert not tight.fits
    assert tight.changes
    better = changes.applied(tight.spec, tight.changes)
    assert plan(better, machine("1x24GB"), planner=planner("llama")).fits
    assert "The smallest change that would" in tight.why()[-1]
    assert tight.told()["changes"][0]["settings"] == dict(tight.changes[0].settings)


def test_what_can_never_fit_says_so() -> None:
    hopeless = planned("cpu:1GB", length=256)
    assert hopeless.changes is None
    assert "choose a smaller model" in hopeless.why()[-1]


def test_a_change_that_the_layout_does_not_allow_is_not_proposed() -> None:
    tight = planned("2x24GB", "gpt-oss", length=512, gradient_checkpointing=True, layout={"shard": 2})
    assert not tight.fits
    assert not any("training.quantization" in change.settings for change in tight.changes or ())


def test_what_fits_needs_nothing() -> None:
    assert smallest_changes(spec(), machine("8xB300"), planner=planner("llama")) == []


def test_auto_spreads_a_model_that_is_too_large_for_one_device() -> None:
    assert not planned("1x24GB", "gpt-oss", length=1024, gradient_checkpointing=True).fits
    spread = planned("8x24GB", "gpt-oss", length=1024, gradient_checkpointing=True, gradient_accumulation_steps=8)
    assert spread.fits
    assert spread.chosen.degrees.copy > 1


def test_a_run_takes_all_devices_only_where_one_is_not_enough() -> None:
    def fewest(asked: str, name: str, layout: dict[str, int] | None = None) -> Plan:
        told = spec(1024, layout, gradient_checkpointing=True, gradient_accumulation_steps=8)
        return on_fewest(told, machine(asked), planner=planner(name))

    assert fewest("8x24GB", "llama").machine.number == 1
    assert fewest("8x24GB", "llama", {"data": 8}).machine.number == 8
    spread = fewest("8x24GB", "gpt-oss")
    assert (spread.machine.number, spread.fits) == (8, True)
    assert fewest("2x4GB", "gpt-oss").machine.number == 1  # where all of them do not help either


def test_auto_copies_a_model_that_fits() -> None:
    chosen = planned("8xB300", gradient_accumulation_steps=8).chosen.degrees
    assert (chosen.data, chosen.copy) == (8, 1)


def test_degrees_that_are_set_stay() -> None:
    chosen = planned("8xB300", "gpt-oss", length=512, layout={"expert": 8, "shard": 8}).chosen.degrees
    assert (chosen.data, chosen.shard, chosen.expert) == (1, 8, 8)


def test_a_layout_that_cannot_be_is_refused() -> None:
    with pytest.raises(Failure, match="not possible on 8 devices"):
        planned("8xB300", layout={"data": 3})
    with pytest.raises(Failure, match="not possible"):
        planned("8xB300", layout={"expert": 8, "shard": 8})  # it has no experts


def test_suited_takes_the_fastest_that_fits() -> None:
    roomy, why = suited(spec(gradient_accumulation_steps=8), machine("1xH100"), planner=planner("llama"))
    assert not roomy.training.gradient_checkpointing
    assert "The fastest of" in why
    per_step = roomy.training.per_device_train_batch_size * roomy.training.gradient_accumulation_steps
    assert per_step == 8
    tight, _ = suited(spec(gradient_accumulation_steps=8), machine("1x16GB"), planner=planner("llama"))
    assert plan(tight, machine("1x16GB"), planner=planner("llama")).fits


def test_earlier_runs_tell_the_time_better() -> None:
    rows = Rows(100, [(4096, 100)], 409_600, 4096)
    told = plan(spec(num_train_epochs=1), machine("1xH100"), rows, planner=planner("llama"), tokens_per_second=4096.0)
    assert told.steps == 90
    assert told.seconds == pytest.approx(90.0)
    assert "measured in earlier runs" in told.chosen.pace.source


def test_rows_shorter_than_the_maximum_need_less() -> None:
    short = Rows(10, [(50, 10)], 500, 64)
    assert planned("1xH100", rows=short).tokens_per_step == 500
    assert planned("1xH100", rows=short).chosen.needs.total < planned("1xH100").chosen.needs.total


def test_a_quantised_base_is_lighter() -> None:
    plain, small = (planned("1xH100", quantization=how).chosen.needs.weights for how in ("none", "nf4"))
    assert 0.25 < small / plain < 0.4


def test_all_weights_in_training_cost_gradients_and_moments() -> None:
    whole = planned("1xB300", full_finetuning=True, gradient_accumulation_steps=2).chosen.needs
    counted = planner("llama").model(spec(), machine("1xB300").device).parameters.total
    assert whole.weights == 4 * counted
    assert (whole.gradients, whole.optimizer) == (4 * counted, 8 * counted)
