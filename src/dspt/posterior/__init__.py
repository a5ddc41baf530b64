"""What is true of each label: a posterior over classes, the noise rate with its error, the transition.

- model.py: the posterior; discriminant.py: what the features say; transition.py: what becomes of true labels
- noise_rate.py: how many labels are wrong, with an error
"""

from dspt.posterior.model import Posterior, label_likelihood, label_posterior

__all__ = ["Posterior", "label_likelihood", "label_posterior"]
