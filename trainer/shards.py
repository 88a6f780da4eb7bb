"""Tensors in the files of torch.distributed.checkpoint, where every rank writes and reads its part.

What is known of a tensor on this rank are boxes of it (see boxes.py), so that parts of any form can
be written, and read in any other.
"""

from __future__ import annotations

import contextlib
import mmap
import pickle
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.checkpoint.utils import _create_file_view
from torch.futures import Future

from trainer import checkpoint
from trainer.boxes import Box
from trainer.writing import PartNotWritten

METADATA = ".metadata"  # torch's name of the file that says where everything lies
NUMBERS = "data/0"  # where torch.save puts the numbers of a tensor
# What torch pickles into that file. Reading a pickle calls what it names, so nothing else may be.
PICKLED = {
    ("torch.distributed.checkpoint.metadata", "ChunkStorageMetadata"),
    ("torch.distributed.checkpoint.metadata", "Metadata"),
    ("torch.distributed.checkpoint.metadata", "MetadataIndex"),
    ("torch.distributed.checkpoint.metadata", "TensorProperties"),
    ("torch.distributed.checkpoint.metadata", "TensorStorageMetadata"),
    ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
}


@dataclass(frozen=True)
class Part:
    """What a rank holds of one tensor: the shape of the whole, and boxes of it, perhaps none."""

    shape: tuple[int, ...]
    boxes: Sequence[Box]

    def __create_write_items__(self, name: str, _part: object) -> list[WriteItem]:
        """As torch's planner asks for it."""
        return [
            WriteItem(
                index=MetadataIndex(name, box.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=ChunkStorageMetadata(torch.Size(box.offsets), box.values.shape),
                    properties=TensorProperties(dtype=box.values.dtype),
                    size=torch.Size(self.shape),
                ),
            )
            for box in self.boxes
        ]

    def chunks(self) -> list[ChunkStorageMetadata]:
        """The places of the boxes, as torch takes them."""
        return [ChunkStorageMetadata(torch.Size(b.offsets), b.values.shape) for b in self.boxes]


Parts = Mapping[str, Part]
File = dict[str, Any]  # size_bytes and sha256


def write_shards(folder: Path, parts: Parts, group: dist.ProcessGroup) -> dict[str, File]:
    """Write what the ranks of a group hold into an existing folder; a collective of the group.

    Returns the files that this rank wrote, by name, as the manifest has them; they are on the disk
    then. Boxes that several ranks hold are written once; together they must make whole tensors.
    May be called from a thread, if nothing else uses the group meanwhile. Raises, on all ranks
    alike, PartNotWritten if the system refused a file on any rank.
    """
    writer = _Writer(folder)
    try:
        save(dict(parts), storage_writer=writer, planner=_Planner(), process_group=group)
    except CheckpointException as error:
        raise _failure(error) from None
    return writer.files


class _Planner(DefaultSavePlanner):
    """Torch's, which looks tensors up in the dictionary, where there are Parts here."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        boxes = self.state_dict[index.fqn].boxes
        found: Tensor = next(box.values for box in boxes if box.offsets == index.offset)
        return found.contiguous()  # as it is read


class _Writer(FileSystemWriter):
    """Torch's, which tells the files it wrote, and refusals of the system with the host."""

    files: dict[str, File]

    def __init__(self, folder: Path) -> None:
        # No copying ahead: everything is on the CPU.
        super().__init__(folder, single_file_per_rank=True, sync_files=True,
                         per_thread_copy_ahead=0, overwrite=False)  # fmt: skip
        self.folder, self.files = folder, {}

    def storage_meta(self) -> StorageMeta | None:
        return None  # it would be the path of now, which is not that of the published folder

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        with _refusals_told():
            self.folder.stat()  # torch would make one that this host does not see
            return super().prepare_local_plan(plan)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        if not plan.items:
            nothing: Future[list[WriteResult]] = Future()
            nothing.set_result([])
            return nothing
        with _refusals_told():
            written = super().write_data(plan, planner)
            for name in {result.storage_data.relative_path for result in written.value()}:
                self._done(name)
            return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        with _refusals_told():
            super().finish(metadata, results)
            self._done(METADATA)

    def _done(self, name: str) -> None:
        self.files[name] = checkpoint.describe(self.folder / name)
        checkpoint.sync_folder(self.folder)


@contextlib.contextmanager
def _refusals_told() -> Iterator[None]:
    """Put the host into what the system refused: the message goes to all ranks, its cause not."""
    try:
        yield
    except Exception as error:
        refusal = checkpoint.error_behind(error, OSError)
        if refusal is None:
            raise
        words = ": ".join(str(w) for w in (refusal.strerror, refusal.filename) if w)
        raise OSError(f"({socket.gethostname()}): {words or refusal}") from error


