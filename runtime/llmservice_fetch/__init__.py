"""Fetches models from hubs and buckets into a cache that pods share: one download, resumed and verified, with progress.

The cache has huggingface_hub's layout, so that other programs can use it. Files are stored by this package, because
huggingface_hub does not resume a file after a kill (each attempt has a temporary file of its own).
"""
