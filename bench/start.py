"""`python -m bench.start`: from the click on Start to the first step of the starter model, cold and warm.

A click here is what the worker does from the moment it picks the run up: inputs checked, engine started (cold) or the
one that waits taken (warm), data rendered, model loaded, and one optimizer step with the settings that the Train page
suggests. Each round is a run of its own in a fresh data folder.
"""

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from engine import events
from engine.rundir import RunDir
from engine.starter_paths import MODEL_ID
from studio import runs, starter
from studio.context import make_studio
from studio.db.migrate import upgrade
from studio.db.tables import Dataset, Model
from studio.defaults import suggest
from studio.settings import Settings
from worker import prepare
from worker.bench import Bench
from worker.devices import choices
from worker.tasks import work

PATIENCE = 120.0
WARMING = 15.0  # seconds that a waiting engine gets to load its libraries
PARTS = ("starting", "loading_data", "loading_model", "training")


def open_studio(folder: Path) -> Bench:
    """A studio of its own with the starter content ready."""
    settings = Settings(data_dir=folder)
    upgrade(settings)
    studio = make_studio(settings)
    bench = Bench(studio)
    starter.ensure(studio)
    with studio.session() as session:
        dataset_ids = [dataset.id for dataset in session.query(Dataset)]
    for dataset_id in dataset_ids:
        prepare.check_dataset(bench, dataset_id)
    prepare.convert_starter(bench, MODEL_ID)
    return bench


def new_run(bench: Bench) -> str:
    """A queued run as the Train page would start it."""
    with bench.studio.session() as session:
        dataset = session.query(Dataset).filter_by(kind="chat").first()
        model = session.get(Model, MODEL_ID)
        assert dataset is not None
        assert model is not None
        return runs.create(session, suggest(dataset, model, [device.told() for device in bench.devices])).id


def measure(bench: Bench) -> dict[str, float]:
    """Seconds from the click to each phase and to the first step."""
    run_id = new_run(bench)
    folder = RunDir(bench.studio.storage.run_dir(run_id).path)
    clicked = time.time()
    worker = threading.Thread(target=work, args=(bench,), daemon=True)
    worker.start()
    step = wait_for(lambda: first(folder, "step"))
    found = {"first_step": step.time - clicked}
    for _, event in events.read(folder.events):
        if isinstance(event, events.Phase) and event.phase in PARTS:
            found.setdefault(event.phase, event.time - clicked)
    with bench.studio.session() as session:
        runs.cancel(session, run_id)
    worker.join(PATIENCE)
    return found


def first(folder: RunDir, kind: str) -> events.Event | None:
    """The first event of a kind, as far as there is one."""
    return next((event for _, event in events.read(folder.events) if event.kind == kind), None)


def wait_for(found: Callable[[], events.Event | None]) -> events.Event:
    """What comes within the patience; else TimeoutError."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if event := found():
            return event
        time.sleep(0.02)
    raise TimeoutError("the run made no step")


def main() -> None:
    """Measure and print."""
    asked = argparse.ArgumentParser(prog="python -m bench.start", description=(__doc__ or "").split("\n")[0])
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    given = asked.parse_args()
    rounds: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    with tempfile.TemporaryDirectory(prefix="atelier-bench-") as folder:
        bench = open_studio(Path(folder))
        device = f"{bench.host}/{choices(bench.devices, 'auto')[0]}"
        for _ in range(given.rounds):
            rounds["cold"].append(measure(bench))
            bench.standby.keep(device)
            time.sleep(WARMING)
            rounds["warm"].append(measure(bench))
        bench.leaving.set()
        bench.close()
        bench.studio.close()
    medians = {
        how: {part: round(statistics.median(one[part] for one in found), 2) for part in (*PARTS, "first_step")}
        for how, found in rounds.items()
    }
    if given.json:
        print(json.dumps({"seconds": medians, "rounds": given.rounds}))  # noqa: T201
        return
    for how, parts in medians.items():
        print(f"{how:5}", "  ".join(f"{part} {seconds:.2f} s" for part, seconds in parts.items()))  # noqa: T201


if __name__ == "__main__":
    main()
