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


def counted(number: int, what: str, several: str = "") -> str:
    """Return a number with what it counts: "1 image", "1,200 images".

    Parameters
    ----------
    number : int
        0 or more.
    what : str
        What one of them is called.
    several : str
        What more of them are called, where an s is not enough: "classes".
    """
    return f"{number:,} {what if number == 1 else several or f'{what}s'}"
