"""Ready for a GPU, as far as that can be told without one: placement, precision, and nothing that makes the host wait.

The meta device has shapes and no values, so whatever asks a tensor for its value fails on it.
"""

from itertools import product

import numpy as np
import pytest
import torch
from checkpoints import tiny_clip
from problems import NAMES, features
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dspt import learners, losses, train
from dspt.backbone.checkpoint import open_checkpoint
from dspt.backbone.image import ImageTower
from dspt.backbone.text import TextTower
from dspt.config import Config
from dspt.internal.device import sent
from dspt.internal.errors import InputError
from dspt.learners import learner as seam
from dspt.learners import open_text_tower
from dspt.methods import METHODS
from dspt.methods.method import LossMethod
from dspt.problem import Problem, Task

# What copies a value from the device to the host, and so waits for all that was asked of it: as operations, and as
# the methods of a tensor that on a CPU dispatch none.
WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "unique")
ASKS = {"cpu", "numpy", "__array__", "tolist", "item", "__bool__", "__int__", "__float__"}

# Methods that look at the logits of all samples do so before the first step; a loss alone never does.
LOSSES_ALONE = [name for name, method in METHODS.items() if isinstance(method, LossMethod)]
TRAINED = [name for name, method in METHODS.items() if method.trains]


@pytest.fixture(scope="module")
def checkpoint(text_tower):
    return open_checkpoint(text_tower)


def problem(n=96):
    x, y = features(n, 1)
    return Problem(NAMES, x, y, y)


class Waits(TorchDispatchMode):
    """Counts the operations that make the host wait."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += any(word in str(operation) for word in WAITS)
        # a mask's rows are counted before they can be taken
        self.count += any(
            index.dtype == torch.bool
            for indices in args[1:2]
            if "index" in str(operation) and isinstance(indices, (list, tuple))
            for index in indices
            if index is not None
        )
        return operation(*args, **(kwargs or {}))


class Asks(TorchFunctionMode):
    """Counts the methods that give a tensor's values to the host."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.count += getattr(function, "__name__", "") in ASKS
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: x.cpu(),
        lambda x: x.numpy(),
        lambda x: x.tolist(),
        lambda x: float(x.sum()),
        lambda x: x.any() or None,
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
    ],
)
def test_a_wait_would_be_counted(wait):
    with Waits() as waits, Asks() as asks:
        wait(torch.ones(3))
    assert waits.count + asks.count >= 1


def test_work_alone_is_not_counted():
    with Waits() as waits, Asks() as asks:
        x = torch.ones(3).softmax(0)[torch.tensor([0, 2])]
        x.sum().add(1)
    assert waits.count + asks.count == 0


@pytest.mark.parametrize(
    ("method", "learner", "memory_limit"),
    [
        *((method, "prompt", 2**31) for method in TRAINED),
        ("coop", "prompt", 1),  # chunks that are computed twice
        ("coop", "prototypes", 2**31),
        ("coop", "cocoop", 2**31),
    ],
)
def test_no_step_makes_the_host_wait(checkpoint, method, learner, memory_limit):
    config = Config(method=method, learner=learner, epochs=1, batch_size=4)
    made = learners.make(NAMES, config, TextTower(checkpoint, memory_limit=memory_limit))
    seen = []
    with Waits() as waits, Asks() as asks:
        task = Task.of(problem(), config, made)
        next(train.fit(task, on_step=lambda *_: seen.append(waits.count + asks.count)))
    assert len(seen) >= 3
    assert len(set(seen)) == 1, "the count grew from step to step"


@pytest.mark.parametrize("name", losses.names())
def test_every_loss_and_the_tower_run_without_values(checkpoint, name):
    """Forward, backward and an update, placed on another device than the host's."""
    tower = TextTower(checkpoint, "meta")
    learner = learners.make(NAMES, Config(), tower)
    learnt = {k: v.to("meta").requires_grad_() for k, v in learner.start().items()}
    velocities = [None]
    logits = learner.logits(torch.empty(8, 16, device="meta"), learnt)
    loss = losses.get(name)(logits, torch.empty(8, dtype=torch.int64, device="meta"), "none", validate=False)
    loss.mean().backward()
    assert loss.shape == (8,)
    assert learnt["context"].grad.device.type == "meta"
    train._step(learnt, velocities, 0.1, 0.9, 5e-4)
    assert velocities[0].device.type == "meta"


