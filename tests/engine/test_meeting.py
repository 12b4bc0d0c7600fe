"""Where a run's hosts meet: at one address, all of them, in the order they were told."""

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psutil
import pytest

from engine import events, meeting, ranks, team
from engine.failure import Failure
from engine.meeting import Meeting, Rendezvous
from engine.rundir import RunDir
from tests.services import free_port

LOOPBACK = "127.0.0.1"


def listening():
    return {one.laddr for one in psutil.Process().net_connections("inet") if one.status == psutil.CONN_LISTEN}


def test_hosts_meet_in_their_order_at_one_address_and_nowhere_else():
    before, endpoint = listening(), f"{LOOPBACK}:{free_port()}"
    met = [Rendezvous(Meeting(3, host, endpoint, "key")) for host in (2, 1, 0)]
    with ThreadPoolExecutor(3) as pool:
        told = list(pool.map(Rendezvous.next_rendezvous, met))
    assert [(one.rank, one.world_size) for one in told] == [(2, 3), (1, 3), (0, 3)]
    assert {(one.bootstrap_store_info.master_addr, one.bootstrap_store_info.master_port) for one in told} == {
        (LOOPBACK, int(endpoint.rpartition(":")[2]))
    }
    assert {where.ip for where in listening() - before} == {LOOPBACK}


def test_a_host_of_another_start_is_not_taken_for_one_of_them(monkeypatch):
    monkeypatch.setattr(meeting, "PATIENCE", timedelta(seconds=1))
    endpoint = f"{LOOPBACK}:{free_port()}"
    met = [Rendezvous(Meeting(2, 0, endpoint, "now")), Rendezvous(Meeting(2, 1, endpoint, "before"))]

    def meet(one):
        with pytest.raises(Failure, match=f"The 2 hosts of the run did not meet at {endpoint}") as found:
            one.next_rendezvous()
        return found.value.code

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(meet, met)) == ["hosts_did_not_meet"] * 2


def test_an_address_that_is_not_the_host_s_own_is_told_as_the_run_s_last_word(make_run, monkeypatch):
    run = make_run(layout={"data": 2, "hosts": 2})
    monkeypatch.setattr(ranks, "_on_a_leash", lambda *_: os.scandir())  # nothing is started: any block will do
    away = Meeting(2, 0, "192.0.2.1:29500")
    monkeypatch.setattr(ranks, "elastic_launch", lambda *_: lambda *_: Rendezvous(away).next_rendezvous())
    assert team.lead(run, 2, away) == 1
    (last,) = [event for _, event in events.read(run.events)]
    assert (last.status, last.code) == ("failed", "hosts_did_not_meet")
    assert "192.0.2.1:29500" in last.message


def test_connections_stay_on_the_network_of_the_meeting(monkeypatch):
    names = {name for name, has in psutil.net_if_addrs().items() if any(one.address == LOOPBACK for one in has)}
    assert Meeting().interfaces() == {"GLOO_SOCKET_IFNAME": names.pop()}
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "set by hand")
    assert Meeting().interfaces() == {}
    assert Meeting(2, 1, f"{LOOPBACK}:29500").own_address == LOOPBACK


def test_the_word_that_hosts_share_stands_in_the_run_s_folder(tmp_path):
    folder = RunDir(tmp_path)
    assert folder.meeting_key() == "atelier"
    folder.meeting.write_text("a word")
    assert folder.meeting_key() == "a word"
