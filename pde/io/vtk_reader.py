"""Cell data of VTK's XML grids with axes, `.vti` (equal cells) and `.vtr` (any widths)."""

from __future__ import annotations

import base64
import binascii
import xml.etree.ElementTree as ET
import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np

from ..errors import FileContentError, PdeError
from ..grid import Array, Grid

_TYPES = {
    "Float64": "f8", "Float32": "f4", "Int64": "i8", "Int32": "i4", "Int16": "i2", "Int8": "i1",
    "UInt64": "u8", "UInt32": "u4", "UInt16": "u2", "UInt8": "u1",
}  # fmt: skip


def read_vtk(path: Path) -> tuple[Grid, dict[str, Array]]:
    """The grid and its scalar cell data `[ny, nx]` by name.

    Inline and appended data, as text, base64 or raw bytes, plain or compressed by zlib, are read.

    Raises:
        FileContentError: Not such a file, one that is cut short, or a grid of more than one layer.
    """
    try:
        return _read(path)
    except PdeError:
        raise
    except (
        ET.ParseError, KeyError, IndexError, ValueError, TypeError, zlib.error, binascii.Error,
    ) as error:  # fmt: skip
        raise FileContentError(
            f"{path} is cut short or no VTK image or rectilinear grid in XML ({error!r})"
        ) from error


def _read(path: Path) -> tuple[Grid, dict[str, Array]]:
    content = path.read_bytes()
    start = content.find(b"<AppendedData")
    appended = b""
    if start >= 0:  # raw bytes are not XML
        appended = content[content.index(b"_", start) + 1 :]
        raw = b'encoding="raw"' in content[start : content.index(b">", start)]
        end = appended.rindex(b"</AppendedData>")
        appended = appended[:end] if raw else appended[:end].strip()
        content = content[:start] + b"</VTKFile>"
    else:
        raw = False
    root = ET.fromstring(content)
    decode = _Decoder(root, appended, raw)
    element = root.find(root.attrib["type"])
    piece = None if element is None else element.find("Piece")
    if element is None or piece is None or element.tag not in ("ImageData", "RectilinearGrid"):
        raise FileContentError(f"{path} is {root.get('type')}, expected ImageData, RectilinearGrid")
    extent = [int(word) for word in piece.attrib["Extent"].split()]
    nx, ny, nz = (extent[i + 1] - extent[i] for i in (0, 2, 4))
    if element.attrib["WholeExtent"].split() != piece.attrib["Extent"].split():
        raise FileContentError(f"{path} is in pieces: merge them")
    if nz > 1:
        raise FileContentError(f"{path} has {nz} layers of cells, expected one: extract a layer")
    if element.tag == "ImageData":
        hx, hy = (float(word) for word in element.attrib["Spacing"].split()[:2])
        grid = Grid(nx, ny, lx=nx * hx, ly=ny * hy)
        x, y = (float(word) for word in element.get("Origin", "0 0 0").split()[:2])
        x, y = x + extent[0] * hx, y + extent[2] * hy
    else:
        lines = [decode(array) for array in piece.iterfind("Coordinates/DataArray")]
        grid = Grid.of_spacing(np.diff(lines[0]), np.diff(lines[1]))
        x, y = lines[0][0], lines[1][0]
    if (x, y) != (0, 0):  # in which the places of wells count
        raise FileContentError(f"{path} begins at ({x:g}, {y:g}), expected (0, 0): move it there")
    arrays, vectors = {}, []
    for array in piece.iterfind("CellData/DataArray"):
        if array.get("NumberOfComponents", "1") != "1":
            vectors.append(array.attrib["Name"])
        else:
            values = decode(array)
            if values.size != nx * ny:
                raise FileContentError(
                    f"{path}: {values.size} values of {array.get('Name')} on {nx} x {ny} cells"
                )
            arrays[array.attrib["Name"]] = values.reshape(ny, nx)
    if vectors and not arrays:
        raise FileContentError(
            f"{path} has vectors only ({', '.join(vectors)}), expected an array of one component: "
            "save the components as two fields [2, ny, nx] of a .npy file"
        )
    return grid, arrays


class _Decoder:
    """Turns `DataArray` elements into arrays."""

    def __init__(self, root: ET.Element, appended: bytes, raw: bool) -> None:
        self._order = "<" if root.get("byte_order", "LittleEndian") == "LittleEndian" else ">"
        self._header = np.dtype(self._order + _TYPES[root.get("header_type", "UInt32")])
        self._compressed = root.get("compressor") is not None
        if self._compressed and root.get("compressor") != "vtkZLibDataCompressor":
            raise FileContentError(f"compressed by {root.get('compressor')}; save it without")
        self._appended, self._raw = appended, raw

    def __call__(self, array: ET.Element) -> Array:
        dtype = np.dtype(self._order + _TYPES[array.attrib["type"]])
        form = array.attrib["format"]
        if form == "ascii":
            return np.array((array.text or "").split(), dtype=np.float64)
        if form == "appended":
            content = self._appended[int(array.attrib["offset"]) :]
            data = self._bytes(content, self._raw)
        else:
            data = self._bytes((array.text or "").strip().encode(), raw=False)
        return np.frombuffer(data, dtype).astype(np.float64)

    def _bytes(self, content: bytes, raw: bool) -> bytes:
        """The bytes behind a header of one number, or of blocks' sizes if they are compressed."""
        size = self._header.itemsize
        if not self._compressed:
            if raw:
                (count,) = np.frombuffer(content[:size], self._header)
                return content[size : size + int(count)]
            (count,) = np.frombuffer(_decoded(content, size), self._header)
            return _decoded(content, size + int(count))[size:]
        numbers = content[:size] if raw else _decoded(content, size)
        (blocks,) = np.frombuffer(numbers, self._header)
        head = size * (3 + int(blocks))
        header = content[:head] if raw else _decoded(content, head)
        sizes = [int(n) for n in np.frombuffer(header, self._header)[3:]]
        rest = content[head:] if raw else content[4 * -(-head // 3) :]
        body = rest if raw else _decoded(rest, sum(sizes))
        ends = np.cumsum([0, *sizes])
        return b"".join(zlib.decompress(body[a:b]) for a, b in pairwise(ends))


def _decoded(text: bytes, count: int) -> bytes:
    """The first bytes of base64 text; four characters carry three bytes."""
    return base64.b64decode(text[: 4 * -(-count // 3)])[:count]
