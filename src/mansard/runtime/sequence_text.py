"""SequenceText: one sequence's growing text, and why it ended.

It joins what the engine knows (EOS, stop tokens, lengths) with what only text can tell (stop strings). Tokens
that a step sampled behind a stop string are dropped, so counts never include what the client does not get.
"""

from __future__ import annotations

from dataclasses import dataclass

from mansard.core.types import FinishReason, SamplingParams, SequenceOutput
from mansard.runtime.text_stream import TextStream, TokenBytes


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step added: text that is final, the tokens that count, and the end if it came.

    `stop_reason`: the stop string or stop token that ended the text; None for EOS and for other ends.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


class SequenceText:
    """Turns one sequence's outputs into pieces of text."""

    def __init__(self, tokenizer: TokenBytes, params: SamplingParams) -> None:
        self._stream = TextStream(tokenizer, params)
        self._params = params
        self.num_output_tokens = 0

    def push(self, output: SequenceOutput) -> Piece:
        """Take what a step added to the sequence; nothing may follow a piece with a finish reason."""
        token_ids, reason = output.token_ids, output.finish_reason
        delta = self._stream.push(token_ids[:-1] if self._hides_last_token(output) else token_ids)
        if delta.stopped:
            token_ids = token_ids[: delta.num_tokens]
            self.num_output_tokens += len(token_ids)
            return Piece(delta.text, token_ids, FinishReason.STOP, delta.stop_string)
        self.num_output_tokens += len(token_ids)
        if reason is None:
            return Piece(delta.text, token_ids)
        return Piece(delta.text + self._stream.finish(), token_ids, reason, self._stop_token(output))

    def _hides_last_token(self, output: SequenceOutput) -> bool:
        """Say whether the last token is the one that ended the sequence, which is no part of the text."""
        return output.finish_reason is FinishReason.STOP and not self._params.include_stop_str_in_output

    def _stop_token(self, output: SequenceOutput) -> int | None:
        """Return the stop token that ended the sequence, if one did."""
        if output.finish_reason is FinishReason.STOP and output.token_ids[-1] in self._params.stop_token_ids:
            return output.token_ids[-1]
        return None
