"""Images encoded once, kept on disk, memory-mapped.

- encoder.py: the features of images, those that are missing computed
- contents.py: an image known by its bytes
- decoding.py: images opened ahead of the tower
- feeder.py: the tower, which computes meanwhile
- shards.py: the same by many workers
- packs.py: features on disk
"""

from dspt.features.encoder import BadImages, Encoder, default_cache, embed, encode, stream

__all__ = ["BadImages", "Encoder", "default_cache", "embed", "encode", "stream"]
