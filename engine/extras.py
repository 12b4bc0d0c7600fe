"""bitsandbytes, an extra that few runs ask for: left out of the processes that do not need it."""

import logging
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from engine.rundir import RunDir

BITSANDBYTES = "bitsandbytes"


def has_bitsandbytes() -> bool:
    """Whether runs may ask for it: it is installed, even if this process left it out."""
    return PathFinder.find_spec(BITSANDBYTES) is not None


def asked_in(path: Path) -> bool:
    """Whether the run in folder `path` keeps its base in 4 bits or its optimizer's state in 8."""
    try:
        spec = RunDir(path).read_spec()
    except (OSError, ValueError):
        return False  # the run itself says what is wrong with its spec
    return spec.training.quantization == "nf4" or spec.optimizer.optim == "adamw_8bit"


def settle(*, asked: bool) -> None:
    """Keep bitsandbytes out of this process unless it is asked for; to be called before PEFT is imported.

    PEFT imports it wherever it is installed, which takes a second. None among the modules is how Python is told that a
    package is not there. Where it is asked for, its warning about a kernel for inference on some CPUs is kept quiet.
    """
    if asked:
        logging.getLogger(f"{BITSANDBYTES}.backends.cpu.ops").setLevel(logging.ERROR)
    else:
        sys.modules[BITSANDBYTES] = None  # type: ignore[assignment]
