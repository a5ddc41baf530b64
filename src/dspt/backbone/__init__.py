"""A CLIP checkpoint as two frozen functions: images to features, prompts to class prototypes."""
