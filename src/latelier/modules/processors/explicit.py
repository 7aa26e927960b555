"""The formula, written out: probabilities that can be looked at."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from latelier.modules.processors.base import Heads, Processor

__all__ = ["ExplicitProcessor"]


class ExplicitProcessor(Processor):
    """Attention that computes all probabilities, and returns them on request.

    Memory grows with the square of the sequence's length.

    Examples
    --------
    >>> import torch
    >>> from latelier.modules import Attention, ExplicitProcessor
    >>> attention = Attention(
    ...     4, heads=2, dim_head=2, processor=ExplicitProcessor()
    ... )
    >>> mask = torch.tensor([[True, True, False]])
    >>> _, probabilities = attention(
    ...     torch.zeros(1, 3, 4), None, mask, return_probabilities=True
    ... )
    >>> probabilities.shape  # batch, heads, queries, keys
    torch.Size([1, 2, 3, 3])
    >>> probabilities[0, 0, 0].tolist()
    [0.5, 0.5, 0.0]
    """

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        temb: Tensor | None = None,
        image_rotary_emb: tuple[Tensor, Tensor] | None = None,
        return_probabilities: bool = False,
    ) -> Any:
        """Compute what `Attention.forward` returns; with the probabilities, if asked for.

        Parameters
        ----------
        attn, hidden_states, encoder_hidden_states, attention_mask, temb, image_rotary_emb
            As in `Processor`.
        return_probabilities
            Return ``(output, probabilities)``, the second of shape ``(b, heads, queries, keys)``.
        """
        heads = self.split(attn, hidden_states, encoder_hidden_states, attention_mask, temb, image_rotary_emb)
        probabilities = self._probabilities(attn, heads)
        out = self.merge(attn, probabilities @ heads.value, hidden_states)
        return (out, probabilities) if return_probabilities else out

    def attend(self, attn: Any, heads: Heads) -> Tensor:
        """Multiply the probabilities by the values."""
        return self._probabilities(attn, heads) @ heads.value

    def _probabilities(self, attn: Any, heads: Heads) -> Tensor:
        """Return ``(b, heads, queries, keys)``, made by `Attention.get_attention_scores`."""
        batch = heads.query.shape[:2]
        mask = heads.full_mask()
        if mask is not None:
            mask = mask.expand(*batch, -1, -1).flatten(0, 1)
        scores = attn.get_attention_scores(heads.query.flatten(0, 1), heads.key.flatten(0, 1), mask)
        return scores.unflatten(0, batch)
