"""Laws of the causal convolution of videos, and of the autoencoder and the denoiser over it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.basics.conv import conv2d
from refimpl.contract import ContractError
from refimpl.media import operations
from refimpl.media.causal_vae import CausalSpec, causal_shapes, decode_video, encode_video, frames_of
from refimpl.media.conv3d import conv3d
from tests.laws.strategies import seeds

SPEC = CausalSpec(1, 2, (4, 6), 1.0)
SAME = ((1, 1), (1, 1))


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def network(seed):
    return {name: 0.3 * normal(seed + i, *shape) for i, (name, shape) in enumerate(causal_shapes(SPEC).items())}


@given(seeds, st.integers(1, 3), st.integers(1, 9), st.integers(1, 3), st.data())
def test_chunks_with_the_state_are_the_whole(seed, taps, frames, stride, data):
    x, w, b = normal(seed, 2, frames, 4, 3), normal(seed + 1, 3, 2, taps, 3, 3), normal(seed + 2, 3)
    stride = min(stride, taps)
    whole, left = conv3d(x, w, b, stride=(stride, 1, 1), padding=SAME)
    cuts = sorted(data.draw(st.lists(st.integers(0, frames), max_size=3)))
    state, parts = None, []
    for start, end in zip([0, *cuts], [*cuts, frames], strict=True):
        y, state = conv3d(x[:, start:end], w, b, state, stride=(stride, 1, 1), padding=SAME)
        parts.append(y)
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, atol=1e-12)
    assert np.array_equal(state, left)


@given(seeds, st.integers(1, 8), st.integers(0, 7))
def test_no_frame_sees_a_later_one(seed, frames, at):
    x, w = normal(seed, 2, frames, 3, 3), normal(seed + 1, 2, 2, 3, 3, 3)
    changed = x.copy()
    changed[:, at % frames :] += 1
    before, after = (conv3d(each, w, padding=SAME)[0] for each in (x, changed))
    assert np.array_equal(before[:, : at % frames], after[:, : at % frames])


@given(seeds, st.integers(1, 4))
def test_a_kernel_of_one_frame_is_a_convolution_of_pictures(seed, frames):
    x, w, b = normal(seed, 2, frames, 5, 4), normal(seed + 1, 3, 2, 1, 3, 3), normal(seed + 2, 3)
    found, state = conv3d(x, w, b, stride=(1, 2, 1), padding=((0, 1), (1, 1)))
    pictures = [conv2d(x[:, t], w[:, :, 0], b, stride=(2, 1), padding=((0, 1), (1, 1))) for t in range(frames)]
    np.testing.assert_allclose(found, np.stack(pictures, 1), atol=1e-12)
    assert state.shape == (2, 0, 5, 4)


@given(seeds, st.lists(st.integers(1, 3), min_size=1, max_size=4))
def test_a_video_decoded_in_chunks_is_the_video(seed, chunks):
    weights, latent = network(seed), normal(seed, 2, sum(chunks), 2, 2)
    whole = decode_video(latent, weights, SPEC, operations)
    assert whole.shape == (1, frames_of(SPEC, sum(chunks)), 8, 8)
    cache, ends = {}, np.cumsum(chunks)
    pieces = [latent[:, end - n : end] for n, end in zip(chunks, ends, strict=True)]
    parts = [decode_video(piece, weights, SPEC, operations, cache) for piece in pieces]
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, atol=1e-9 * abs(whole).max())


@given(seeds, st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_a_video_encoded_in_chunks_is_its_latent(seed, chunks):
    weights, video = network(seed), normal(seed, 1, sum(chunks), 4, 8)
    whole = encode_video(video, weights, SPEC, operations)
    cache, ends = {}, np.cumsum(chunks)
    pieces = [video[:, end - n : end] for n, end in zip(chunks, ends, strict=True)]
    parts = [encode_video(piece, weights, SPEC, operations, cache) for piece in pieces]
    for ours, truth in zip(zip(*parts, strict=True), whole, strict=True):
        np.testing.assert_allclose(np.concatenate(ours, 1), truth, atol=1e-9 * abs(truth).max())


X, W = np.zeros((2, 3, 4, 4)), np.zeros((3, 2, 3, 3, 3))
BROKEN = [
    (conv3d, "C1", (X[0], W), {}),
    (conv3d, "C1", (X, W[:, :1]), {}),
    (conv3d, "C1", (X[:, :, :0], W), {}),
    (conv3d, "C2", (X, W, np.zeros(2)), {}),
    (conv3d, "C3", (X, W, None, X), {}),
    (conv3d, "C3", (X, W, None, X[:, :2].astype(np.float32)), {}),
    (conv3d, "C3", (X, W, None, X[:, :2, :3]), {}),
    (conv3d, "C4", (X, W), {"stride": (0, 1, 1)}),
    (conv3d, "C4", (X, W), {"stride": (4, 1, 1)}),
    (conv3d, "C4", (X, W), {"padding": ((1, 1), (-1, 1))}),
    (conv3d, "C4", (X[:, :, :2], W), {}),
]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(("op", "label", "arguments", "named"), BROKEN)
def test_constraints(op, label, arguments, named):
    with pytest.raises(ContractError, match=f"^{label}:"):
        op(*arguments, **named)
