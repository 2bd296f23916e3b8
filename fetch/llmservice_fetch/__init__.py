"""Models from hubs and buckets into a cache that pods share: one download, resumed, verified, told of as it goes.

Standard library only, like the rest: huggingface_hub no longer resumes a file after a kill (each try has a temporary
file of its own), its errors differ between the versions that vLLM images carry, and boto3 is in none of them.
The cache has huggingface_hub's own layout, so that every other program finds in it what was fetched here.
"""
