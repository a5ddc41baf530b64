"""The optimizer against torch's own."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspt.sgd import SGD


@settings(max_examples=30)
@given(
    seed=st.integers(0, 1000),
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    weight_decay=st.sampled_from([0.0, 5e-4, 0.1]),
    cut=st.integers(0, 5),
)
def test_steps_are_those_of_torch_to_the_bit_also_after_a_restart(
    seed, momentum, weight_decay, cut
):
    random = torch.Generator().manual_seed(seed)
    begin = {name: torch.randn(3, 4, generator=random) for name in ("a", "b", "unused")}
    ours = {name: value.clone().requires_grad_() for name, value in begin.items()}
    theirs = {name: value.clone().requires_grad_() for name, value in begin.items()}
    optimizer = SGD(ours, momentum, weight_decay, {})
    reference = torch.optim.SGD(
        theirs.values(), lr=1.0, momentum=momentum, weight_decay=weight_decay
    )
    for step in range(6):
        if step == cut:
            optimizer = SGD(ours, momentum, weight_decay, optimizer.velocity)
        rate = reference.param_groups[0]["lr"] = 0.1 / (step + 1)
        for name in ("a", "b"):
            gradient = torch.randn(3, 4, generator=random)
            ours[name].grad, theirs[name].grad = gradient.clone(), gradient.clone()
        optimizer.step(rate)
        reference.step()
        for name in begin:
            assert torch.equal(ours[name], theirs[name])
            assert ours[name].grad is None
