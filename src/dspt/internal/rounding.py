"""Numbers as they are shown. One rule for all: a half goes away from zero, as on paper."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal, localcontext


def figure(value: float, digits: int, sign: str = "") -> str:
    """Return a number with so many decimals: 79.35 with one is "79.4".

    Python rounds the binary number nearest to 79.35, which is below it, and 63.75 to the even digit; a reader rounds
    the decimal number that he sees elsewhere.

    Parameters
    ----------
    value : float
        A finite number.
    digits : int
        Decimals to show.
    sign : {"", "+"}
        "+" writes the sign of a positive number too.
    """
    # what sums leave of 63.75 may be 63.74999999999999
    seen = Decimal(repr(round(float(value), 6)))
    with localcontext(rounding=ROUND_HALF_UP):
        return f"{seen:{sign}.{digits}f}"
