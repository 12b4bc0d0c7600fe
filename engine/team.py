"""A run on several devices of this host: a process for each, and this one, which starts them and outlives them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from engine import events, ranks
from engine.events import Finished
from engine.failure import Failure
from engine.layout.degrees import degrees_of, devices_of
from engine.layout.mesh import processes
from engine.meeting import Meeting
from engine.plan.at_hand import planned
from engine.rundir import RunDir
from engine.stopping import Signals


def needed(folder: RunDir, hosts: int = 1) -> int:
    """How many processes are to be started for a run: 0 when this process is one of them, or the only one.

    A layout that is left open is planned here, for the devices that are seen, and noted for the processes; on several
    `hosts` it is not planned, and `lead` refuses what they cannot share.
    """
    if processes() > 1:
        return 0
    folder.layout.unlink(missing_ok=True)
    try:
        spec = folder.read_spec()
    except (FileNotFoundError, ValueError):  # told, like every fault, by the run itself
        return 0
    found = planned(spec) if hosts == 1 else None
    if found is not None:
        sys.stderr.write(f"layout: {degrees_of(found.layout, devices_of(found.layout))}. {found.why}\n")
        folder.layout.write_text(found.model_dump_json(), encoding="utf-8")
    wanted = devices_of(found.layout if found else spec.layout)
    return wanted if wanted > 1 or hosts > 1 else 0


def lead(folder: RunDir, count: int, meeting: Meeting) -> int:
    """Run the folder's training in `count` processes, this host's share of them here; exit status as `engine.train`.

    The first process speaks for the run. When it could not (another one failed, and took it along), this one says why.
    """
    share, rest = divmod(count, meeting.hosts)
    if (wanted := folder.read_spec().layout.hosts) not in ("auto", meeting.hosts):
        sys.stderr.write(f"The layout is for {wanted} hosts, and this is a start on {meeting.hosts}.\n")
        return 2
    if rest:
        counted = "1 device, or one that is left open," if count == 1 else f"{count} devices"
        sys.stderr.write(f"A layout of {counted} cannot be spread evenly over {meeting.hosts} hosts.\n")
        return 2
    folder.failure.unlink(missing_ok=True)
    hidden = "CUDA_VISIBLE_DEVICES"  # transformers splits over an accelerator whenever it sees one
    extra = {hidden: ""} if folder.read_spec().training.device == "cpu" else {}
    before = folder.events.stat().st_size if folder.events.exists() else 0
    program = ["-m", "engine", "train", str(folder.path)]
    try:
        with _asking(folder):
            code = ranks.launch(program, share, extra, replace(meeting, key=folder.meeting_key()))
    except Failure as failure:
        say_failure(folder, Finished.of(failure))
        code = 1
    if meeting.host:
        return code
    last = [event for _, event in events.read(folder.events, before) if isinstance(event, Finished)]
    if last:
        return 1 if last[-1].status == "failed" else 0
    if not folder.failure.exists():
        return code or 1
    events.append(folder.events, Finished.model_validate_json(folder.failure.read_bytes()))
    return 1


@contextmanager
def _asking(folder: RunDir) -> Iterator[None]:
    """Inside the block a first SIGTERM or Ctrl-C asks the run to pause, since it must end in all processes at once."""
    with Signals(heard=partial(folder.ask_to_stop, "pause")).listening():
        yield


def say_failure(folder: RunDir, finished: Finished) -> None:
    """Keep the failure of a process that does not speak for the run; the first one counts."""
    sys.stderr.write(f"{finished.message}\n")
    try:
        with folder.failure.open("x", encoding="utf-8") as file:
            file.write(finished.model_dump_json())
    except FileExistsError:
        return
