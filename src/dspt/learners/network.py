"""A ResNet trained from scratch on small images: the paper's CIFAR-10 experiment.

No CLIP is in it. It shows what a loss does without the prior knowledge that prompt tuning starts from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from dspt.config import NetworkConfig
from dspt.internal.device import find_device, sent
from dspt.internal.progress import Reporter
from dspt.internal.shards import Features
from dspt.learners import pixels, resnet
from dspt.learners.learner import Classify, Inputs, Learner, Parameters, Reader, Samples


class NetworkLearner(Learner):
    """A whole network; its inputs are images (n, H, W, 3) of bytes, cropped and flipped at random in training."""

    settings = NetworkConfig
    has_clip = False
    has_prototypes = False
    smallest_batch = 2  # batch normalisation makes nothing of a single image
    judged_at_once = 500

    def __init__(self, class_names: Sequence[str], config: NetworkConfig) -> None:
        self.class_names = tuple(class_names)
        self.config = config
        self.device = find_device(config.device)
        self.network = resnet.build(config.model, config.stem, len(class_names))
        self.buffers = frozenset(name for name, _ in self.network.named_buffers())

    def start(self, samples: Samples | None = None) -> Parameters:
        """Return weights that depend on the seed alone, and the running means of batch normalisation.

        Parameters
        ----------
        samples : Samples, optional
            Not looked at.
        """
        return resnet.initial(self.network, self.config.seed)

    def placed(self, parameters: Parameters) -> Parameters:
        """Return a copy on the device, kernels as convolutions are fastest."""
        return {name: resnet.placed(value, self.device) for name, value in parameters.items()}

    def reader(self, reporter: Reporter, cache: Path | None = None, skip_bad: bool = False) -> Reader:
        """Return what reads images as they are.

        Parameters
        ----------
        reporter : Reporter
            Not used.
        cache : Path, optional
            Not used: nothing is encoded.
        skip_bad : bool
            Not used: no image is left out.
        """
        return pixels.PixelReader()

    def inputs(self, train_x: Features) -> Callable[[int], Inputs]:
        """Return, for each epoch, random crops to learn from and whole images to judge by."""
        images = torch.from_numpy(np.asarray(train_x)).to(self.device)

        def of_epoch(epoch: int) -> Inputs:
            crops = pixels.draw(len(train_x), self.config.seed, epoch)

            def whole(rows: np.ndarray) -> Tensor:
                return images[sent(rows, self.device)]

            return Inputs(lambda rows: pixels.cropped(whole(rows), crops[rows]), whole)

        return of_epoch

    def logits(self, inputs: Tensor, parameters: Parameters) -> Tensor:
        """Return the logits; the running means among the parameters move with the batch."""
        self.network.train()
        return self._forward(inputs, parameters)

    def classify(self, parameters: Parameters) -> Classify:
        """Return the network with its running means fixed."""

        @torch.no_grad()
        def logits(images: Tensor) -> Tensor:
            self.network.eval()
            return self._forward(images.to(self.device), parameters)

        return logits

    def learning_rate(self, epoch: int) -> float:
        """Return the rate: a tenth after 40 % of the epochs, a hundredth after 70 %."""
        epochs = self.config.epochs
        drops = (10 * epoch >= 4 * epochs) + (10 * epoch >= 7 * epochs)
        return self.config.lr * 0.1**drops

    def _forward(self, images: Tensor, parameters: Parameters) -> Tensor:
        found: Tensor = functional_call(self.network, parameters, (pixels.normalised(images),)).logits
        return found
