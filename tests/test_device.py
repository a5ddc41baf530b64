"""Ready for a GPU, as far as that can be told without one: placement, precision, and nothing that makes the host wait.

The meta device has shapes and no values, so whatever asks a tensor for its value fails on it.
"""

from itertools import product

import numpy as np
import pytest
import torch
from checkpoints import tiny_clip
from problems import NAMES, features
from torch.utils._python_dispatch import TorchDispatchMode

from dspt import learners, losses, train
from dspt.backbone.checkpoint import open_checkpoint
from dspt.backbone.text import TextTower
from dspt.config import Config
from dspt.errors import InputError
from dspt.methods import METHODS
from dspt.methods.method import LossMethod
from dspt.pipeline import open_text_tower
from dspt.sgd import SGD

# What copies a value from the device to the host, and so waits for all that was asked of it.
WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "unique")

# Methods that look at the logits of all samples do so before the first step; a loss alone never does.
LOSSES_ALONE = [name for name, method in METHODS.items() if issubclass(method, LossMethod)]
TRAINED = [name for name, method in METHODS.items() if method.trains]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return open_checkpoint(tiny_clip(tmp_path_factory.mktemp("clip"), text_only=True))


def problem(n=96):
    x, y = features(n, 1)
    return train.Problem(NAMES, x, y, y)


class Waits(TorchDispatchMode):
    """Counts the operations that make the host wait."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += any(word in str(operation) for word in WAITS)
        return operation(*args, **(kwargs or {}))


def test_a_wait_would_be_counted():
    with Waits() as waits:
        torch.ones(3).sum().item()
    assert waits.count == 1


@pytest.mark.parametrize("learner", ["prompt", "prototypes"])
@pytest.mark.parametrize("method", TRAINED)
def test_no_step_makes_the_host_wait(checkpoint, method, learner):
    config = Config(method=method, learner=learner, epochs=1, batch_size=4)
    made = learners.make(NAMES, config, TextTower(checkpoint))
    seen = []
    with Waits() as waits:
        steps = train.fit(
            problem(), config, made, train.start(made), lambda *_: seen.append(waits.count)
        )
        next(steps)
    assert len(seen) >= 3
    assert len(set(seen)) == 1, "the count grew from step to step"


@pytest.mark.parametrize("name", losses.names())
def test_every_loss_and_the_tower_run_without_values(checkpoint, name):
    """Forward, backward and an update, placed on another device than the host's."""
    tower = TextTower(checkpoint, "meta")
    learner = learners.make(NAMES, Config(), tower)
    learnt = {k: v.to("meta").requires_grad_() for k, v in learner.start().items()}
    optimizer = SGD(learnt, 0.9, 5e-4, {})
    logits = learner.logits(torch.empty(8, 16, device="meta"), learnt)
    loss = losses.get(name)(
        logits, torch.empty(8, dtype=torch.int64, device="meta"), "none", validate=False
    )
    loss.mean().backward()
    assert loss.shape == (8,)
    assert learnt["context"].grad.device.type == "meta"
    optimizer.step(0.1)
    assert optimizer.velocity["context"].device.type == "meta"


@pytest.mark.parametrize("method", LOSSES_ALONE)
def test_a_whole_epoch_asks_for_no_value_before_its_end(checkpoint, method):
    config = Config(method=method, epochs=1, batch_size=16)
    learner = learners.make(NAMES, config, TextTower(checkpoint, "meta"))
    done = []
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
        list(train.fit(problem(), config, learner, train.start(learner), lambda *a: done.append(a)))
    assert len(done) == 96 // 16


def test_batches_go_to_a_gpu_through_pinned_memory_and_nobody_waits(monkeypatch):
    class Host:
        pinned = False

        def pin_memory(self):
            self.pinned = True
            return self

        def to(self, device, non_blocking=False):
            return device.type, self.pinned, non_blocking

    monkeypatch.setattr(torch, "from_numpy", lambda values: Host())
    assert train._sent(np.arange(3), torch.device("cuda")) == ("cuda", True, True)
    assert train._sent(np.arange(3), torch.device("cpu")) == ("cpu", False, False)


