"""A stage of which nothing is real, for comparisons: it answers at once, with made-up times."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from launch.compare.stage import BenchHosts
from solver.cluster.cluster import write_cluster
from solver.plan.file import read_plan
from solver.plan.segments import SegmentPlan
from tests.kit.chains import boards, chain
from tests.kit.clusters import pis

SPEEDS = (24.6, 70.0, 10.0)
NET = chain(
    ("conv", 64), ("relu",), ("conv", 64), ("pool",), ("conv", 64), ("mean",), ("flatten",), ("gemm", 5), size=24
)
TRACE = [
    {"name": "thread_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": "pi-0"}},
    {"name": "thread_name", "ph": "M", "pid": 0, "tid": 1, "args": {"name": "pi-1"}},
    {"name": "layer 0 attention", "cat": "compute", "ph": "X", "pid": 0, "tid": 0, "ts": 0, "dur": 900},
    {"name": "layer 0 mlp", "cat": "compute", "ph": "X", "pid": 0, "tid": 0, "ts": 900, "dur": 1000},
    {"name": "wait", "cat": "wait", "ph": "X", "pid": 0, "tid": 1, "ts": 50, "dur": 1850},
]


class Pretended:
    """Three hosts for transformers: every run is a tenth of a second slower than the one before.

    Attributes
    ----------
    ran
        What was run, in its order: systems, and programs of hosts alone.
    asked
        The options of every run of ranks.
    """

    def __init__(self, memory_gib=8.0, fails=()):
        self.cluster = self._profiled(pis(*SPEEDS, memory_gib=memory_gib))
        self.fails = fails
        self.ran, self.asked = [], []

    @staticmethod
    def _profiled(cluster):
        return replace(cluster, profile={"backend": "onnxruntime"})

    @property
    def stage(self):
        return BenchHosts("pretended", self.cluster.names, self.mpirun, self.alone)

    def mpirun(self, program, log):
        """Write what a job would: a measurement, or a report."""
        options = dict(pairwise(program))
        if "profile" in program:
            if options.get("--precision") in self.fails:
                log.write_text("python -m hepti_mpi: unrecognized arguments: --precision\nmpirun: noise\n")
                return 2
            write_cluster(self.cluster, Path(options["--out"]))
            return 0
        system, devices, wire = self.read(Path(options["--plan"]))
        before = self.ran.count(system)
        self.ran.append(system)
        self.asked.append({**options, "wire": wire, "words": program})
        if system in self.fails:
            log.write_text("noise\npython -m hepti_mpi: rank 1 is out of memory\nmpirun: noise\n")
            return 1
        ranks = [
            {"device": name, "compute_s": 0.2, "wait_s": 0.02 * rank, "sent_bytes": 3000}
            for rank, name in enumerate(devices)
        ]
        report = {"requests": [{"id": "random", "seconds": self.seconds(system, before)}], "per_rank": ranks}
        Path(options["--report"]).write_text(json.dumps(report))
        if "--trace" in options:
            Path(options["--trace"]).write_text(json.dumps({"traceEvents": TRACE}))
        return 0

    def read(self, path):
        """Return system, devices and wire of a plan."""
        plan = json.loads(path.read_text())
        return plan["system"], self.cluster.names, plan.get("wire")

    def seconds(self, system, before):
        """Return what both requests of a run take, of a system that has run so often."""
        return [0.1 * len(self.ran), 0.1 * len(self.ran) + 0.01]

    def alone(self, host, program):
        """Answer as the program of a single device."""
        options = dict(pairwise(program))
        self.ran.append(f"{host} {options['--backend']} {options['--precision']}")
        if options["--backend"] in self.fails:
            return 2, "", "python -m launch.single: torch is not installed on this device: pip install torch\n"
        return 0, 'a library says hello\n{"seconds": [0.05, 0.07]}\n', ""


class PretendedNetworks(Pretended):
    """Three boards for `NET`, which take for an image what is said of the system, and a tenth more in every round."""

    def __init__(self, seconds=None, fails=()):
        super().__init__(fails=fails)
        self.cluster = self._profiled(boards(0.5, 1.0, 2.0, mbps=1000.0))
        self.takes = {"single:pi-2": 0.3, "single:pi-1": 0.6, "single:pi-0": 1.2, "coedge": 0.2, **(seconds or {})}

    def read(self, path):
        plan = read_plan(path, SegmentPlan, NET)
        return plan.system, plan.devices, plan.wire

    def seconds(self, system, before):
        return [self.takes.get(system, 0.1) * (1 + before / 10)] * 2
