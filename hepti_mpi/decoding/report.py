"""What is said of answers in words, and the table of a run with a language model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from hepti_mpi.decoding.generation import TextAnswer
from hepti_mpi.report.tables import engine_line
from solver.base.phrases import counted
from solver.base.tables import new_table
from solver.cluster.cluster import MIB
from solver.model.decoder import Decoder
from solver.plan.decoder_plan import DecoderPlan


def answer_entry(answer: TextAnswer) -> dict[str, Any]:
    """Return an answer as a JSON line has it."""
    tokens = answer.text.tokens
    told = [{"logprob": logprob, "top": top} for logprob, top in answer.told_prompt]
    return {
        "id": answer.prompt.id,
        "text": answer.text.text,
        "new_tokens": tokens,
        "finish_reason": answer.text.finish_reason,
        "seconds": answer.ended - answer.started,
        "first_s": answer.first_s,
        "tokens_per_s": speed(answer),
        "prompt_tokens": len(answer.prompt.tokens),
        "known": answer.known,
    } | ({} if answer.wishes.prompt_logprobs is None else {"prompt_logprobs": told})


def speed(answer: TextAnswer) -> float | None:
    """Return the tokens a second after the first one; None of an answer that has no other."""
    tokens = len(answer.text.tokens) - 1
    return tokens / answer.decode_s if tokens and answer.decode_s > 0 else None


def show_run(console: Console, report: Mapping[str, Any], model: Decoder, plan: DecoderPlan) -> None:
    """Print who had what, and how fast tokens came."""
    # In two lines, so that it fits 80 columns.
    title = f"who had what of {model.name}, {counted(len(model.layers), 'layer')}"
    table = new_table(title, "device", *share_columns(plan), "peak\nMiB", "busy\ns", "wait\ns", "sent\nMiB")
    for entry in report["per_rank"]:
        table.add_row(
            entry["device"], *shares_of(plan, entry["rank"]),
            f"{entry['peak_rss_bytes'] / MIB:.0f}", f"{entry['compute_s']:.2f}", f"{entry['wait_s']:.2f}",
            f"{entry['sent_bytes'] / MIB:.1f}",
        )  # fmt: skip
    console.print(table)
    console.print(engine_line(report["per_rank"], 1))
    line = Text(counted(report["requests_answered"], "answer"))
    if report["tokens_per_s_median"]:
        line.append(", ").append(f"{report['tokens_per_s_median']:.2f} tokens a second", "bold")
    if report["first_s_median"] is not None:
        line.append(f", the first after {report['first_s_median']:.2f} s")
    if report["predicted"]:
        expected = report["predicted"]
        between = " between prompts" * (plan.sequences > 1)  # while one is read, the others wait
        line.append(f"; predicted {1 / expected['token_s']:.2f} a second{between}, the first after ")
        line.append(f"{expected['first_s']:.2f} s")
        line.append(f" for {report['predicted_for']}")
    console.print(line)


def share_columns(plan: DecoderPlan) -> list[str]:
    """Return the headings over what devices have."""
    return [*["layers"] * (len(plan.stages) > 1), *map(str, _axes(plan)), *plan.word_columns]


def shares_of(plan: DecoderPlan, rank: int) -> list[str]:
    """Return what a rank has, in the order of `share_columns`."""
    own = [stage for stage in plan.stages if rank in stage.ranks]
    layers = f"{own[0].layers.start}-{own[-1].layers.stop - 1}" if own else "-"
    shares = (own[0].shares[axis][rank].size if own and axis in own[0].shares else 0 for axis in _axes(plan))
    words = (words[rank].size for words in plan.word_columns.values())
    return [*[layers] * (len(plan.stages) > 1), *map(str, (*shares, *words))]


def _axes(plan: DecoderPlan) -> Iterable[str]:
    return dict.fromkeys(axis for stage in plan.stages for axis in stage.shares)
