"""Noises in words. The one place where an experiment's noise is taken apart."""

from __future__ import annotations

from dspt.noise import parse

# The kinds of noise the paper has, as it names them.
KINDS = {"symmetric": "symmetric", "pair": "pair-flip"}
_OTHERS = {"near": "similar-class", "instance-likely": "instance, likeliest"}


def kind(noise: str) -> str:
    """Return the kind of a noise: "sym:0.4" is "symmetric", "none" is "none"."""
    return parse(noise).kind


def percentage(noise: str) -> float:
    """Return the percentage of wrong labels: 40 for "sym:0.4"."""
    return round(100 * parse(noise).rate, 6)


def heading(noise: str) -> tuple[str, str]:
    """Return what stands above a group of columns and above a column: ("symmetric", "40 %"), ("", "clean")."""
    spec = parse(noise)
    if spec.kind == "none":
        return "", "clean"
    if spec.path:  # labels or a matrix from a file: there is no rate
        _, people, which = spec.path.partition("_human.pt#")
        return ("people's mistakes", which.removesuffix("_label")) if people else ("", noise)
    _, _, k = spec.kind.partition("near-")
    group = f"similar-class, {k} nearest" if k else (KINDS | _OTHERS).get(spec.kind, spec.kind)
    return group, f"{percentage(noise):g} %"


def short(noise: str) -> str:
    """Return a noise in one or two words: "sym 40 %"."""
    group, share = heading(noise)
    return f"{parse(noise).kind.replace('symmetric', 'sym')} {share}" if group else share


def phrase(noise: str) -> str:
    """Return a noise as a title says it: "40 % symmetric"."""
    group, share = heading(noise)
    return f"{share} {group}" if group else share.replace("clean", "no wrong labels")
