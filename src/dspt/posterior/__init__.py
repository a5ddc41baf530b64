"""What is true of each label: a posterior over classes, the noise rate with its error, the transition.

- model.py: the posterior, and the door to it; evidence.py: how it is found
- samples.py: what is computed from some rows, here or by workers, of which evidence.py makes sums
- discriminant.py: what the features say; transition.py: what becomes of true labels
- mixture.py: how much each witness counts
- noise_rate.py: how many labels are wrong, with an error
"""

from dspt.posterior.model import Posterior, label_likelihood, label_posterior

__all__ = ["Posterior", "label_likelihood", "label_posterior"]
