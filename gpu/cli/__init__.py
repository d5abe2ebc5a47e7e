"""The command line in parts: arguments, prompts, output, chat, statistics, verification. Nothing here computes."""

__all__ = ()
