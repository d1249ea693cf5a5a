"""Ranks of a service come and go: fake ones, on fake boards, with real agents, processes and signals."""

import asyncio
import os
import signal
from types import SimpleNamespace

import httpx
import pytest

from launch.serve.app import make_app
from launch.serve.texts import read_texts
from launch.watch.boards import WatchedBoard
from launch.watch.starts import Starts
from launch.watch.timing import Timing
from tests.kit import fake_boards as fakes


@pytest.fixture(autouse=True)
def _boards(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_UNPLUGGED", str(tmp_path))
    monkeypatch.setattr("launch.serve.plans.Plans._made", fakes.fake_plan)


@pytest.fixture
def model(tiny):
    return tiny.path


def run(scenario):
    async def within():
        async with asyncio.timeout(120):
            await scenario

    asyncio.run(within())


def test_a_model_is_ready_when_rank_0_says_so_and_answers(model):
    async def scenario():
        async with fakes.supervised(model) as supervisor:
            assert fakes.table(supervisor)["state"] == "loading"
            served = await fakes.ready(supervisor)
            request = served.journal.submit(fakes.asks(5))

            assert await fakes.told(request) == (fakes.should_be(5), fakes_answer(request, 5))
            state = supervisor.state()
            assert [board["alive"] for board in state["boards"]] == [True] * 3
            assert state["models"][0]["plan"]["devices"] == ["pi-0", "pi-1", "pi-2"]
            await fakes.until(lambda: fakes.table(supervisor)["requests"] == 1)
            await fakes.until(lambda: [len(board["ranks"]) for board in supervisor.state()["boards"]] == [1, 1, 1])

    run(scenario())


def fakes_answer(request, tokens):
    new = fakes.should_be(tokens)
    text = "".join(f"{token} " for token in new)
    return {
        "id": request.id, "text": text, "new_tokens": new, "finish_reason": "length", "seconds": 1.0, "first_s": 0.1,
        "tokens_per_s": 1.0, "prompt_tokens": 1, "known": 0,
    }  # fmt: skip


@pytest.mark.parametrize("who", [pytest.param(0, marks=pytest.mark.thorough("as rank 1")), 1, "mpirun"])
def test_a_request_goes_on_behind_what_was_told_when_a_process_is_killed(model, who):
    async def scenario():
        async with fakes.supervised(model) as supervisor:
            served = await fakes.ready(supervisor)
            request = served.journal.submit(fakes.asks(60))
            answer = asyncio.create_task(fakes.told(request))
            await fakes.until(lambda: len(request.said) > 5)
            number = served.job._process.pid if who == "mpirun" else fakes.rank_process(supervisor, who)
            os.kill(number, signal.SIGKILL)
            await fakes.until(lambda: served.state == "replanning", 5.0)
            tokens, last = await answer

            assert tokens == last["new_tokens"] == fakes.should_be(60)
            assert served.life.restarts == 1
            (fault,) = fakes.events(supervisor, "fault")
            assert ("mpirun was ended by signal 9" if who == "mpirun" else f"rank {who} on pi-{who}") in fault

    run(scenario())


@pytest.mark.thorough("its rows are in test_life.py")
@pytest.mark.parametrize("fits", [True, False])
def test_ranks_run_the_plan_that_the_service_has_made_as_long_as_it_fits(model, monkeypatch, fits):
    if not fits:
        monkeypatch.setenv("FAKE_REFUSES_PLAN", "")

    async def scenario():
        async with fakes.supervised(model) as supervisor:
            of_model = await fakes.ready(supervisor)
            assert fakes.table(supervisor)["plan"].get("given", False) == fits
            assert of_model.life.restarts == (0 if fits else 1)
            await asyncio.sleep(0.1)
            os.kill(fakes.rank_process(supervisor, 1), signal.SIGKILL)
            await fakes.until(lambda: of_model.state == "replanning", 5.0)
            await fakes.ready(supervisor)

            assert fakes.table(supervisor)["plan"].get("given", False) == fits
            assert of_model.life.restarts == (1 if fits else 3)

    run(scenario())


@pytest.mark.thorough("test_plans.py has it without a process")
@pytest.mark.parametrize("fits", [True, False])
def test_a_service_that_is_started_again_has_the_plan_of_the_one_before(model, monkeypatch, fits):
    async def scenario():
        async with fakes.supervised(model) as supervisor:
            await fakes.ready(supervisor)
        if not fits:
            monkeypatch.setenv("FAKE_REFUSES_PLAN", "")
        async with fakes.supervised(model) as supervisor:
            of_model = await fakes.ready(supervisor)

            assert fakes.table(supervisor)["plan"].get("given", False) == fits
            assert of_model.life.restarts == (0 if fits else 1)

    run(scenario())


def test_a_rank_that_stands_still_is_found_and_its_board_used_again(model):
    async def scenario():
        async with fakes.supervised(model) as supervisor:
            served = await fakes.ready(supervisor)
            os.kill(fakes.rank_process(supervisor, 1), signal.SIGSTOP)
            await fakes.until(lambda: fakes.events(supervisor, "fault"), 20.0)
            await fakes.ready(supervisor)

            assert "stood still" in fakes.events(supervisor, "fault")[0]
            assert served.job.boards == ("pi-0", "pi-1", "pi-2")

    run(scenario())


@pytest.mark.thorough("test_losses.py has it without a process")
def test_a_rank_0_that_says_nothing_and_computes_nothing_is_lost(model, monkeypatch):
    monkeypatch.setenv("FAKE_DEAF_S", "1")

    async def scenario():
        async with fakes.supervised(model) as supervisor:
            await fakes.ready(supervisor)
            await fakes.until(lambda: fakes.events(supervisor, "fault"), 20.0)

            assert "rank 0 has said nothing" in fakes.events(supervisor, "fault")[0]

    run(scenario())


@pytest.mark.parametrize("board", [pytest.param("pi-0", marks=pytest.mark.thorough("as pi-2")), "pi-2"])
def test_a_silent_board_is_named_left_out_and_taken_in_when_it_is_back(model, board):
    async def scenario():
        async with fakes.supervised(model) as supervisor:
            served = await fakes.ready(supervisor)
            request = served.journal.submit(fakes.asks(200))
            answer = asyncio.create_task(fakes.told(request))
            left = tuple(name for name in ("pi-0", "pi-1", "pi-2") if name != board)
            await fakes.until(lambda: len(request.said) > 5 and served.programs.plans.of(left))
            fakes.unplug(board)
            await fakes.until(lambda: served.state == "replanning", 20.0)
            await fakes.ready(supervisor)
            tokens, last = await answer

            assert tokens == last["new_tokens"] == fakes.should_be(200)
            assert served.job.boards == left
            plan = fakes.table(supervisor)["plan"]
            assert (plan["given"], plan["devices"]) == (True, list(left)), "made ahead"
            assert fakes.events(supervisor, "lost")[0].startswith(f"{board} has been silent")
            assert not next(b for b in supervisor.state()["boards"] if b["name"] == board)["alive"]
            fakes.plug(board)
            await fakes.until(lambda: served.job and served.job.boards == ("pi-0", "pi-1", "pi-2"), 40.0)
            await fakes.ready(supervisor)
            assert fakes.events(supervisor, "back") == [f"{board} is back"]

    run(scenario())


@pytest.mark.thorough("test_service.py and test_life.py have its halves")
def test_health_is_503_with_the_reason_while_loading_behind_a_loss_and_short_of_memory(model, tmp_path, monkeypatch):
    """Over HTTP, of ranks that really are not there; 200 when they are."""
    refuses = tmp_path / "refuses"
    monkeypatch.setenv("FAKE_REFUSES", str(refuses))
    monkeypatch.setenv("FAKE_LOAD_S", "1")

    async def scenario():
        async with fakes.supervised(model) as supervisor:
            app = make_app(supervisor, {"model": read_texts(model)})
            transport = httpx.ASGITransport(app)

            async def health():
                async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                    answer = await client.get("/health")
                return answer.status_code, answer.json().get("error", {}).get("message")

            async def said(status, words):
                async with asyncio.timeout(20):
                    while not ((found := await health())[0] == status and words in (found[1] or "")):
                        await asyncio.sleep(0.02)

            await said(503, "model: loading, the ranks load their weights")
            served = await fakes.ready(supervisor)
            assert await health() == (200, None)
            os.kill(fakes.rank_process(supervisor, 1), signal.SIGKILL)
            await said(503, "model: replanning, rank 1 on pi-1 was ended by signal 9 (SIGKILL)")
            await fakes.ready(supervisor)
            refuses.write_text("no plan fits: 7 bytes are missing")
            os.kill(fakes.rank_process(supervisor, 2), signal.SIGKILL)
            await said(503, "model: replanning, no plan fits: 7 bytes are missing")
            refuses.unlink()
            monkeypatch.setattr(served.programs.clusters, "free", lambda boards: dict.fromkeys(boards, 1 << 40))
            await fakes.ready(supervisor)
            assert await health() == (200, None)

    run(scenario())


def test_boards_are_measured_once_and_a_part_of_them_is_planned_for(model):
    async def scenario():
        async with fakes.supervised(model, measured=True) as supervisor:
            served = await fakes.ready(supervisor)
            assert fakes.table(supervisor)["plan"]["devices"] == ["fake-0", "fake-1", "fake-2"]
            fakes.unplug("pi-1")
            await fakes.until(lambda: served.state == "replanning", 20.0)
            await fakes.ready(supervisor)
            assert fakes.table(supervisor)["plan"]["devices"] == ["fake-0", "fake-2"]
            fakes.plug("pi-1")
        os.environ["FAKE_REFUSES_PROFILE"] = "1"
        async with fakes.supervised(model, measured=True) as supervisor:
            await fakes.ready(supervisor)
            assert fakes.table(supervisor)["plan"]["devices"] == ["fake-0", "fake-1", "fake-2"]

    try:
        run(scenario())
    finally:
        os.environ.pop("FAKE_REFUSES_PROFILE", None)


def test_where_nothing_can_be_kept_boards_are_measured_for_this_service_alone(model, monkeypatch):
    """As on a full disk: no measurement, no log."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")

    async def scenario():
        async with fakes.supervised(model, measured=True) as supervisor:
            await fakes.ready(supervisor)

            assert fakes.table(supervisor)["plan"]["devices"] == ["fake-0", "fake-1", "fake-2"]

    run(scenario())


def test_a_lost_rank_s_job_is_replaced_by_the_one_in_reserve_and_this_by_another(model):
    async def scenario():
        async with fakes.supervised(model) as supervisor:
            served = await fakes.ready(supervisor)
            reserve = served.reserve
            waiting = (await fakes.until(lambda: reserve.jobs.get(served.job.boards))).number
            request = served.journal.submit(fakes.asks(60))
            answer = asyncio.create_task(fakes.told(request))
            await fakes.until(lambda: request.said)
            os.kill(fakes.rank_process(supervisor, 1), signal.SIGKILL)
            tokens, _ = await answer

            assert tokens == fakes.should_be(60)
            assert served.job.number == waiting
            (second,) = await fakes.until(lambda: [*reserve.jobs.values()])
            left = supervisor._folder / "prterun.4999999"  # no process has this number
            left.mkdir()
            os.kill(second._process.pid, signal.SIGKILL)
            (third,) = await fakes.until(lambda: [job for job in reserve.jobs.values() if job is not second])
            assert (second.number, third.number) == (waiting + 1, waiting + 2)
            assert not left.exists()
            assert sorted(path.name for path in supervisor._folder.glob("*.hosts")) == [
                f"{job.number}.hosts" for job in (served.job, third)
            ]
            assert served.life.restarts == 1

    run(scenario())


def test_ranks_in_reserve_that_never_come_are_ended_and_tried_again_later(model, monkeypatch):
    monkeypatch.setenv("FAKE_NO_RESERVE", "")

    async def scenario():
        async with fakes.supervised(model, reserve_late_s=0.5) as supervisor:
            served = await fakes.ready(supervisor)
            coming = served.reserve._coming
            (first,) = await fakes.until(lambda: [*coming.values()])
            (second,) = await fakes.until(lambda: [job for job in coming.values() if job is not first])
            os.kill(fakes.rank_process(supervisor, 1), signal.SIGKILL)
            await fakes.until(lambda: served.life.restarts == 1 and served.state == "ready")

            assert first.code is not None
            assert second.number not in (first.number, served.job.number)
            assert not served.reserve.jobs

    run(scenario())


@pytest.mark.thorough("a matter of speed")
def test_ranks_without_a_board_that_is_late_are_there_when_its_silence_counts(model, monkeypatch):
    async def scenario():  # ranks start within two seconds, on a busy machine in five
        async with fakes.supervised(model, silence_s=12.0) as supervisor:
            served = await fakes.ready(supervisor)
            reserve = served.reserve
            await fakes.until(lambda: ("pi-0", "pi-1", "pi-2") in reserve.jobs)
            fakes.unplug("pi-1")
            ahead = (await fakes.until(lambda: reserve.jobs.get(("pi-0", "pi-2")))).number
            assert served.state == "ready"  # before the silence counts
            await fakes.until(lambda: served.state == "replanning", 40.0)
            await fakes.ready(supervisor)
            assert (served.job.boards, served.job.number) == (("pi-0", "pi-2"), ahead)
            await fakes.until(lambda: list(reserve.jobs) == [("pi-0", "pi-2")])
            fakes.plug("pi-1")

    run(scenario())


def test_two_models_start_one_behind_the_other_and_fail_alone(model, tmp_path):
    other = tmp_path / "refused.h5"
    other.symlink_to(model)

    async def scenario():
        async with fakes.supervised(model, more=[other]) as supervisor:
            good, bad = supervisor.models.values()
            await fakes.until(lambda: (good.state, bad.state) == ("ready", "failed"))
            request = good.journal.submit(fakes.asks(3))

            assert (await fakes.told(request))[0] == fakes.should_be(3)

    run(scenario())


def test_an_ended_service_says_so_to_who_waits(model):
    async def scenario():
        async with fakes.supervised(model) as supervisor:
            served = await fakes.ready(supervisor)
            request = served.journal.submit(fakes.asks(2000))
            answer = asyncio.create_task(fakes.told(request))
            await fakes.until(lambda: request.said)
        _, last = await answer

        assert last["error"] == "the service is ending"
        assert (served.state, served.reason) == ("failed", "the service is ending")  # what comes now is refused at once

    run(scenario())


def test_without_any_board_the_reason_is_what_ssh_says(model, tmp_path):
    (tmp_path / "pi-0").touch()

    async def scenario():
        async with fakes.supervised(model, ("pi-0",), first_s=0.5) as supervisor:
            (served,) = supervisor.models.values()
            await fakes.until(lambda: "No route to host" in (served.reason or ""), 40.0)

            assert served.state == "loading"
            assert served.reason.startswith("pi-0 has not answered yet")
            await asyncio.sleep(0.5)
            told = [event["text"] for event in supervisor.state()["events"]]
            assert told == [f"{served.reason}; trying again every 0.1 s"]  # once, however often it is tried

            (tmp_path / "pi-0").unlink()
            await fakes.until(lambda: len(supervisor.state()["events"]) > 1)
            assert supervisor.state()["events"][1]["text"] == "pi-0 answers"

    run(scenario())


@pytest.mark.thorough("its rows are in test_life.py")
def test_a_model_has_ranks_where_it_has_a_share_and_does_not_notice_what_happens_elsewhere(model, monkeypatch):
    monkeypatch.setenv("FAKE_ONE", "")

    async def scenario():
        async with fakes.supervised(model, calm_s=0.1) as supervisor:
            served = await fakes.ready(supervisor)
            assert served.job.boards == ("pi-0",)
            assert fakes.table(supervisor)["planned_for"] == ["pi-0", "pi-1", "pi-2"]
            fakes.unplug("pi-2")
            await fakes.until(lambda: fakes.events(supervisor, "lost"), 20.0)
            await fakes.until(lambda: served.programs.plans.used(("pi-1",)))
            assert (served.state, served.life.restarts) == ("ready", 0)
            fakes.unplug("pi-0")
            await fakes.until(lambda: served.state == "replanning", 20.0)
            await fakes.ready(supervisor)
            assert served.job.boards == ("pi-1",)
            assert fakes.events(supervisor, "planned") == ["model runs on pi-0", "model goes on without pi-0"]
            assert fakes.events(supervisor, "restarted") == ["model runs on pi-1"]
            assert not fakes.events(supervisor, "fault")  # a silent board is one fault, not one of each model
            fakes.plug("pi-2")  # it would have nothing to do
            await fakes.until(lambda: fakes.table(supervisor)["planned_for"] == ["pi-1", "pi-2"], 20.0)
            assert served.life.restarts == 1
            fakes.plug("pi-0")
            await fakes.until(lambda: served.job and served.job.boards == ("pi-0",), 20.0)

    run(scenario())


def test_models_start_side_by_side_where_their_memory_is_known_to_be_free():
    boards = {"a": WatchedBoard("a", Timing())}
    boards["a"].facts["free_bytes"] = 100

    async def scenario():
        starts = Starts(SimpleNamespace(boards=boards, beat=lambda: asyncio.sleep(0.001)))
        done = []

        async def start(model, needs):
            async with starts.turn(model, needs) as others:
                done.append((model, others))
                await asyncio.sleep(0.01)
                done.append(model)

        await asyncio.gather(start("x", {"a": 60}), start("y", {"a": 40}), start("z", {"a": 1}), start("u", None))
        assert done[:2] == [("x", {}), ("y", {"a": 60})]
        assert [one for one in done if isinstance(one, tuple)][-1] == ("u", {})
        assert not starts.busy

    run(scenario())
