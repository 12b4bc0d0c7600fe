"""Devices by name: memory, and what they compute in bfloat16. The one table to extend for a new accelerator."""

import re
from dataclasses import dataclass

from engine.failure import Failure

GIB = 2**30


@dataclass(frozen=True)
class Device:
    """One device: its memory in bytes, and dense bfloat16 operations a second (0: measured here, or unknown)."""

    name: str
    kind: str
    memory: int
    flops: float = 0.0

    @property
    def room(self) -> int:
        """Bytes that a run may use: a share is left to the driver's context, libraries and fragmentation."""
        return int(self.memory * (0.90 if self.kind == "cpu" else 0.95)) - (0 if self.kind == "cpu" else GIB)


# name: (memory in GiB as the driver shows it, dense bfloat16 TFLOP/s). Sources: the vendors' data sheets, without
# sparsity. NVIDIA: HGX B300 and B200 platform pages (36 and 36 PFLOP/s dense FP8 for eight, half of it in BF16; B300
# 288 GB, B200 180 GB HBM3e), H200 / H100 / A100 / L40S / L4 / A10 data sheets, GeForce RTX Blackwell, Ada and Ampere
# architecture papers (with FP32 accumulation). AMD: Instinct MI300X, MI325X, MI355X data sheets.
_TABLE: dict[str, tuple[float, float]] = {
    "B300": (268.0, 2250.0),
    "B200": (178.0, 2250.0),
    "H200": (139.8, 989.0),
    "H100": (79.2, 989.0),
    "H20": (95.1, 148.0),
    "A100": (79.2, 312.0),
    "A100-40GB": (39.4, 312.0),
    "L40S": (44.5, 362.0),
    "L4": (22.0, 121.0),
    "A10": (22.0, 125.0),
    "T4": (14.6, 0.0),
    "RTX 5090": (31.4, 209.5),
    "RTX 4090": (23.5, 165.2),
    "RTX 3090": (23.5, 71.0),
    "MI300X": (191.7, 1307.0),
    "MI325X": (255.7, 1307.0),
    "MI355X": (287.6, 2516.0),
}
_SHORT = re.compile(r"[\s_-]|nvidia|geforce|amd|instinct|rtx")
_ASKED = re.compile(r"(?:(\d+)\s*[xX*]\s*)?(.+)")
_SIZED = re.compile(r"(?:(cpu|gpu)\s*:?\s*)?(\d+(?:\.\d+)?)\s*(GiB|GB|G)", re.IGNORECASE)


def named(name: str) -> Device | None:
    """A device of the table, by its own name or one that a driver gives (`NVIDIA H100 80GB HBM3`)."""
    wanted = _SHORT.sub("", name.lower())
    fits = [known for known in _TABLE if wanted == _SHORT.sub("", known.lower())] or [
        known for known in sorted(_TABLE, key=len, reverse=True) if wanted.startswith(_SHORT.sub("", known.lower()))
    ]
    if not fits:
        return None
    memory, tera = _TABLE[fits[0]]
    return Device(fits[0], "cuda", int(memory * GIB), tera * 1e12)


def parse(asked: str) -> tuple[int, Device]:
    """`8xB300`, `2x24GB`, `cpu:16GB` or `H100` as a number of devices and one of them. Raises Failure."""
    found = _ASKED.fullmatch(asked.strip())
    number, rest = (int(found[1] or 1), found[2].strip()) if found else (0, "")
    if sized := _SIZED.fullmatch(rest):
        kind = "cpu" if (sized[1] or "").lower() == "cpu" else "cuda"
        device: Device | None = Device(f"{'CPU' if kind == 'cpu' else 'device'} of {sized[2]} GB", kind, _bytes(sized))
    else:
        device = named(rest)
    if number < 1 or device is None:
        raise Failure(
            "devices_unknown",
            f"No devices are called {asked!r}.",
            [f"Say how many and which, such as 8xB300, 2x24GB or cpu:16GB. Known: {', '.join(_TABLE)}."],
        )
    return number, device


def _bytes(sized: "re.Match[str]") -> int:
    return int(float(sized[2]) * (GIB if sized[3].lower() == "gib" else 10**9))
