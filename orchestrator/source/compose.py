"""The parser's events to nodes, within limits: no recursion, no cycle, no explosion by aliases."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import yaml

from orchestrator.errors import Fault, FaultsError, Position
from orchestrator.source.document import KeyPath, dotted, located
from orchestrator.source.scalars import resolve_plain
from orchestrator.source.syntax import NBSP_FIX, NBSP_MESSAGE

MAX_NODES = 100_000
MAX_DEPTH = 64


@dataclass
class Node:
    """A value: a scalar, a list of nodes, or a map from keys to their position and node.

    `size` counts the nodes in it with aliases expanded, `height` the levels below it.
    """

    value: Any
    position: Position
    size: int = 1
    height: int = 0


@dataclass
class _Frame:
    """A list or map that is being read; a map waits for a key or for the value of one."""

    node: Node
    key: Node | None = None
    keys: dict[str, Position] = field(default_factory=dict)


class Composer:
    """Builds nodes from events and collects faults on the way.

    Args:
        file: name of the file, for messages.
        lines: its lines.
    """

    def __init__(self, file: str, lines: list[str]) -> None:
        self.root: Node | None = None
        self.faults: list[Fault] = []
        self._file, self._lines = file, lines
        self._frames: list[_Frame] = []
        self._anchors: dict[str, Node] = {}
        self._total = 0

    def read(self, events: Iterable[yaml.Event]) -> None:
        """Take in all events of a stream; a second document is a fault and is not read."""
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent) and self.root is not None:
                self.fault(
                    _start(event), "a second document begins here", "put it in a file of its own"
                )
                return
            self._take(event)

    def fault(self, at: Position, message: str, fix: str = "") -> None:
        """Record a fault at a place, under the path that is being read."""
        key = dotted(self._path())
        self.faults.append(located(self._file, self._lines, at, key, message, fix))

    def open_bracket(self) -> Position | None:
        """Return where the innermost [ or { is that has not been closed yet."""
        places = [frame.node.position for frame in reversed(self._frames)]
        return next((at for at in places if self._rest(at)[:1] in ("[", "{")), None)

    def _rest(self, at: Position) -> str:
        return self._lines[at.line - 1][at.column - 1 :]

    def _find(self, character: str, at: Position) -> Position:
        """Return where a character is in the rest of a line, or `at` if it is not there."""
        return Position(at.line, at.column + max(0, self._rest(at).find(character)))

    def _path(self) -> KeyPath:
        path: list[str | int] = []
        for frame in self._frames:
            if isinstance(frame.node.value, list):
                path.append(len(frame.node.value))
            elif frame.key is not None:
                path.append(str(frame.key.value))
        return tuple(path)

    def _take(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.AliasEvent):
            self._alias(event)
        elif isinstance(event, yaml.ScalarEvent):
            self._scalar(event)
        elif isinstance(event, yaml.CollectionStartEvent):
            value: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
            self._open(event, value)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._close()

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        self._refuse_tag(event)
        plain = not event.style
        value = resolve_plain(event.value) if plain else event.value
        if isinstance(value, str) and "\0" in value:
            self.fault(_start(event), "a NUL character, which no program can be given", "remove it")
        if plain and "\xa0" in event.value:
            self.fault(self._find("\xa0", _start(event)), NBSP_MESSAGE, NBSP_FIX)
        node = Node(value, _start(event))
        self._remember(event, node)
        self._count(node)
        self._add(node)

    def _open(self, event: yaml.CollectionStartEvent, value: Any) -> None:
        self._refuse_tag(event)
        node = Node(value, _start(event))
        self._remember(event, node)
        self._count(node)
        self._frames.append(_Frame(node))
        self._check_depth(len(self._frames), node.position)

    def _close(self) -> None:
        node = self._frames.pop().node
        is_list = isinstance(node.value, list)
        children = node.value if is_list else [child for _, child in node.value.values()]
        node.size = 1 + sum(child.size for child in children)
        node.height = 1 + max((child.height for child in children), default=0)
        self._add(node)

    def _alias(self, event: yaml.AliasEvent) -> None:
        at = _start(event)
        node = self._anchors.get(event.anchor or "")
        if node is None:
            self.fault(
                at,
                f"there is no anchor &{event.anchor} above",
                f'put the value in quotes if it is a text: "*{event.anchor}"',
            )
        elif any(frame.node is node for frame in self._frames):
            self.fault(at, f"*{event.anchor} stands inside of &{event.anchor}, without an end")
            node = None
        if node is None:
            node = Node(None, at)
        self._count(node)
        self._check_depth(len(self._frames) + node.height, at)
        self._add(node)

    def _remember(self, event: yaml.NodeEvent, node: Node) -> None:
        if event.anchor is not None:
            self._anchors[event.anchor] = node

    def _refuse_tag(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent) -> None:
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            self.fault(
                _start(event),
                f"the tag {tag} has no meaning here",
                "remove it; put the value in quotes if it is a text",
            )

    def _count(self, node: Node) -> None:
        self._total += node.size
        if self._total > MAX_NODES:
            self._stop(
                node.position, f"more than {MAX_NODES} values, with aliases written out in full"
            )

    def _check_depth(self, depth: int, at: Position) -> None:
        if depth > MAX_DEPTH:
            self._stop(at, f"more than {MAX_DEPTH} levels inside of one another")

    def _stop(self, at: Position, message: str) -> None:
        self._frames.clear()
        self.fault(at, message, "is this the right file?")
        raise FaultsError(self.faults)

    def _add(self, node: Node) -> None:
        """Put a finished node where the innermost open list or map wants it."""
        if not self._frames:
            self.root = node
            return
        frame = self._frames[-1]
        if isinstance(frame.node.value, list):
            frame.node.value.append(node)
        elif frame.key is None:
            frame.key = node
        else:
            key, frame.key = frame.key, None
            if self._accepts(frame, key):
                frame.node.value[key.value] = (key.position, node)

    def _accepts(self, frame: _Frame, key: Node) -> bool:
        """Return whether a key can be used; if not, a fault says why."""
        name = key.value
        if isinstance(name, (list, dict)):
            self.fault(
                key.position,
                "a list or map cannot be a key",
                "put the value in quotes if it is a template such as {{name}}",
            )
        elif not isinstance(name, str):
            shown = "an empty key" if name is None else f"the key {str(name).lower()}"
            self.fault(key.position, f"{shown} is not a text", "put it in quotes")
        elif name == "<<":
            self.fault(
                key.position,
                "merge keys are not part of YAML 1.2, and hide where a value comes from",
                "write the keys out, or use `clusters: {NAME: ...}` for what differs",
            )
        elif name in frame.keys:
            self._duplicate(key, frame.keys[name])
        else:
            frame.keys[name] = key.position
            return True
        return False

    def _duplicate(self, key: Node, first: Position) -> None:
        path = dotted((*self._path(), key.value))
        message = f"this key is on line {first.line} already"
        self.faults.append(
            located(self._file, self._lines, key.position, path, message, "remove one of the two")
        )


def _start(event: yaml.Event) -> Position:
    mark = cast(yaml.Mark, event.start_mark)  # None only in events made by hand
    return Position(mark.line + 1, mark.column + 1)
