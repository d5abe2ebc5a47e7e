"""Laws of the layers of denoisers, and of tables of positions on several axes; their constraints."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl.basics.conv import conv2d
from refimpl.basics.linear import linear
from refimpl.basics.norm import layer_norm
from refimpl.contract import ContractError, UsageError
from refimpl.llm.position import rope, rope_table
from refimpl.media.adaln import adaln, gated_residual
from refimpl.media.patch import (
    axial_rope_table,
    grid_of,
    grid_positions,
    patchify,
    rope_widths,
    sincos_table_2d,
    sincos_table_3d,
    unpatchify,
)
from refimpl.media.timestep import timestep_embedding, timestep_frequencies
from tests.laws.strategies import DTYPES, assert_near, normal, seeds, sizes

grids = st.sampled_from([((1, 1), (2, 3)), ((3, 2), (1, 2)), ((2, 3, 2), (2, 1, 3)), ((1, 4, 3), (3, 2, 2))])


@given(seeds, st.integers(1, 3), grids, st.booleans())
def test_patches_are_undone_and_keep_every_value(seed, C, grid_and_patch, last):
    grid, patch = grid_and_patch
    x = normal(seed, C, *(n * p for n, p in zip(grid, patch, strict=True)))
    tokens = patchify(x, patch, channels_last=last)
    assert grid_of(x.shape, patch) == grid and tokens.shape == (np.prod(grid), C * np.prod(patch))
    assert np.array_equal(unpatchify(tokens, grid, patch, channels_last=last), x)
    assert np.array_equal(np.sort(tokens, axis=None), np.sort(x, axis=None))
    moved = patchify(x, patch, channels_last=not last).reshape(len(tokens), *((-1, C) if last is False else (C, -1)))
    assert np.array_equal(moved.swapaxes(1, 2).reshape(tokens.shape), tokens)


@given(seeds, sizes, sizes, st.integers(1, 3), st.integers(1, 3))
def test_a_map_of_patches_is_a_convolution_that_steps_by_its_kernel(seed, rows, columns, py, px):
    x, w, b = normal(seed, 2, rows * py, columns * px), normal(seed + 1, 5, 2, py, px), normal(seed + 2, 5)
    image = conv2d(x, w, b, stride=(py, px))
    tokens = linear(patchify(x, (py, px)), w.reshape(5, -1), b)
    assert_near(tokens, image.reshape(5, -1).T, terms=2 * py * px, scale=10.0)


@given(seeds, sizes, sizes, st.booleans())
def test_adaln_is_a_layer_norm_whose_gain_and_bias_are_told(seed, T, D, each):
    x, told = normal(seed, T, D), (T, D) if each else (D,)
    shift, scale = normal(seed + 1, *told), normal(seed + 2, *told)
    wanted = layer_norm(x, np.ones(D), eps=1e-6) * (1 + scale) + shift
    assert_near(adaln(x, shift, scale), wanted, terms=D, scale=20.0)
    assert_near(adaln(3 * x + 7, shift, scale, 9e-6), wanted, terms=10**5, scale=20.0)
    if not each:
        assert_near(layer_norm(x, 1 + scale, shift, 1e-6), adaln(x, shift, scale), terms=D, scale=20.0)


@given(seeds, sizes, sizes)
def test_gated_residual_opens_and_closes(seed, T, D):
    x, y, gate = normal(seed, T, D), normal(seed + 1, T, D), normal(seed + 2, D)
    assert np.array_equal(gated_residual(x, y, np.zeros(D)), x)
    assert np.array_equal(gated_residual(x, y, np.ones(D)), x + y)
    assert np.array_equal(gated_residual(x, y, gate), gated_residual(x, y, np.tile(gate, (T, 1))))
    assert_near(gated_residual(gated_residual(x, y, gate), y, -gate), x, terms=4, scale=20.0)


@given(seeds, st.integers(1, 40), st.booleans(), st.sampled_from([0.0, 0.5]), st.floats(0.1, 1000))
def test_timestep_embedding_is_points_on_circles(seed, half, flip, less, scale):
    t = normal(seed, 5) * 10
    keywords = {"flip_sin_to_cos": flip, "downscale_freq_shift": less, "scale": scale}
    y = timestep_embedding(t, 2 * half, **keywords)
    assert_near(y[:, :half] ** 2 + y[:, half:] ** 2, np.ones((5, half)))
    other = timestep_embedding(t, 2 * half, **keywords | {"flip_sin_to_cos": not flip})
    assert np.array_equal(other, np.concatenate([y[:, half:], y[:, :half]], axis=1))
    odd = timestep_embedding(t, 2 * half + 1, **keywords)
    assert np.array_equal(odd[:, :-1], y) and not odd[:, -1].any()
    assert_near(timestep_embedding(t * scale, 2 * half, **keywords | {"scale": 1.0}), y, terms=10**5, scale=1.0)
    now, next_one = (timestep_embedding(each, 2 * half, downscale_freq_shift=0) for each in (t, t + 1))
    products = (now * next_one).sum(-1)
    assert_near(products, np.full(5, products[0]), terms=100 * half, scale=1.0)  # only the difference shows


def test_frequencies_fall_from_1_to_the_longest_period():
    w = timestep_frequencies(256)
    assert w[0] == 1 and abs(w[-1] * 10000 - 1) < 1e-12 and (np.diff(w) < 0).all()
    assert timestep_frequencies(256, 0.0)[-1] > w[-1]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtype_in_is_dtype_out_with_one_cast(dtype):
    x, told, wide = normal(1, 3, 8).astype(dtype), normal(2, 8).astype(dtype), np.float32
    wide = np.float64 if dtype == np.float64 else np.float32
    for f, arguments in ((adaln, (x, told, told)), (gated_residual, (x, x, told)), (timestep_embedding, (told, 6))):
        y = f(*arguments)
        widened = (a.astype(wide) if isinstance(a, np.ndarray) else a for a in arguments)
        assert y.dtype == dtype and np.array_equal(y, f(*widened).astype(dtype))
    assert patchify(x[None], (1, 2)).dtype == unpatchify(x, (1, 3), (2, 2)).dtype == dtype


def test_tokens_keep_the_order_of_places():
    places = grid_positions((2, 3, 4))
    assert np.array_equal(patchify(np.moveaxis(places.reshape(2, 3, 4, 3), -1, 0) * 1.0, (1, 1, 1)), places)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 4))
def test_sines_of_a_picture_are_a_row_and_a_column(rows, columns, quarter):
    table = sincos_table_2d((rows, columns), 4 * quarter, dtype=np.float64).reshape(rows, columns, -1)
    assert (table[..., : 2 * quarter] == table[:1, :, : 2 * quarter]).all()
    assert (table[..., 2 * quarter :] == table[:, :1, 2 * quarter :]).all()
    assert np.array_equal(sincos_table_2d((columns, rows), 4 * quarter)[:: rows], sincos_table_2d(
        (rows, columns), 4 * quarter)[:columns][:, np.roll(np.arange(4 * quarter), 2 * quarter)])
    larger = sincos_table_2d((2 * rows, 2 * columns), 4 * quarter, base_size=1, dtype=np.float64)
    smaller = sincos_table_2d((rows, columns), 4 * quarter, base_size=1, dtype=np.float64)
    every_other = larger.reshape(2 * rows, 2 * columns, -1)[::2, ::2].reshape(smaller.shape)
    assert_near(every_other, smaller)  # a larger grid lies in the same range


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_sines_of_a_video_are_a_frame_and_a_picture(frames, rows, columns):
    table = sincos_table_3d((frames, rows, columns), 32, dtype=np.float64).reshape(frames, rows * columns, 32)
    assert (table[:, :, :8] == table[:, :1, :8]).all()
    assert np.array_equal(table[frames - 1, :, 8:], sincos_table_2d((rows, columns), 24, dtype=np.float64))


@given(seeds, st.sampled_from([(8, 2), (12, 3), (22, 3), (16, 1)]))
def test_rotations_on_axes_keep_norms_and_differences(seed, head_and_axes):
    H, axes = head_and_axes
    widths, places = rope_widths(H, axes), np.random.default_rng(seed).integers(0, 50, (6, axes))
    assert sum(widths) == H and all(n % 2 == 0 for n in widths) and len(widths) == axes
    q, k = normal(seed, 6, 1, H), normal(seed + 1, 6, 1, H)
    turned = [
        [rope(x, *axial_rope_table(places + moved, widths, dtype=np.float64), interleaved=True) for x in (q, k)]
        for moved in (0, 3)
    ]
    assert_near(np.linalg.norm(turned[0][0], axis=-1), np.linalg.norm(q, axis=-1), terms=H)
    scores = [np.einsum("tnh,snh->ts", *each) for each in turned]
    assert_near(scores[0], scores[1], terms=100 * H, scale=10.0)  # the whole picture moved: nothing changes
    if axes == 1:
        alone = rope_table(places[:, 0], 10000.0 ** (-np.arange(H // 2) / (H / 2)))
        assert np.allclose(axial_rope_table(places, widths), alone, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: sincos_table_2d((2, 2), 6), "a table of two axes has a width that 4 divides, not 6"),
        (lambda: sincos_table_3d((2, 2, 2), 24), "a table of three axes has a width that 16 divides, not 24"),
        (lambda: axial_rope_table(grid_positions((2, 2)), (3, 5)), r"widths \(3, 5\) are not an even one for each"),
        (lambda: axial_rope_table(grid_positions((2, 2)), (4,)), r"widths \(4,\) are not an even one for each"),
    ],
)
def test_tables_that_do_not_fit_are_refused(call, says):
    with pytest.raises(UsageError, match=f"^{says}"):
        call()


def a(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


NO_SIDES = (2, None, (2,), (0, 2), (2, -1), (2.0, 2), "22", (2, 2, 2, 2))
BROKEN = [
    *((patchify, "C1", (a(3, 4, 4), patch), {}) for patch in (*NO_SIDES, (1, 2, 2))),
    *((patchify, "C1", (x, (2, 2)), {}) for x in (a(4, 4), a(1, 2, 4, 4), a())),
    *((patchify, "C2", (a(3, 4, 6), patch), {}) for patch in ((3, 2), (2, 4), (8, 1))),
    (patchify, "C2", (a(3, 3, 4, 4), (2, 2, 2)), {}),
    *((unpatchify, "C1", (a(4, 12), grid, (2, 2)), {}) for grid in (*NO_SIDES, (1, 2, 2))),
    *((unpatchify, "C1", (a(4, 12), (2, 2), patch), {}) for patch in (*NO_SIDES, (1, 2, 2))),
    *((unpatchify, "C2", (x, (2, 2), (2, 2)), {}) for x in (a(5, 12), a(4, 10), a(4, 0), a(48), a(4, 12, 1), a())),
    *((timestep_embedding, "C1", (a(3), dim), more) for dim, more in (
        (1, {}), (0, {}), (-4, {}), (2, {}), (8, {"downscale_freq_shift": 4.0}), (8, {"downscale_freq_shift": np.nan}),
        (8, {"max_period": 0.0}), (8, {"max_period": np.nan}))),
    *((timestep_embedding, "C2", (x, 8), {}) for x in (a(), a(2, 2))),
    *((adaln, "C1", (x, a(4), a(4)), {}) for x in (a(4), a(1, 3, 4), a())),
    *((adaln, "C2", (a(3, 4), shift, scale), {}) for shift, scale in (
        (a(3), a(3)), (a(4), a(3, 4)), (a(1, 4), a(1, 4)), (a(), a()), (a(4, 3), a(4, 3)))),
    *((adaln, "C3", (a(3, 4), a(4), a(4), eps), {}) for eps in (-1e-6, np.nan)),
    *((gated_residual, "C1", (x, y, a(4)), {}) for x, y in ((a(3, 4), a(4)), (a(3, 4), a(2, 4)), (a(4), a(4)))),
    *((gated_residual, "C2", (a(3, 4), a(3, 4), gate), {}) for gate in (a(3), a(1, 4), a(), a(4, 3))),
]  # fmt: skip


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("function", "label", "arguments", "keywords"), BROKEN, ids=[f"{row[0].__name__}-{row[1]}" for row in BROKEN]
)
def test_refused_by_label(function, label, arguments, keywords):
    with pytest.raises(ContractError, match=f"^{label}: "):
        function(*arguments, **keywords)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("dim", [8.0, None, "8"])
def test_a_width_is_a_whole_number(dim):
    with pytest.raises(UsageError, match=r"^dim is a whole number, got "):
        timestep_embedding(a(3), dim)


def test_sizes_that_do_not_divide_are_named():
    with pytest.raises(ContractError, match=r"^C2: patches of \(2, 2\) do not divide the sizes \(7, 8\)$"):
        patchify(a(4, 7, 8), (2, 2))
