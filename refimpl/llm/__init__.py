"""2.2: language models."""
