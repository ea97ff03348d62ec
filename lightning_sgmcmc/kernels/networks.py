"""Small fully connected networks under many draws, and averages over draws.

Between two layers of a narrow network torch writes its activations and reads them again, several
times where there are biases, activation functions and a softmax; here some examples go through
all layers while their activations stay in a core's first cache. The exponential is a polynomial P
of least error at Chebyshev's points,

    e^r = 1 + r + r^2 P(r),    r in [-log(2) / 2, log(2) / 2]

whose coefficients, rounded to float32, leave an error of 1e-8 of the value.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightning_sgmcmc.kernels.compiler import (
    at,
    entry,
    floats,
    inline,
    int64s,
    loop,
    numbers,
    share,
    task,
    thread,
)
from lightning_sgmcmc.kernels.normals import log
from lightning_sgmcmc.kernels.threads import CHUNK, Column, run

#: What follows a layer, by the number that the loops know it by.
STEPS = ("identity", "relu", "sigmoid", "tanh", "silu", "softmax", "log_softmax")
_RELU, _SIGMOID, _TANH, _SILU, _SOFTMAX, _LOG_SOFTMAX = range(1, 7)

#: Examples that go through all layers together.
TILE = 256
# Draws under which they do so, one after another, in one task.
_DRAWS = 64
# Numbers that say what a layer is.
_WORDS = 5

#: Coefficients of P, the constant first.
EXP = (0.5, 0.16666578, 0.041666556, 0.0083631733, 0.0013926176)

_E = tuple(np.float32(c) for c in EXP)
_ZERO, _ONE, _TWO = np.float32(0), np.float32(1), np.float32(2)
_LOG2_E = np.float32(1 / math.log(2))
# log 2 as a number of few bits, which its multiples by exponents keep, and the rest.
_LOG2_HIGH = np.float32(0.693145751953125)
_LOG2_LOW = np.float32(math.log(2) - 0.693145751953125)
# Adding and taking away 1.5 * 2^23 rounds to an integer.
_ROUND = np.float32(12582912)
_LOWEST, _HIGHEST = np.float32(-87), np.float32(88)
_BIAS, _MANTISSA_BITS = 127, 23


class Layer(NamedTuple):
    """One layer under k draws.

    Args:
        weight: [k, outputs, inputs], float32.
        bias: [k, outputs], or None.
        step: What follows it, one of :data:`STEPS`.
    """

    weight: Tensor
    bias: Tensor | None
    step: str


@inline
def exp(x):  # type: ignore[no-untyped-def]
    """Return e^x of a float32 in [-87, 88], of the nearer end elsewhere, and NaN of NaN."""
    x = _LOWEST if x < _LOWEST else x
    x = _HIGHEST if x > _HIGHEST else x
    n = (x * _LOG2_E + _ROUND) - _ROUND
    r = (x - n * _LOG2_HIGH) - n * _LOG2_LOW
    p = _E[0] + r * (_E[1] + r * (_E[2] + r * (_E[3] + r * _E[4])))
    scale = np.int32((np.int32(n) + _BIAS) << _MANTISSA_BITS).view(np.float32)
    return (_ONE + (r + r * r * p)) * scale


@inline
def _row(address, number, width, n):  # type: ignore[no-untyped-def]
    """Return the first n numbers of a row of [rows, width] at an address."""
    return floats(address + 4 * number * width, n)


@loop
def _four_outputs(weight, i, x, inputs, p, q, r, s):  # type: ignore[no-untyped-def]
    """Add rows i to i + 3 of W x to p, q, r and s: what is read of x [inputs, TILE] serves all."""
    n, whole = len(p), inputs // 4 * 4
    for j in range(0, whole, 4):
        a, b = _row(x, j, TILE, n), _row(x, j + 1, TILE, n)
        c, d = _row(x, j + 2, TILE, n), _row(x, j + 3, TILE, n)
        k = i * inputs + j
        pa, pb, pc, pd = weight[k], weight[k + 1], weight[k + 2], weight[k + 3]
        k += inputs
        qa, qb, qc, qd = weight[k], weight[k + 1], weight[k + 2], weight[k + 3]
        k += inputs
        ra, rb, rc, rd = weight[k], weight[k + 1], weight[k + 2], weight[k + 3]
        k += inputs
        sa, sb, sc, sd = weight[k], weight[k + 1], weight[k + 2], weight[k + 3]
        for t in range(n):
            p[t] += pa * a[t] + pb * b[t] + pc * c[t] + pd * d[t]
            q[t] += qa * a[t] + qb * b[t] + qc * c[t] + qd * d[t]
            r[t] += ra * a[t] + rb * b[t] + rc * c[t] + rd * d[t]
            s[t] += sa * a[t] + sb * b[t] + sc * c[t] + sd * d[t]
    for j in range(whole, inputs):
        _add(p, weight[i * inputs + j], _row(x, j, TILE, n))
        _add(q, weight[(i + 1) * inputs + j], _row(x, j, TILE, n))
        _add(r, weight[(i + 2) * inputs + j], _row(x, j, TILE, n))
        _add(s, weight[(i + 3) * inputs + j], _row(x, j, TILE, n))


@loop
def _two_outputs(weight, i, x, inputs, p, q):  # type: ignore[no-untyped-def]
    """Add rows i and i + 1 of W x to p and q."""
    n, whole = len(p), inputs // 4 * 4
    for j in range(0, whole, 4):
        a, b = _row(x, j, TILE, n), _row(x, j + 1, TILE, n)
        c, d = _row(x, j + 2, TILE, n), _row(x, j + 3, TILE, n)
        k = i * inputs + j
        pa, pb, pc, pd = weight[k], weight[k + 1], weight[k + 2], weight[k + 3]
        k += inputs
        qa, qb, qc, qd = weight[k], weight[k + 1], weight[k + 2], weight[k + 3]
        for t in range(n):
            p[t] += pa * a[t] + pb * b[t] + pc * c[t] + pd * d[t]
            q[t] += qa * a[t] + qb * b[t] + qc * c[t] + qd * d[t]
    for j in range(whole, inputs):
        _add(p, weight[i * inputs + j], _row(x, j, TILE, n))
        _add(q, weight[(i + 1) * inputs + j], _row(x, j, TILE, n))


@loop
def _add(p, weight, x):  # type: ignore[no-untyped-def]
    for t in range(len(p)):
        p[t] += weight * x[t]


@loop
def _linear(weight, bias, biased, x, inputs, out, outputs, width, n):  # type: ignore[no-untyped-def]
    """Leave W x + b of x [inputs, TILE] in [outputs, width], the first n of each row."""
    for i in range(outputs):
        p, b = _row(out, i, width, n), bias[i] if biased else _ZERO
        for t in range(n):
            p[t] = b
    fours = outputs // 4 * 4
    for i in range(0, fours, 4):
        p, q = _row(out, i, width, n), _row(out, i + 1, width, n)
        r, s = _row(out, i + 2, width, n), _row(out, i + 3, width, n)
        _four_outputs(weight, i, x, inputs, p, q, r, s)
    twos = outputs // 2 * 2
    for i in range(fours, twos, 2):
        _two_outputs(weight, i, x, inputs, _row(out, i, width, n), _row(out, i + 1, width, n))
    for i in range(twos, outputs):
        for j in range(inputs):
            _add(_row(out, i, width, n), weight[i * inputs + j], _row(x, j, TILE, n))


@loop
def _activate(step, p):  # type: ignore[no-untyped-def]
    n = len(p)
    if step == _RELU:
        for t in range(n):
            p[t] = _ZERO if p[t] < _ZERO else p[t]  # NaN stays
    elif step == _SIGMOID:
        for t in range(n):
            p[t] = _ONE / (_ONE + exp(-p[t]))
    elif step == _TANH:
        for t in range(n):
            p[t] = _ONE - _TWO / (_ONE + exp(_TWO * p[t]))
    elif step == _SILU:
        for t in range(n):
            p[t] = p[t] / (_ONE + exp(-p[t]))


@loop
def _normalise(step, out, outputs, width, top, total):  # type: ignore[no-untyped-def]
    """Take softmax or its logarithm over the rows."""
    n = len(top)
    for t in range(n):
        top[t] = floats(out, n)[t]
        total[t] = _ZERO
    for i in range(1, outputs):
        p = _row(out, i, width, n)
        for t in range(n):
            top[t] = max(top[t], p[t])
    for i in range(outputs):
        p = _row(out, i, width, n)
        for t in range(n):
            p[t] -= top[t]
            e = exp(p[t])
            total[t] += e
            if step == _SOFTMAX:
                p[t] = e
    if step == _SOFTMAX:
        for t in range(n):
            total[t] = _ONE / total[t]
    else:
        for t in range(n):
            total[t] = log(total[t])
    for i in range(outputs):
        p = _row(out, i, width, n)
        for t in range(n):
            p[t] = p[t] * total[t] if step == _SOFTMAX else p[t] - total[t]


@loop
def _transpose(x, inputs, n, out):  # type: ignore[no-untyped-def]
    """Leave x [n, inputs] in [inputs, TILE]."""
    for t in range(n):
        row = _row(x, t, inputs, inputs)
        for j in range(inputs):
            floats(out + 4 * (j * TILE + t), 1)[0] = row[j]


@loop
def _forward(layers, draw, x, first, second, out, width, n):  # type: ignore[no-untyped-def]
    """Take n examples, x [inputs, TILE], through all layers under a draw.

    What the layers compute goes to the first and the second piece of working memory by turns, the
    last one's to the first n columns of ``out`` [outputs, width].
    """
    count = len(layers) // _WORDS
    for k in range(count):
        outputs, inputs, step = (
            layers[k * _WORDS],
            layers[k * _WORDS + 1],
            layers[k * _WORDS + 4],
        )
        weight = floats(layers[k * _WORDS + 2] + 4 * draw * outputs * inputs, outputs * inputs)
        biased = layers[k * _WORDS + 3] != 0
        bias = floats(layers[k * _WORDS + 3] + 4 * draw * outputs, outputs)
        last = k == count - 1
        y, row = (out, width) if last else (first if k % 2 == 0 else second, TILE)
        _linear(weight, bias, biased, x, inputs, y, outputs, row, n)
        if step >= _SOFTMAX:
            free = second if k % 2 == 0 else first
            _normalise(step, y, outputs, row, floats(free, n), _row(free, 1, TILE, n))
        else:
            for i in range(outputs):
                _activate(step, _row(y, i, row, n))
        x = y


@entry
def _network(data):  # type: ignore[no-untyped-def]
    shared = numbers(data)
    count, draws, examples = np.int64(shared[0]), np.int64(shared[1]), np.int64(shared[2])
    inputs, outputs, widest = np.int64(shared[3]), np.int64(shared[4]), np.int64(shared[5])
    groups = -(-draws // _DRAWS)
    begin, end = share(data)
    for k in range(begin, end):
        w = task(data, k)
        tile, group = at(data, w, 0) // groups, at(data, w, 0) % groups
        layers = int64s(at(data, w, 1), count * _WORDS)
        x = at(data, w, 2) + 4 * thread(data) * (inputs + 2 * widest) * TILE
        first = x + 4 * inputs * TILE
        second = first + 4 * widest * TILE
        n = min(TILE, examples - tile * TILE)
        _transpose(at(data, w, 3) + 4 * tile * TILE * inputs, inputs, n, x)
        for draw in range(group * _DRAWS, min(draws, (group + 1) * _DRAWS)):
            out = at(data, w, 4) + 4 * (draw * outputs * examples + tile * TILE)
            _forward(layers, draw, x, first, second, out, examples, n)


def network(layers: Sequence[Layer], x: Tensor) -> Tensor:
    """Evaluate a fully connected network under k draws.

    Args:
        layers: From the inputs to the outputs.
        x: [b, inputs], float32, on the CPU.

    Returns:
        [k, b, outputs], in memory [k, outputs, b].
    """
    x = x.contiguous()
    layers = [
        Layer(w.contiguous(), None if b is None else b.contiguous(), step) for w, b, step in layers
    ]
    (examples, inputs), (draws, outputs) = x.shape, layers[-1].weight.shape[:2]
    working = x.new_empty(working_numbers([tuple(layer.weight.shape[1:]) for layer in layers]))
    out = x.new_empty(draws, outputs, examples)
    words = array("q")
    for weight, bias, step in layers:
        address = 0 if bias is None else bias.data_ptr()
        words.extend((*weight.shape[1:], weight.data_ptr(), address, STEPS.index(step)))
    # A task's number in place of where it begins; all else begins at the same place for all.
    columns = [Column((0,), 1, narrow=True), Column((words.buffer_info()[0],), 0)]
    columns += [Column((tensor.data_ptr(),), 0) for tensor in (working, x, out)]
    run(
        _network,
        (-(-examples // TILE) * -(-draws // _DRAWS),),
        columns,
        (len(layers), draws, examples, inputs, outputs, _widest([len(w[0]) for w, *_ in layers])),
        sizes=(CHUNK,),
    )
    return out.mT


def working_numbers(shapes: Sequence[tuple[int, ...]]) -> int:
    """Return how many numbers of working memory a network needs.

    Args:
        shapes: (outputs, inputs) of its layers.
    """
    own = shapes[0][1] + 2 * _widest([outputs for outputs, _ in shapes])
    return torch.get_num_threads() * own * TILE


def _widest(outputs: Sequence[int]) -> int:
    return max(2, *outputs)


@loop
def _moments_loop(f, rows, length, weights, mean, squares):  # type: ignore[no-untyped-def]
    n = len(mean)
    for i in range(n):
        mean[i] = _ZERO
        squares[i] = _ZERO
    total = _ZERO
    for k in range(rows):
        w, p = weights[k], _row(f, k, length, n)
        total += w
        for i in range(n):
            mean[i] += w * p[i]
    for i in range(n):
        mean[i] /= total
    for k in range(rows):
        w, p = weights[k], _row(f, k, length, n)
        for i in range(n):
            deviation = p[i] - mean[i]
            squares[i] += w * deviation * deviation


@entry
def _moments(data):  # type: ignore[no-untyped-def]
    shared = numbers(data)
    rows, length = np.int64(shared[0]), np.int64(shared[1])
    begin, end = share(data)
    for k in range(begin, end):
        w = task(data, k)
        weights = floats(at(data, w, 1), rows)
        mean, squares = floats(at(data, w, 2), w[0]), floats(at(data, w, 3), w[0])
        _moments_loop(at(data, w, 0), rows, length, weights, mean, squares)


def moments(weights: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
    """Return sum_k w_k f_k / sum_k w_k and sum_k w_k (f_k - mean)^2.

    Args:
        weights: w, [k], float32.
        f: [k, n], float32, contiguous, on the CPU.
    """
    rows, length = f.shape
    mean, squares = f.new_empty(length), f.new_empty(length)
    columns = [Column((f.data_ptr(),), 4), Column((weights.data_ptr(),), 0)]
    columns += [Column((tensor.data_ptr(),), 4) for tensor in (mean, squares)]
    run(_moments, (length,), columns, (rows, length))
    return mean, squares
