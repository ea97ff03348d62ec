"""A YAML file is refused that says a thing twice, or that grows when its anchors are expanded."""

from __future__ import annotations

from pathlib import Path

import yaml

_LARGEST = 100_000  # values of a configuration, anchors expanded


def check_yaml(path: Path) -> None:
    """Check a file before it is parsed; the time is linear in its length.

    Raises:
        ValueError: If it is no mapping, a key stands twice in one, or anchors expand to too much.
        yaml.YAMLError: If it is not YAML.
    """
    with path.open() as file:
        root = yaml.compose(file, Loader=yaml.SafeLoader)  # names the file in its errors
    if root is not None and not isinstance(root, yaml.MappingNode):
        raise ValueError(
            f"{path} is no configuration, which gives values to names, as 'name: value'"
        )
    if root is not None and _size(path, root, {}) > _LARGEST:
        raise ValueError(f"{path}: its anchors expand to more than {_LARGEST} values")


def _size(path: Path, node: yaml.Node, known: dict[int, int]) -> int:
    """Return the number of values below a node, each anchor counted where it is used."""
    if id(node) in known:
        return known[id(node)]
    known[id(node)] = _LARGEST + 1  # of an anchor within itself
    size = 1
    if isinstance(node, yaml.MappingNode):
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = next((key for i, key in enumerate(keys) if key in keys[:i] and key != "<<"), None)
        if twice is not None:
            line = node.start_mark.line + 1
            raise ValueError(f"{path}, line {line}: {twice!r} stands twice in this mapping")
        size += sum(_size(path, value, known) for _, value in node.value)
    elif isinstance(node, yaml.SequenceNode):
        size += sum(_size(path, value, known) for value in node.value)
    known[id(node)] = size
    return size
