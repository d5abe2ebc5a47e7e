"""Reading what others wrote: checkpoints, tokenizers, chat templates. Host code; nothing here has a twin."""
