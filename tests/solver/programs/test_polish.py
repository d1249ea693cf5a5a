"""The descent: it ends better than it began, within the room there is, among those who may take part."""

import numpy as np

from solver.model.blocks import Axis
from solver.model.named import named_model
from solver.programs.layers import PartedRun, Room, polished_runs
from solver.programs.polish import with_other_crew
from solver.programs.search import Configuration
from solver.programs.tiles_and_routes import plan_of
from solver.schedule.encoders.cost import request_seconds, setting
from solver.schedule.encoders.layer_table import layer_kinds, layer_weights, taking
from tests.kit.clusters import pis

BERT = named_model("bert-base", layers=4)
(BY_BLOCKS,) = [kind for kind in layer_kinds(BERT.blocks) if str(kind) == "block/block rr"]
S = setting(BERT, pis(24.6, 70, 24.6), 128)
EVERYONE = np.ones(3, bool)


def equal_layer():
    """Return a layer of the two slower boards."""
    shares = {Axis.ROWS: [64, 0, 64], Axis.HEADS: [6, 0, 6], Axis.FFN: [24, 0, 24]}
    units = {axis: np.array(own) for axis, own in shares.items()}
    return Configuration(BY_BLOCKS, units, 0.0, layer_weights(S, BY_BLOCKS).held_bytes(units))


def with_others(room):
    parted = PartedRun(S, [(equal_layer(), BERT.layers)], 0, room)
    return parted.with_units(with_other_crew(parted, parted.units))


def seconds_of(runs):
    return request_seconds(S, plan_of(S, runs))


def test_a_faster_board_joins():
    before, room = [(equal_layer(), BERT.layers)], Room(np.full(3, np.inf), EVERYONE)

    other, after = with_others(room), polished_runs(S, before, room)

    assert taking(other[0][0].units)[1]
    assert seconds_of(after) <= seconds_of(other) < seconds_of(before)


def test_no_board_holds_more_than_it_has_room_for():
    """But rows without weights, where only norms are computed."""
    runs = polished_runs(S, [(equal_layer(), BERT.layers)], Room(np.array([np.inf, 0, np.inf]), EVERYONE))

    assert sum(often * layer.held_bytes for layer, often in runs)[1] == 0
    assert any(layer.units[Axis.ROWS][1] > 0 for layer, _ in runs)


def test_who_may_take_no_part_gets_no_rows_either():
    room = Room(np.array([np.inf, 0, np.inf]), np.array([True, False, True]))

    runs = polished_runs(S, with_others(room), room)

    assert not any(taking(layer.units)[1] for layer, _ in runs)
