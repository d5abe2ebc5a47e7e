"""Tokenizers as files describe them: a folder, or the metadata of a GGUF file."""

from refimpl.files.tokenizer_gguf import tokenizer_from_gguf
from refimpl.files.tokenizer_json import tokenizer_from_folder
from refimpl.files.vocabulary import Tokenizer

__all__ = ["Tokenizer", "tokenizer_from_folder", "tokenizer_from_gguf"]
