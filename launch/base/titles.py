"""What a table or a picture is of, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from solver.base.clock import at_scale
from solver.base.phrases import counted, mbps


def heading(report: Mapping[str, Any]) -> str:
    """Return what was measured where: model, layers, rows or the image, cluster, a lab's scale, links."""
    if "image" in report:
        of = "image of " + "\N{MULTIPLICATION SIGN}".join(map(str, report["image"]))
    else:
        of = f"{counted(report['layers'], 'layer')}, {counted(report['rows'], 'row')}"
    links = f", {mbps(report['mbps'])}" if report["mbps"] else ""
    return f"{report['model']}, {of} on {report['cluster']}{at_scale(report['lab_scale'])}{links}"


def rounds(report: Mapping[str, Any]) -> str:
    """Return how many rounds there were, "2 of 5 rounds" where the others are not there, and of how many requests."""
    done, asked = report["runs"], report["runs_asked"]
    so_far = "" if done == asked else f"{done} of "
    return f"{so_far}{counted(asked, 'round')} of {counted(report['repeat'], 'request')}"