def _failure(error: CheckpointException) -> Exception:
    failures = {rank: failure for rank, (failure, _) in error.failures.items()}
    if all(isinstance(failure, OSError) for failure in failures.values()):
        told = (f"rank {rank} {failure}" for rank, failure in sorted(failures.items()))
        return PartNotWritten("; ".join(told))
    return RuntimeError(str(error))  # with the tracebacks of the ranks


# Reading.


class Shards:
    """The tensors in a folder that write_shards wrote into, however many ranks did.

    shapes: of the whole tensors, by name. Raises BrokenCheckpoint if the file of places is none.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._metadata = _read_metadata(folder)
        held = self._metadata.state_dict_metadata.items()
        self._tensors = {name: t for name, t in held if isinstance(t, TensorStorageMetadata)}
        self.shapes = {name: list(tensor.size) for name, tensor in self._tensors.items()}

    def whole(self, name: str) -> Tensor:
        """One whole tensor, on the CPU."""
        saved = self._tensors[name]
        tensor = torch.empty(saved.size, dtype=saved.properties.dtype)
        self.read_into({name: Part(tuple(saved.size), [Box((0,) * tensor.dim(), tensor)])})
        return tensor

    @torch.no_grad()
    def read_into(self, parts: Parts) -> None:
        """Fill the boxes, on any device; this rank alone, and what it does not hold is not read.

        Raises BrokenCheckpoint where numbers of a tensor are in no file.
        """
        by_file: dict[str, dict[MetadataIndex, list[ReadItem]]] = {}
        for name, part in parts.items():
            for item in self._items_of(name, part):
                place = self._metadata.storage_data[item.storage_index]
                in_file = by_file.setdefault(place.relative_path, {})
                in_file.setdefault(item.storage_index, []).append(item)
        for file in sorted(by_file):
            self._read_file(file, by_file[file], parts)

    def _items_of(self, name: str, part: Part) -> list[ReadItem]:
        """What to read for the boxes of a part."""
        items = create_read_items_for_chunk_list(name, self._tensors[name], part.chunks())
        wanted = sum(box.values.numel() for box in part.boxes)
        if sum(prod(item.lengths) for item in items) != wanted:
            raise checkpoint.BrokenCheckpoint(self._folder, f"{name} is not there as a whole")
        return items

    def _read_file(
        self, file: str, items: Mapping[MetadataIndex, Sequence[ReadItem]], parts: Parts
    ) -> None:
        with (self._folder / file).open("rb") as stream:
            # Nothing is written to it, but torch warns of memory that is for reading only.
            memory = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
            for index, wanted in items.items():
                saved = self._box(stream, memory, index)
                for item in wanted:
                    _copy(item, saved, parts)

    def _box(self, stream: IO[bytes], memory: mmap.mmap, index: MetadataIndex) -> Tensor:
        """What was written as one box, in the memory that its file is mapped to."""
        saved, place = self._tensors[index.fqn], self._metadata.storage_data[index]
        chunk = saved.chunks[index.index or 0]
        # A file of torch.save's in the file, in which the numbers lie as they are.
        view: Any = _create_file_view(stream, place.offset, place.length)  # type: ignore[arg-type]
        archive: Any = torch._C.PyTorchFileReader(view)
        first = place.offset + archive.get_record_offset(NUMBERS)
        return torch.frombuffer(
            memory, dtype=saved.properties.dtype, count=prod(chunk.sizes), offset=first
        ).view(chunk.sizes)


def _copy(item: ReadItem, saved: Tensor, parts: Parts) -> None:
    boxes = parts[item.dest_index.fqn].boxes
    values = boxes[item.dest_index.index or 0].values
    _cut(values, item.dest_offsets, item.lengths).copy_(
        _cut(saved, item.storage_offsets, item.lengths)
    )


def _cut(tensor: Tensor, offsets: Sequence[int], lengths: Sequence[int]) -> Tensor:
    slices = [slice(first, first + n) for first, n in zip(offsets, lengths, strict=True)]
    return tensor[tuple(slices)]


class _Unpickler(pickle.Unpickler):
    """It knows what torch writes into the file of places, and nothing that could do harm."""

    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not is_dtype and (module, name) not in PICKLED:
            raise pickle.UnpicklingError(f"{module}.{name} does not belong there")
        return super().find_class(module, name)


def _read_metadata(folder: Path) -> Metadata:
    try:
        with (folder / METADATA).open("rb") as file:
            metadata = _Unpickler(file).load()
    except (pickle.UnpicklingError, EOFError) as error:
        raise checkpoint.BrokenCheckpoint(folder, f"{METADATA} cannot be read: {error}") from error
    if not isinstance(metadata, Metadata):
        raise checkpoint.BrokenCheckpoint(folder, f"{METADATA} does not say where tensors lie")
    return metadata
