"""A lifeline: a process that ends when the one that started it is gone, however that one ended.

The starter sets ATELIER_LIFELINE=1 and keeps the writing end of the child's standard input. It never writes; the system
closes the pipe with the starter, and the child reads the end of the file. No process id is compared, so nothing is
missed and no stranger is hit. Called once, at the start of `python -m studio web`, `python -m worker` and the engine.
"""

import os
import signal
import threading
import time

VARIABLE = "ATELIER_LIFELINE"
STDIN = 0


def hold(grace_seconds: float) -> None:
    """Watch standard input when ATELIER_LIFELINE=1: at its end the process gets SIGTERM, and SIGKILL after the grace.

    The variable is taken out of the environment, so that processes started from here do not inherit the duty.
    """
    if os.environ.pop(VARIABLE, "") == "1":
        threading.Thread(target=_watch, args=(grace_seconds, os.dup(STDIN)), name="lifeline", daemon=True).start()


def _watch(grace_seconds: float, descriptor: int) -> None:
    while os.read(descriptor, 1024):  # not sys.stdin: its lock, held by this thread, would abort an ordinary exit
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_seconds)
    os.kill(os.getpid(), signal.SIGKILL)
