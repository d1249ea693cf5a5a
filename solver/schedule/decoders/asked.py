"""`TokenRequest`: what a language model is planned for."""

from __future__ import annotations

from dataclasses import dataclass

from solver.base.errors import HeptiError
from solver.base.phrases import counted
from solver.model.blocks import one_of
from solver.model.decoder import Decoder
from solver.model.kinds.attention import CACHES
from solver.model.kinds.weight import PRECISIONS
from solver.plan.plan import WIRES, Wire

CHUNK_ROWS = 256  # of a prompt go through the layers together
PROMPT, TOKENS, CONTEXT = 64, 128, 4096  # where nothing else is asked for
PRECISION = "int4"  # of a model that is known by name


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    """What is asked for: an answer to a prompt, and what weights, cache and wire are in.

    A plan is made for its seconds: those of the first token and of `tokens` more, each after `behind` others.

    Parameters
    ----------
    prompt, tokens
        Of a text and its answer.
    context
        Tokens that there is to be room for, of one sequence.
    sequences
        How many sequences have room.
    precision, cache, wire
        As in `DecoderPlan`.
    """

    prompt: int = PROMPT
    tokens: int = TOKENS
    context: int = CONTEXT
    sequences: int = 1
    precision: str = PRECISION
    cache: str = "float32"
    wire: Wire = Wire.FLOAT32

    @property
    def behind(self) -> int:
        """How many tokens stand before one in the middle of the answer."""
        return self.prompt + self.tokens // 2

    def check(self, model: Decoder) -> None:
        """Refuse what says nothing, or does not fit a model.

        Raises
        ------
        HeptiError
            Saying which number does not.
        """
        one_of("precision", self.precision, tuple(PRECISIONS))
        one_of("cache", self.cache, CACHES)
        one_of("wire", str(self.wire), tuple(map(str, WIRES)))
        for what in ("prompt", "tokens", "context", "sequences"):
            if getattr(self, what) < 1:
                raise HeptiError(f"{what} is {getattr(self, what)}, must be at least 1")
        if self.context > model.positions:
            raise HeptiError(f"a context of {self.context} tokens, {model.name} has {model.positions}")
        if self.prompt + self.tokens > self.context:
            raise HeptiError(
                f"a prompt of {counted(self.prompt, 'token')} and an answer of {self.tokens} are "
                f"{self.prompt + self.tokens}, the context has room for {self.context}: ask for fewer, or for a longer "
                f"context"
            )


def token_request(
    model: Decoder,
    stored: str | None,
    precision: str | None = None,
    wire: Wire = Wire.FLOAT32,
    *,
    prompt: int | None = None,
    tokens: int | None = None,
    context: int | None = None,
    sequences: int | None = None,
    cache: str | None = None,
) -> TokenRequest:
    """Return what is asked for; what is not said is as usual, and fits the model's context.

    Parameters
    ----------
    stored
        What the weights are in, where there is a file; None: as `precision` says.

    Raises
    ------
    HeptiError
        If `precision` is another than the file's.
    """
    if precision is not None and stored not in (None, precision):
        raise HeptiError(f"--precision {precision}: the weights of {model.name} are in {stored}: leave it out")
    context = min(CONTEXT, model.positions) if context is None else context
    prompt = min(PROMPT, max(context // 2, 1)) if prompt is None else prompt
    return TokenRequest(
        prompt=prompt,
        tokens=min(TOKENS, max(context - prompt, 1)) if tokens is None else tokens,
        context=context,
        sequences=1 if sequences is None else sequences,
        precision=stored or precision or PRECISION,
        cache=cache or "float32",
        wire=wire,
    )
