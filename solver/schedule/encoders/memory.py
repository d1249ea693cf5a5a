"""What memory a plan needs on its devices, and what room they have for weights, in bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from solver.base.arrays import FLOAT_BYTES
from solver.base.errors import InfeasiblePlanError
from solver.cluster.cluster import PROGRAM_BYTES, Cluster
from solver.cluster.curves import Floats
from solver.model.precision import FLOAT32, Precision
from solver.model.spec import ModelSpec
from solver.plan.holdings import end_slices
from solver.plan.plan import Plan
from solver.schedule.exchange import Mask
from solver.schedule.shortage import SLIP_BYTES, does_not_fit, shortage


def ends_bytes(spec: ModelSpec) -> int:
    """Return the float32 bytes of embeddings and heads, which rank 0 holds."""
    return sum(piece.held_bytes() for piece in end_slices(spec))


def work_bytes(spec: ModelSpec, rows: int) -> int:
    """Return what a device needs besides weights, whatever its share: activations, exchange buffers, the program.

    At worst the stream as it was, gathered and summed, a summand and one being received ([S, H] each), and what the
    largest block works with.
    """
    largest = max(block.kind.work_columns for run in spec.runs for block in run.blocks)
    return PROGRAM_BYTES + FLOAT_BYTES * rows * (5 * spec.hidden + largest)


def loading(spec: ModelSpec, precision: Precision) -> float:
    """Return the memory that a byte of the layers' weights takes at most, measured.

    In int8 scales and sessions come on top: 1.04 bytes a weight of bert-large. And while a rank loads, a layer more
    lies there in float32 than in a float32 run: twelve layers took at most 491 MiB, then 400, in float32 889 and 828.
    """
    return 1.0 if precision == FLOAT32 else 1.05 + 3 / spec.layers


def needed_bytes(spec: ModelSpec, precision: Precision, rows: int, weights_bytes: Sequence[int]) -> Floats:
    """Return the memory that devices need to hold and use these weights, [p]."""
    held, ends = np.array(weights_bytes, float), np.zeros(len(weights_bytes))
    ends[0] = min(ends_bytes(spec), held[0])
    return (held - ends) * loading(spec, precision) + ends + work_bytes(spec, rows)


def short_bytes(spec: ModelSpec, cluster: Cluster, plan: Plan, weights_bytes: Sequence[int]) -> Floats:
    """Return the bytes of memory that devices lack for a plan, [p]; 0 where they suffice, and for who takes no part."""
    memory = np.array([float(device.memory_bytes) for device in cluster.devices])
    short = needed_bytes(spec, cluster.precision, plan.rows, weights_bytes) - memory
    taking = [rank for stage in plan.stages for rank in np.array(plan.ranks(stage))[list(stage.active)]]
    # Rank 0 has embeddings and heads, whatever else.
    return np.where(np.isin(np.arange(memory.size), [0, *taking]), np.maximum(short, 0.0), 0.0)


def lacks(spec: ModelSpec, cluster: Cluster, plan: Plan, weights_bytes: Sequence[int]) -> str:
    """Return what memory a plan lacks, in words, and on which devices; "" where it fits."""
    short = short_bytes(spec, cluster, plan, weights_bytes)
    return shortage(cluster, short) if short.max() > SLIP_BYTES else ""


def nearest_lacks(
    what: str, spec: ModelSpec, cluster: Cluster, room: Floats, needed_bytes: Floats
) -> InfeasiblePlanError:
    """Return the error that says what one device lacks for what no device has room for, the one that lacks least.

    Parameters
    ----------
    room, needed_bytes : [p]
        What every device has for layers, as `weights_room` counts, and would need if it were the one.
    """
    short = needed_bytes - room
    short = np.where(np.arange(room.size) == short.argmin(), short, 0.0)
    # Rank 0 has embeddings and heads, whatever else.
    short[0] = max(short[0], -room[0])
    return does_not_fit(what, cluster, short / packing(spec, cluster))


def layers_do_not_fit(
    system: str, spec: ModelSpec, cluster: Cluster, room: Floats, layers: NDArray[np.int64]
) -> InfeasiblePlanError:
    """Return the error of a system of whole layers, of which devices would hold so many, [p]; `room` as above."""
    what = f"{spec.name} by {system}, of whose {spec.layers} layers the devices hold {layers.sum()},"
    needed = (spec.layers - layers.sum() + layers) * whole_layer_bytes(spec)
    return nearest_lacks(what, spec, cluster, room, needed)


def no_device_holds_all(system: str, spec: ModelSpec, cluster: Cluster, rows: int) -> InfeasiblePlanError:
    """Return the error of a system that needs a device which holds all layers."""
    room = weights_room(spec, cluster, rows)
    needed = np.full(room.size, float(all_layers_bytes(spec)))
    return nearest_lacks(f"{spec.name} by {system}, whole on one device,", spec, cluster, room, needed)


def packing(spec: ModelSpec, cluster: Cluster) -> float:
    """Return how many bytes of a layer's weights in float32, as planners count them, fit into one byte of memory."""
    return FLOAT32.weight_bytes / (cluster.precision.weight_bytes * loading(spec, cluster.precision))


def weights_room(spec: ModelSpec, cluster: Cluster, rows: int) -> Floats:
    """Return the bytes that every device has for shares of layers, [p]; below zero where it lacks what comes before.

    They are bytes of float32 weights, whatever these are held in. Before them come activations, buffers and the
    program, the norms of all original layers, and on rank 0 embeddings and heads.
    """
    precision = cluster.precision
    # Biases of shares count as matrices do; what they take beyond that, in float32, is kept for all of them, as norms.
    originals = [(run.layers, block) for run in spec.runs if run.parts == 1 for block in run.blocks]
    held = sum(layers * tensor.held_bytes(precision) for layers, block in originals for tensor in block.tensors)
    shared = sum(layers * tensor.held_bytes() for layers, block in originals for tensor in block.shared)
    vectors = held - shared * precision.weight_bytes / FLOAT32.weight_bytes
    room = np.array([float(device.memory_bytes) for device in cluster.devices])
    room -= work_bytes(spec, rows) + loading(spec, precision) * vectors
    room[0] -= ends_bytes(spec)
    return room * packing(spec, cluster)


def whole_layer_bytes(spec: ModelSpec) -> int:
    """Return the bytes of a layer's weights beside the norms and last biases, which `weights_room` has counted."""
    return sum(tensor.held_bytes() for block in spec.blocks for tensor in block.shared)


def holds_all(spec: ModelSpec, cluster: Cluster, rows: int) -> Mask:
    """Return which devices can hold the weights of all layers, [p]."""
    return np.asarray(weights_room(spec, cluster, rows) >= all_layers_bytes(spec))


def all_layers_bytes(spec: ModelSpec) -> int:
    """Return the bytes of all layers' weights, as `whole_layer_bytes` counts those of one."""
    blocks = [(run.layers * run.parts, block) for run in spec.runs for block in run.blocks]
    return sum(count * tensor.held_bytes() for count, block in blocks for tensor in block.shared)
