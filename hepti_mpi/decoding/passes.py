"""A pass: new tokens of one or several sequences go through this rank's layers, with all exchanges on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hepti_mpi.comm.direct import Direct
from hepti_mpi.comm.group import Group
from hepti_mpi.comm.mpi import Tag
from hepti_mpi.comm.summands import Summands
from hepti_mpi.comm.wires import Coding
from hepti_mpi.decoding.share import DecoderShare
from solver.base.arrays import Array, Numbers


@dataclass(frozen=True, slots=True)
class PassShape:
    """What a pass computes.

    Parameters
    ----------
    first, sequences
        Consecutive places of sequences, each with its own cache.
    rows
        New tokens of each; more than one only of one sequence.
    chosen
        How many rows have logits: the last of each sequence, all of one, or none.
    """

    first: int
    sequences: int
    rows: int
    chosen: int
    scales: bool = False  # whether an int8 cache's scales are chosen by its rows


class DecoderPass:
    """Part of a rank in passes of one shape; it may run any number of times.

    Attributes
    ----------
    stream : [sequences, rows, H]
        What goes in: on ranks of the first stage the embedded tokens, to be written before `run`.
    logits
        What comes out: of some words each their first and [chosen, words]; nothing on ranks without words.
    """

    def __init__(self, share: DecoderShare, shape: PassShape, group: Group, direct: Direct, coding: Coding) -> None:
        self._share, self._shape, self._group = share, shape, group
        plan, model = share.plan, share.model
        H, B, S = model.hidden, shape.sequences, shape.rows
        self._last = np.zeros(B, np.int32)
        self._total = np.zeros(1, np.int32)
        self._places = np.zeros((B, S), np.int64)
        # The rows that have logits: of each sequence the last ones.
        each = shape.chosen // B
        self._chosen = (np.arange(B)[:, None] * S + np.arange(S - each, S)).reshape(-1)
        self.logits: list[tuple[int, Array]] = []
        self._steps: list[Callable[[], None]] = []  # graphs and exchanges in turn
        streams = [np.zeros((B, S, H), np.float32) for _ in "xh"]
        self.stream = streams[0]
        if share.stage is None:
            return
        stage = plan.stages[share.stage]
        senders = [[rank for rank in stage.ranks if own[rank].size] for own in (stage.heads, stage.columns)]
        sums = [Summands(group, direct, stage.ranks, some, B * S, H, coding, plan.two_steps_from) for some in senders]
        before: Summands | None = None
        for number, half in enumerate(share.halves):
            summands = sums[number % 2]
            if half.session is not None:
                inputs: dict[str, Numbers] = {"x": streams[0]}
                outputs: dict[str, Numbers] = {}
                if before is not None:
                    inputs["s"] = before.total.reshape(B, S, H, copy=False)
                    outputs["h"] = streams[1]
                    streams.reverse()
                if half.shares:
                    assert summands.part is not None
                    outputs["part"] = summands.part.reshape(B, S, H, copy=False)
                if half.runs:
                    inputs |= {"last": self._last, "total": self._total, **half.turns}
                    for place, cache in enumerate(half.cache):
                        own = cache[shape.first : shape.first + B]
                        name = f"{'kv'[place % 2]}{place // 2}"
                        inputs[name], outputs[f"{name}'"] = own, own
                        if half.scales:
                            inputs[f"{name}.scale"] = half.scales[place]
                    if half.scales and shape.scales:
                        width = sum(run.kv for run in half.runs) * half.cache[0].shape[-1]
                        outputs["keys"], outputs["values"] = (np.empty((B, S, width), np.float32) for _ in "kv")
                if "places" in half.session.inputs:
                    inputs["places"] = self._places
                call = half.session.bound(inputs, outputs)
                self._steps.append(call)
                if "keys" in outputs:
                    # By what it has made its scales are chosen; then it makes it again.
                    rope = model.layers[stage.layers.start + number // 2].attention.rope
                    self._steps += [partial(half.scale, outputs["keys"], outputs["values"], rope), call]
            self._steps.append(summands.run)
            before = summands
        assert before is not None
        inputs = {"x": streams[0], "s": before.total.reshape(B, S, H, copy=False)}
        if share.last is not None:
            self._steps.append(share.last.bound(inputs, {"h": streams[1]}))
        for words, head in share.heads if shape.chosen else ():
            logits = np.zeros((1, shape.chosen, words.size), np.float32)
            self.logits.append((words.start, logits[0]))
            self._steps.append(head.bound({**inputs, "chosen": self._chosen}, {"logits": logits}))
        self._out = streams[1]

    def run(self, starts: Sequence[int]) -> None:
        """Compute; `starts` says for each sequence how many tokens are before the new ones."""
        rows = self._shape.rows
        self._last[:] = starts
        self._last += rows - 1
        self._total[0] = max(starts) + rows
        self._places[:] = np.array(starts)[:, None] + np.arange(rows)
        stage = self._share.stage
        if stage is None:
            return
        stages = self._share.plan.stages
        if stage:
            request = self._group.post_receive(self.stream, min(stages[stage - 1].ranks), Tag.STREAM)
            self._group.wait_all([request])
        for step in self._steps:
            step()
        if stage + 1 < len(stages) and self._group.rank == min(stages[stage].ranks):
            for peer in stages[stage + 1].ranks:
                self._group.post_send(self._out, peer, Tag.STREAM)
            self._group.finish_sending()
