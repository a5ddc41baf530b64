"""Claims about named randomness, against Philox4x64-10 written out and scipy's tests."""

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dspt.internal.seeds import Stream

claim = settings(max_examples=50)
MASK = 2**64 - 1


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x64-10 as Salmon et al. (2011) define it."""
    (a, b, c, d), (k0, k1) = counter, key
    for _ in range(10):
        low, high = 0xD2E7470EE14C6C93 * a, 0xCA5A826395121157 * c
        a, b, c, d = (high >> 64) ^ b ^ k0, high & MASK, (low >> 64) ^ d ^ k1, low & MASK
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & MASK, (k1 + 0xBB67AE8584CAA73B) & MASK
    return [a, b, c, d]


def words(n: int, *address: object) -> list[int]:
    """The first n words of the stream at an address: seed, then name."""
    text = "\x1f".join(["dspt", *map(str, address)])
    digest = hashlib.sha256(text.encode()).digest()
    key = [int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")]
    # numpy steps the counter before it is first used.
    blocks = (philox([block, 0, 0, 0], key) for block in range(1, n // 4 + 2))
    return [word for block in blocks for word in block][:n]


def test_the_written_out_philox_gives_the_published_vectors() -> None:
    # kat_vectors of Random123, philox 4x64 10.
    assert philox([0, 0, 0, 0], [0, 0]) == [
        0x16554D9ECA36314C,
        0xDB20FE9D672D0FDC,
        0xD7E772CEE186176B,
        0x7E68B68AEC7BA23B,
    ]
    assert philox([MASK] * 4, [MASK] * 2) == [
        0x87B092C3013FE90B,
        0x438C3C67BE8D0224,
        0x9CC7D7C69CD777B6,
        0xA09CAEBF594F0BA0,
    ]


@pytest.mark.parametrize("address", [(1,), (0, "noise"), (-3, "shuffle", 7), (2**40, "é", 0.5)])
def test_raw_words_are_those_of_philox_at_the_address(address: tuple[int, ...]) -> None:
    assert Stream(*address).raw(11).tolist() == words(11, *address)


def test_draws_are_made_of_the_words_as_documented() -> None:
    raw = words(9, 1, "test")
    uniform = [(word >> 11) / 2**53 for word in raw]
    assert Stream(1, "test").uniform(9).tolist() == uniform
    assert Stream(1, "test").integers(9, 37).tolist() == [int(u * 37) for u in uniform]
    order = sorted(range(9), key=lambda i: raw[i])
    assert Stream(1, "test").permutation(9).tolist() == order


def test_a_stream_goes_on_where_it_stopped() -> None:
    stream = Stream(1, "test")
    first, second = stream.raw(3), stream.raw(6)
    assert [*first.tolist(), *second.tolist()] == words(9, 1, "test")


def test_streams_do_not_depend_on_the_order_in_which_they_are_used() -> None:
    one, other = Stream(1, "a"), Stream(1, "b")
    mixed = [one.raw(1)[0], other.raw(1)[0], one.raw(1)[0], other.raw(1)[0]]
    assert mixed[0::2] == words(2, 1, "a")
    assert mixed[1::2] == words(2, 1, "b")


def test_different_addresses_give_different_words() -> None:
    addresses = [(seed, *name) for seed in range(-5, 20) for name in [(), ("a",), ("a", 1), ("a1",)]]
    assert len({int(Stream(*address).raw(1)[0]) for address in addresses}) == len(addresses)


def test_the_global_generator_is_neither_used_nor_moved() -> None:
    np.random.seed(3)
    before = np.random.get_state()[1].copy()
    Stream(1, "test").permutation(10)
    assert (np.random.get_state()[1] == before).all()


@claim
@given(st.integers(0, 300), st.integers())
def test_permutations_are_permutations(n: int, seed: int) -> None:
    assert sorted(Stream(seed, "test").permutation(n).tolist()) == list(range(n))


@claim
@given(st.integers(1, 2**31), st.integers())
def test_integers_stay_below_their_limit(high: int, seed: int) -> None:
    values = Stream(seed, "test").integers(50, high)
    assert values.dtype == np.int64
    assert 0 <= values.min() <= values.max() < high


def test_every_order_of_four_is_as_likely() -> None:
    stream = Stream(1, "test")
    orders = [tuple(stream.permutation(4).tolist()) for _ in range(4800)]
    counts = [orders.count(order) for order in set(orders)]
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 0.001


def test_uniform_integers_and_normal_have_their_distributions() -> None:
    assert stats.kstest(Stream(1, "test").uniform(20_000), "uniform").pvalue > 0.001
    assert stats.kstest(Stream(2, "test").normal(100, 200).ravel(), "norm").pvalue > 0.001
    counts = np.bincount(Stream(3, "test").integers(20_000, 37), minlength=37)
    assert stats.chisquare(counts).pvalue > 0.001


def test_normal_is_box_muller_in_the_shape_that_was_asked_for() -> None:
    u = [(word >> 11) / 2**53 for word in words(12, 1, "context")]
    wanted = [math.sqrt(-2 * math.log(1 - a)) * math.cos(2 * math.pi * b) for a, b in zip(u[:6], u[6:], strict=True)]
    found = Stream(1, "context").normal(2, 3)
    assert found.shape == (2, 3)
    np.testing.assert_allclose(found.ravel(), wanted, rtol=1e-12)
