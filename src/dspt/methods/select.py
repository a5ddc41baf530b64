"""Sample selection: what the prompt does not predict itself is taken for wrong and left out."""

from dataclasses import dataclass

from dspt.methods.method import Epoch, Method, Phase, loss_of


@dataclass(frozen=True)
class Select(Method):
    """Cross-entropy on the samples whose given label is the predicted class, chosen anew each epoch."""

    name = "select"
    formula = "CE where argmax z = y"
    source = "the DSPT paper, ICML 2026"

    def plan(self, epoch: Epoch) -> list[Phase]:
        """Return one phase with the samples that agree with the prompt as it is now."""
        agrees = (epoch.logits().argmax(1) == epoch.labels).nonzero()[:, 0]
        return [Phase(agrees.cpu().numpy(), epoch.labels[agrees], loss_of("ce"))]