@pytest.mark.parametrize("method", LOSSES_ALONE)
def test_a_whole_epoch_asks_for_no_value_before_its_end(checkpoint, method):
    config = Config(method=method, epochs=1, batch_size=16)
    learner = learners.make(NAMES, config, TextTower(checkpoint, "meta"))
    done = []
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
        list(train.fit(Task.of(problem(), config, learner), on_step=lambda *a: done.append(a)))
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
    assert sent(np.arange(3), torch.device("cuda")) == ("cuda", True, True)
    assert sent(np.arange(3), torch.device("cpu")) == ("cpu", False, False)


def test_the_image_tower_runs_without_values(tmp_path):
    """From bytes to features, in both precisions; that constants come from the host would not be seen here."""
    for dtype in ("float32", "bfloat16"):
        tower = ImageTower(open_checkpoint(tiny_clip(tmp_path / dtype)), "meta", dtype)
        side = tower.preprocessing.crop
        pixels = sent(np.zeros((2, side, side, 3), np.uint8), "meta")
        features = tower.features(pixels)
        assert features.device.type == "meta"
        assert features.dtype == torch.float32
        assert features.shape == (2, 16)


def test_a_memory_map_is_placed_without_a_warning(tmp_path, recwarn):
    np.save(tmp_path / "x.npy", np.ones((4, 3), np.float32))
    seam._placed(np.load(tmp_path / "x.npy", mmap_mode="r"), torch.device("meta"))
    assert not recwarn.list


@pytest.mark.parametrize("views", [0, 3])
def test_features_on_the_device_are_those_of_the_host(checkpoint, views, monkeypatch):
    x = np.random.RandomState(0).randn(*((20, views, 4) if views else (20, 4))).astype(np.float32)
    cpu, rows = torch.device("cpu"), np.array([3, 0, 19, 3])
    learner = learners.make(NAMES, Config(), TextTower(checkpoint))
    host = learner.inputs(x)(0).learn(rows)
    assert isinstance(seam._placed(x, cpu), np.ndarray)
    assert seam._placed(x, torch.device("meta")).device.type == "meta"
    with monkeypatch.context() as patch:
        patch.setattr(seam, "_placed", lambda x, device: torch.from_numpy(x))
        assert torch.equal(host, learner.inputs(x)(0).learn(rows))
    monkeypatch.setattr(seam, "_RESIDENT", x.nbytes - 1)
    assert isinstance(seam._placed(x, torch.device("meta")), np.ndarray)


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
        cosine = torch.nn.functional.cosine_similarity(exact_gradient.flatten(), low_gradient.flatten(), dim=0)
        assert cosine > 0.99

    def test_the_gradients_of_many_chunks_are_summed_in_float32(self, checkpoint, monkeypatch):
        """In bfloat16, a sum of hundreds of alike parts would lose most of the later ones."""
        monkeypatch.setattr("dspt.backbone.blocks._BLOCK_ROWS", 1)  # a block for each name
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
        whole, chunks = ((found[torch.bfloat16, limit] - exact).norm() / exact.norm() for limit in (2**31, 1))
        assert chunks < 1.5 * whole, (whole, chunks)

    def test_context_features_and_gradient_stay_in_float32(self, checkpoint):
        _, (low, gradient) = self.both(checkpoint)
        assert low.dtype == gradient.dtype == torch.float32
        assert low.norm(dim=1).sub(1).abs().max() < 1e-5

    @pytest.mark.parametrize("instructions", [{}, {"avx2": True}, {"avx512_bf16": True}, {"amx_bf16": True}])
    def test_a_cpu_takes_it_if_it_has_instructions_for_it(self, checkpoint, monkeypatch, instructions):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: instructions)
        config = Config(device="cpu", precision="bfloat16")
        if any("bf16" in name for name in instructions):
            assert open_text_tower(config, checkpoint).dtype == torch.bfloat16
        else:
            with pytest.raises(InputError, match="precision bfloat16: this CPU has no instructions for it"):
                open_text_tower(config, checkpoint)
