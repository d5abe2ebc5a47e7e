"""What a language model is made of (Inference Engineering, 2.2): from token ids to logits, from logits to a token, from
tokens to text; weights are floats, or blocks of small integers.
"""
