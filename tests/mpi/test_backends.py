"""Every board takes the backend that works there, and all ranks know of it."""

import pytest

from hepti_mpi.kernels import backends, trial
from solver.base.errors import HeptiError

TROUBLE = "onnxruntime 1.21.0 dies of SIGILL"


@pytest.fixture
def boards(world, monkeypatch):
    """Make every rank a board of its own, the last one with trouble; return how often this rank has tried."""
    last = world.rank == world.size - 1
    tries = []
    monkeypatch.setattr(backends, "host_name", lambda: f"pi-{world.rank}")
    monkeypatch.setattr(trial, "identity", lambda: "a board")
    monkeypatch.setattr(trial, "known", lambda: None)
    monkeypatch.setattr(trial, "tried", lambda: tries.append(world.rank) or (TROUBLE if last else ""))
    return tries


@pytest.mark.sizes
def test_a_board_with_trouble_takes_numpy_and_the_others_keep_onnxruntime(world, boards, kept):
    names, notes = backends.agree("auto", "float32", world)

    assert names == ["onnxruntime"] * (world.size - 1) + ["numpy"]
    (note,) = notes
    kept(note.replace(f"pi-{world.size - 1}", "pi-LAST"))
    assert backends.of_all(names) == ("numpy" if world.size == 1 else "auto")
    assert len(boards) == 1


@pytest.mark.sizes
def test_ranks_of_one_board_are_served_by_one_trial(world, boards, monkeypatch):
    monkeypatch.setattr(backends, "host_name", lambda: "pi-0")
    monkeypatch.setattr(trial, "tried", lambda: boards.append(world.rank) or TROUBLE)

    names, notes = backends.agree("auto", "float32", world)

    assert names == ["numpy"] * world.size
    assert len(notes) == 1
    assert boards == ([0] if world.rank == 0 else [])


def test_a_board_that_was_tried_before_is_not_tried_again(world, boards, monkeypatch):
    """Not even where others are tried."""
    if world.rank == 0:
        monkeypatch.setattr(trial, "known", lambda: TROUBLE)

    names, _ = backends.agree("auto", "float32", world)

    assert names[0] == "numpy"
    assert len(boards) == (world.rank != 0)


@pytest.mark.usefixtures("boards")
@pytest.mark.parametrize(
    ("asked", "option"),
    [(("onnxruntime", "float32"), "--backend onnxruntime"), (("auto", "int8"), "--precision int8")],
    ids=["backend", "precision"],
)
def test_what_needs_onnxruntime_is_refused_on_all_ranks_with_the_hosts_name(world, asked, option, kept):
    with pytest.raises(HeptiError) as refused:
        backends.agree(*asked, world)

    assert str(refused.value).startswith(f"{option} cannot be had on pi-{world.size - 1}: {TROUBLE}")
    kept(str(refused.value).replace(f"pi-{world.size - 1}", "pi-LAST"))


@pytest.mark.usefixtures("boards")
def test_numpy_is_taken_without_a_trial(world, boards):
    assert backends.agree("numpy", "float32", world) == (["numpy"] * world.size, [])
    assert boards == []


def test_nobody_is_told_where_no_board_has_onnxruntime(world, boards, monkeypatch):
    monkeypatch.setattr(trial, "known", lambda: trial.MISSING)

    assert backends.agree("auto", "float32", world) == (["numpy"] * world.size, [])


def test_where_that_is_nobodys_choice_all_boards_are_told_of(world, boards, monkeypatch):
    """Of a language model, with which numpy is much slower."""
    monkeypatch.setattr(trial, "known", lambda: trial.MISSING)

    names, notes = backends.agree("auto", "float32", world, chosen=False)

    assert names == ["numpy"] * world.size
    assert [note.split(" computes with numpy: ")[0] for note in notes] == [f"pi-{rank}" for rank in range(world.size)]


def test_boards_without_onnx_are_refused_for_a_network_by_any_backend(world, boards, monkeypatch, kept):
    last = world.rank == world.size - 1
    monkeypatch.setattr(backends, "find_spec", lambda name: None if last else name)

    with pytest.raises(HeptiError) as refused:
        backends.need_onnx("sees.h5", world)

    kept(str(refused.value).replace(f"pi-{world.size - 1}", "pi-LAST"))
