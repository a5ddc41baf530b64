"""CLIP as it is: a fixed prompt, nothing learnt. What every other method has to beat."""

from __future__ import annotations

from dataclasses import dataclass

from dspt.methods.method import Epoch, Method, Phase


@dataclass(frozen=True)
class ZeroShot(Method):
    """The prompt "a photo of a {}.", or another template, without any training."""

    name = "zero-shot"
    formula = "argmax_c cos(image, text_c)"
    source = "Radford et al., ICML 2021"
    trains = False
    needs_clip = "it needs CLIP's comparison of images with text"
    needs_text = True

    def plan(self, epoch: Epoch) -> list[Phase]:
        """Return no phase: there is nothing to learn."""
        return []
