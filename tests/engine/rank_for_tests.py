"""A process of a launch that does as its arguments say: waits, fails, or ends well."""

import os
import sys
import time
from pathlib import Path

from engine import lifeline

if __name__ == "__main__":
    lifeline.hold(grace_seconds=0)
    folder, *failing = sys.argv[1:]
    rank = os.environ["RANK"]
    (Path(folder) / rank).write_text(str(os.getpid()), encoding="utf-8")
    if rank in failing:
        sys.exit(7)
    if failing != ["nobody"]:
        time.sleep(600)
