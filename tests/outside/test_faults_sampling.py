"""The fault reports that concern sampling and streamed text."""

import numpy as np

from refimpl.llm.generate import TextStream
from refimpl.llm.sampler import apply_chain, draw, sampling_chain
from tests.outside.faults import load_case


def kept(logits: np.ndarray) -> list[int]:
    return np.flatnonzero(logits > -np.inf).tolist()


def test_sampler_kept_sets():
    case = load_case("sampler_kept_sets")
    for name, logits, k, p in case.inputs["table"]:
        chain = sampling_chain(temperature=1.0, top_k=k, top_p=float(p))
        assert kept(apply_chain(logits, [], [], chain)) == case.expected[name].tolist(), name
        both = (("top_k", k), ("top_p", float(p)))  # as steps too where sampling_chain leaves them out
        assert kept(apply_chain(logits, [], [], both)) == case.expected[name].tolist(), name


def test_sampler_temperature_order():
    case = load_case("sampler_temperature_order")
    for number, settings in enumerate(case.inputs["sets"]):
        (cut,) = settings.keys() - {"temperature"}
        heat, cut_step = ("temperature", settings["temperature"]), (cut, settings[cut])
        for order, chain in (("first", (heat, cut_step)), ("last", (cut_step, heat))):
            wanted = case.expected[f"temperature_{order}_{number}"].tolist()
            assert kept(apply_chain(case.inputs["logits"], [], [], chain)) == wanted
        ours = sampling_chain(**settings)
        assert kept(apply_chain(case.inputs["logits"], [], [], ours)) == case.expected[
            f"temperature_first_{number}"
        ].tolist(), "our order"


def test_sampler_draw_edges():
    case = load_case("sampler_draw_edges")
    drawn = [draw(probs, u) for probs, u in zip(case.inputs["probs"], case.inputs["u"], strict=True)]
    assert drawn == case.expected["index"].tolist()


def test_detokenise_stream():
    case = load_case("detokenise_stream")
    for name, pieces in case.inputs["streams"].items():
        stream, texts = TextStream(), []
        for piece in pieces:
            stream, text = stream.push(piece)
            texts.append(text)
        texts.append(stream.push(b"", final=True)[1])
        assert texts == case.expected[name], name
