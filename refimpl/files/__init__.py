"""Reading what others wrote: checkpoints, tokenizers, chat templates. Host code; nothing here has a twin."""

__all__: list[str] = []