@pytest.mark.parametrize("views", [0, 3])
def test_features_on_the_device_are_those_of_the_host(views, monkeypatch):
    x = np.random.RandomState(0).randn(*((20, views, 4) if views else (20, 4))).astype(np.float32)
    cpu, rows = torch.device("cpu"), np.array([3, 0, 19, 3])
    host = train._one_view(x, train.Stream(1, "view", 0), cpu)(rows)
    resident = train._one_view(torch.from_numpy(x), train.Stream(1, "view", 0), cpu)(rows)
    assert torch.equal(host, resident)
    assert isinstance(train._placed(x, cpu), np.ndarray)
    assert train._placed(x, torch.device("meta")).device.type == "meta"
    monkeypatch.setattr(train, "_RESIDENT", x.nbytes - 1)
    assert isinstance(train._placed(x, torch.device("meta")), np.ndarray)


class TestLowPrecision:
    def both(self, checkpoint, memory_limit=2**31):
        found = []
        for dtype in (torch.float32, torch.bfloat16):
            tower = TextTower(checkpoint, "cpu", memory_limit, dtype)
            learner = learners.make(NAMES, Config(), tower)
            context = learner.start()["context"].requires_grad_()
            prototypes = learner.prototypes({"context": context})
            weights = torch.randn(prototypes.shape, generator=torch.Generator().manual_seed(0))
            (prototypes * weights).sum().backward()
            found.append((prototypes.detach(), context.grad))
        return found

    @pytest.mark.parametrize("memory_limit", [2**31, 1])
    def test_features_and_gradient_are_near_those_of_float32(self, checkpoint, memory_limit):
        (exact, exact_gradient), (low, low_gradient) = self.both(checkpoint, memory_limit)
        assert not torch.equal(exact, low)
        assert (exact - low).abs().max() < 0.02
        cosine = torch.nn.functional.cosine_similarity(
            exact_gradient.flatten(), low_gradient.flatten(), dim=0
        )
        assert cosine > 0.99

    def test_the_gradients_of_many_chunks_are_summed_in_float32(self, checkpoint, monkeypatch):
        """In bfloat16, a sum of hundreds of alike parts would lose most of the later ones."""
        monkeypatch.setattr("dspt.backbone.text._BLOCK_ROWS", 1)  # a block for each name
        words = ["cat", "dog", "owl", "fox"]
        names = [f"{a} {b} {c} {d}" for a in words for b in words for c in words for d in words]
        found = {}
        for dtype, limit in product((torch.float32, torch.bfloat16), (2**31, 1)):
            tower = TextTower(checkpoint, "cpu", limit, dtype)
            learner = learners.make(names, Config(), tower)
            context = learner.start()["context"].requires_grad_()
            prototypes = learner.prototypes({"context": context})
            (prototypes @ torch.ones(prototypes.shape[1])).sum().backward()
            found[dtype, limit] = context.grad
        exact = found[torch.float32, 2**31]
        whole, chunks = (
            (found[torch.bfloat16, limit] - exact).norm() / exact.norm() for limit in (2**31, 1)
        )
        assert chunks < 1.5 * whole, (whole, chunks)

    def test_context_features_and_gradient_stay_in_float32(self, checkpoint):
        _, (low, gradient) = self.both(checkpoint)
        assert low.dtype == gradient.dtype == torch.float32
        assert low.norm(dim=1).sub(1).abs().max() < 1e-5

    def test_it_is_refused_on_the_cpu(self, checkpoint):
        with pytest.raises(InputError, match="precision bfloat16: it is for GPUs"):
            open_text_tower(Config(device="cpu", precision="bfloat16"), checkpoint)
