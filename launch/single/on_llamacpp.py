"""A language model in llama.cpp on this device alone, which only `launch bench compare` asks for.

A stand-alone program: it runs in the Python that llama-cpp-python was built for. It prints, for every prompt but the
first, which warms up, the ids that were chosen, the seconds to the first and those of a further one.
"""

from __future__ import annotations

import argparse
import json
from itertools import islice
from pathlib import Path
from typing import Any

import llama_cpp

from solver.base import clock


def main() -> None:
    """Answer the prompts of a file greedily, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m launch.single.on_llamacpp", description=__doc__)
    parser.add_argument("--model", required=True, metavar="MODEL.gguf")
    parser.add_argument("--input", type=Path, required=True, metavar="PROMPTS.jsonl")
    parser.add_argument("--tokens", type=int, required=True, metavar="N")
    parser.add_argument("--context", type=int, required=True, metavar="C")
    parser.add_argument("--threads", type=int, required=True, metavar="T")
    options = parser.parse_args()
    threads = options.threads
    model = llama_cpp.Llama(
        options.model, n_ctx=options.context, n_threads=threads, n_threads_batch=threads, verbose=False
    )
    prompts = [json.loads(line)["tokens"] for line in options.input.read_text().splitlines()]
    answers = [answer(model, tokens, options.tokens) for tokens in prompts]
    print(json.dumps({"version": llama_cpp.__version__, "answers": answers[1:]}))


def answer(model: Any, prompt: list[int], tokens: int) -> dict[str, Any]:
    """Return the ids after a prompt, and the seconds that they took."""
    started = clock.now()
    chosen = model.generate(prompt, temp=0.0)
    first = next(chosen)
    came = clock.now()
    ids = [first, *islice(chosen, tokens - 1)]
    return {"new_tokens": ids, "first_s": came - started, "token_s": (clock.now() - came) / (len(ids) - 1)}


if __name__ == "__main__":
    main()
