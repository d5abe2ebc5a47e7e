"""Faults of tokenizers and templates: wrong pieces, lost blanks, special tokens out of what a user typed."""

from tests.drill.faults import Fault

__all__ = ["WORDS"]

KINDS = "test_fuzzed.py::test_ids_are_the_library_s"


def _fault(name: str, what: str, file: str, old: str, new: str, *checks: str) -> Fault:
    return Fault(name, what, f"refimpl/files/{file}", old, new, tuple(f"tests/{check}" for check in checks))


WORDS = (
    _fault(
        "worst merge first", "pieces are joined from the worst score on", "merges.py", "(-scores[joint], left",
        "(scores[joint], left", f"tokenizer/{KINDS}[llama of GGUF]",
    ),
    _fault(
        "stale merge kept", "a joint is made of pieces that are joined already", "merges.py",
        "len(parts[left]) + len(parts[right]) != len(joint)", "False", f"tokenizer/{KINDS}[llama of GGUF]",
    ),
    _fault(
        "unknown letters cheap", "a letter that is no piece costs too little", "unigram.py", "_UNKNOWN = 10.0",
        "_UNKNOWN = -10.0", "tokenizer/test_pieces.py::test_a_letter_that_is_no_piece_costs_ten_more_than_any",
    ),
    _fault(
        "shortest key replaced", "the normal form replaces the shortest key", "charsmap.py",
        "if unit >> 8 & 1 and", "if value is None and unit >> 8 & 1 and", "tokenizer/test_sentencepiece.py",
    ),
    _fault(
        "cut inside a piece", "text is cut where a piece reaches across", "sentencepiece.py",
        "for at in range(1, len(piece)) if piece[at] == BLANK", "for at in range(0)",
        "tokenizer/test_pieces.py::test_a_piece_may_reach_across_a_blank",
    ),
    _fault(
        "longest word forgotten", "WordPiece takes the first piece that fits, not the longest", "wordpiece.py",
        "ends = range(len(word), begin, -1)", "ends = range(begin + 1, len(word) + 1)",
        f"tokenizer/{KINDS}[bert of GGUF]",
    ),
    _fault(
        "accents kept", "BERT's plain form keeps accents", "wordpiece.py", r'regex.sub(r"\p{Mn}", "", ', "str(",
        f"tokenizer/{KINDS}[bert of GGUF]",
    ),
    _fault(
        "opening blank kept", "a text begins with a blank that is not its own", "vocabulary.py",
        "awaited = self.opening_blank", "awaited = False", "tokenizer/test_pieces.py::test_text_is_the_library_s",
    ),
    _fault(
        "every blank dropped", "blanks between words are lost", "vocabulary.py", "awaited and not piece", "awaited",
        "tokenizer/test_pieces.py::test_text_is_the_library_s",
    ),
    _fault(
        "suffix forgotten", "no [SEP] stands behind a text", "vocabulary.py",
        "*self.encode(text), *self.suffix]", "*self.encode(text)]",
        "tokenizer/test_pieces.py::test_a_prompt_stands_between_what_the_model_expects",
    ),
    _fault(
        "library reads specials", "a special token that a user types is special", "library.py",
        "opened.encode_special_tokens = True", "opened.encode_special_tokens = False",
        "tokenizer/test_pieces.py::test_what_is_typed_stays_text",
    ),
    _fault(
        "special piece spelled", "a unigram model finds a special token in text", "library.py",
        "_UNSPELLED + text if", "text if", "tokenizer/test_pieces.py::test_what_is_typed_stays_text",
    ),
    _fault(
        "tools unveiled", "a special token that a tool spells is special", "chat.py", "**_veil(options, every, mark)",
        "**options", "files/test_chat.py::test_tools_reach_the_template_and_stay_text",
    ),
)  # fmt: skip
