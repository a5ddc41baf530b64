"""Label noise: true labels become given labels, by a rule or from a file. Nothing else may change a label.

- corruption.py: the rules, and `NoiseSpec`, a rule that can be written down
- instance.py: noise that depends on the image
- similar.py: which classes and images are alike
- labelfiles.py: label files, ours, which name their images, and other people's
"""

from dspt.noise.corruption import NoiseSpec, checked_transition, corrupt, parse, transition_matrix
from dspt.noise.labelfiles import read_labels, read_split, write_labels, write_split

__all__ = [
    "NoiseSpec",
    "checked_transition",
    "corrupt",
    "parse",
    "read_labels",
    "read_split",
    "transition_matrix",
    "write_labels",
    "write_split",
]
