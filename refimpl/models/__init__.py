"""Models as data: what a config and the names of a file's tensors mean, and one decoder that runs them all.

The architectures of Inference Engineering, 2.2; each family is one file that maps its names to ours.
"""
