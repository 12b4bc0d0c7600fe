"""Devices by name, as people and drivers call them."""

import pytest

from engine.failure import Failure
from engine.plan.catalogue import GIB, Device, named, parse


@pytest.mark.parametrize(
    ("asked", "number", "name", "gib"),
    [
        ("8xB300", 8, "B300", 268),
        ("8 x b300", 8, "B300", 268),
        ("H100", 1, "H100", 79.2),
        ("2xA100-40GB", 2, "A100-40GB", 39.4),
        ("4xRTX 4090", 4, "RTX 4090", 23.5),
        ("4090", 1, "RTX 4090", 23.5),
        ("mi300x", 1, "MI300X", 191.7),
    ],
)
def test_a_device_is_known_by_its_name(asked: str, number: int, name: str, gib: float) -> None:
    count, device = parse(asked)
    assert (count, device.name, device.kind) == (number, name, "cuda")
    assert device.memory == int(gib * GIB)
    assert device.flops > 0


@pytest.mark.parametrize(
    ("asked", "kind", "memory"),
    [
        ("2x24GB", "cuda", 24 * 10**9),
        ("24GiB", "cuda", 24 * GIB),
        ("gpu:80GB", "cuda", 80 * 10**9),
        ("cpu:16GB", "cpu", 16 * 10**9),
    ],
)
def test_a_device_may_be_only_its_memory(asked: str, kind: str, memory: int) -> None:
    device = parse(asked)[1]
    assert (device.kind, device.memory, device.flops) == (kind, memory, 0.0)


@pytest.mark.parametrize("asked", ["", "8x", "x", "0xB300", "abacus", "2x-3GB"])
def test_a_device_that_is_unknown_is_refused_with_those_that_are_known(asked: str) -> None:
    with pytest.raises(Failure, match="No devices are called") as refused:
        parse(asked)
    assert "B300" in refused.value.advice[0]


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA L40S", "L40S"),
    ],
)
def test_a_driver_s_name_finds_the_device(driver: str, name: str) -> None:
    found = named(driver)
    assert found is not None
    assert found.name == name


def test_not_all_memory_is_a_run_s() -> None:
    device = Device("x", "cuda", 24 * GIB)
    assert 20 * GIB < device.room < 24 * GIB
    assert Device("x", "cpu", 16 * GIB).room < 16 * GIB
