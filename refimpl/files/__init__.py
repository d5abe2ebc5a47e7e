"""Reading what others wrote: checkpoints, tokenizers, chat templates, and what can be wrong with each.

It follows no chapter. Host code: nothing here is an operation.
"""
