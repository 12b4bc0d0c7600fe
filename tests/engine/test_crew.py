"""Several processes: the results of one, in order, and no helper stays behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from engine.crew import AT_ONCE, helpers_for, in_order
from engine.failure import Failure

ITEMS = AT_ONCE * 5 + 7
DIES = """
import os, sys, time
from engine.crew import in_order
def work(item):
    return os.getpid()
for at, (item, helper) in enumerate(in_order(work, iter(range(100_000)), 2)):
    if helper != os.getpid():
        print(helper, flush=True)
        time.sleep(60)
"""


def squared(item):
    return item * item


@pytest.mark.parametrize("helpers", [1, 2, 3])
@pytest.mark.parametrize("items", [0, 1, AT_ONCE, AT_ONCE + 1, ITEMS])
def test_the_results_are_those_of_one_process_in_order(items, helpers):
    assert list(in_order(squared, iter(range(items)), helpers)) == [(item, item * item) for item in range(items)]


def test_helpers_do_the_work_after_the_first_batch():
    who = [maker for _, maker in in_order(lambda item: os.getpid(), iter(range(ITEMS)), 2)]
    assert set(who[:AT_ONCE]) == {os.getpid()}
    assert len(set(who[AT_ONCE:])) == 2
    assert os.getpid() not in who[AT_ONCE:]


def fails(item):
    if item == ITEMS - 1:
        raise Failure("broken", "Item is broken.", ["Mend it."])
    return item


@pytest.fixture
def helpers():
    """The children of this process that were not there before: it may have servers of its own."""
    before = set(psutil.Process().children())
    return lambda: set(psutil.Process().children()) - before


def test_a_failure_in_a_helper_is_the_failure_of_all(helpers):
    with pytest.raises(Failure) as caught:
        list(in_order(fails, iter(range(ITEMS)), 2))
    assert (caught.value.code, caught.value.message, caught.value.advice) == ("broken", "Item is broken.", ["Mend it."])
    assert not helpers()


def dies(item):
    if item == ITEMS - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def test_a_helper_that_dies_is_told(helpers):
    with pytest.raises(Failure) as caught:
        list(in_order(dies, iter(range(ITEMS)), 2))
    assert caught.value.code == "helper_died"
    assert not helpers()


def test_helpers_end_when_nobody_wants_more(helpers):
    made = in_order(squared, iter(range(ITEMS)), 2)
    for _ in range(AT_ONCE + 1):
        next(made)
    assert len(helpers()) == 2
    made.close()
    assert not helpers()


def test_helpers_end_with_the_process_that_they_work_for():
    root = Path(__file__).parents[2]
    asking = subprocess.Popen([sys.executable, "-c", DIES], cwd=root, stdout=subprocess.PIPE, text=True)
    assert asking.stdout
    helper = psutil.Process(int(asking.stdout.readline()))
    asking.kill()
    asking.wait()
    asking.stdout.close()
    assert gone(helper)


def gone(process):
    for _ in range(1000):
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.01)
    return False


def test_few_rows_need_no_helpers():
    assert helpers_for(10) == 1
    assert 1 <= helpers_for(1_000_000) <= 16
