"""The canonical pass on a GPU: the bits, the profile and the receipts of the CPU's. Experimental."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from services.generation.target.adapters import AdapterIdentity
from services.generation.target.arrays import Float32, Int64
from services.generation.target.blocks import BlockPool
from services.generation.target.config.config import (
    TargetConfig,
    block_bytes,
    bounded,
    cache_blocks,
    read_config,
    usual_cache,
)
from services.generation.target.config.layer_specs import EMBEDDING, LayerSpec, layer_specs
from services.generation.target.config.rope import query_scales, rotations
from services.generation.target.cpu import profile_name
from services.generation.target.errors import AdapterUnsupported, UnsupportedArchitecture
from services.generation.target.families import BY_NAME
from services.generation.target.family import NORM
from services.generation.target.gpu.device import Buffer, Device, DeviceUnavailable
from services.generation.target.gpu.kernels import MOST_HEAD_DIM, Kernels, Lines, RotationTables
from services.generation.target.gpu.layers import MOST_ROWS, DeviceLayer, LayerPasses, whole_lines
from services.generation.target.gpu.source import STORAGES
from services.generation.target.gpu.vectors import check_arithmetic
from services.generation.target.identity import base_cid, one_version, tokenizer_cid
from services.generation.target.kernels import compilation
from services.generation.target.kernels.machine import cpus
from services.generation.target.kernels.storages import GROUP, PANEL, packed_as, padded
from services.generation.target.program.buffers import on_huge_pages
from services.generation.target.program.kernel_probe import KernelReport
from services.generation.target.program.layer import load_layer
from services.generation.target.program.matrices import Matrix, Pack, matrix_of, vector
from services.generation.target.program.packed_files import PackedFolder
from services.generation.target.program.packing import PackedWeights
from services.generation.target.program.products import EmbeddingTable, Product
from services.generation.target.program.team import team
from services.generation.target.rows import Rows
from services.generation.target.target import PassOutput, Shared
from services.generation.target.unread import LogitRows, UnreadLogits
from services.generation.target.weights import (
    Weights,
    check_int8,
    checked_weights,
    output_name,
    packed_size,
    usual_arithmetic,
)

SERVED = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "granite", "gemma2", "gemma3_text")
"""Families whose bits tests compare with the CPU's."""

LOGIT_ROWS = 64  # whose logits are computed together: 152,000 ids of 64 rows take 39 MB
_PROBED_ROWS = (*range(1, 10), 16, 33)
_SAMPLE_PANELS = 5


class GpuTarget:
    """`Target` on a device. Sampling and embeddings stay on the CPU."""

    def __init__(
        self,
        config: TargetConfig,
        weights: Weights,
        device: Device,
        blocks: int,
        base_cid: str,
        tokenizer_cid: str,
        *,
        threads: int | None = None,
        cache_dtype: str = "float32",
        arithmetic: str = "float32",
        packed: PackedFolder | None = None,
        check_files: Callable[[], None] = lambda: None,
    ) -> None:
        """Compile the kernels, check the device's arithmetic, load the weights and allocate the cache. The options are
        those of `CpuTarget`; `threads` are of drafters.

        Raises:
            DeviceUnavailable: the device computes other bits, cannot compile the kernels, or has too little memory.
            DeviceLost: it failed.
            WeightsInvalid: a weight is NaN or infinite.
            ArithmeticUnsupported: `arithmetic` is int8 and the weights are not quantised.
        """
        self.config, self.blocks = config, BlockPool(blocks)
        self.base_cid, self.tokenizer_cid = base_cid, tokenizer_cid
        self.adapters: tuple[AdapterIdentity, ...] = ()
        self.threads = threads or cpus()
        self.device = device.description
        self.numerics: Mapping[str, Any] = {"arithmetic": profile_name(arithmetic), "cache": cache_dtype}
        storages = {weights.storage(name) for name in weights.names() if len(weights.shape(name)) == 2}
        if arithmetic == "int8":
            check_int8(config, weights)
        compilation.compile_ahead(compilation.module_names(sorted(storages), cache_dtype, arithmetic))
        kinds = {packed_as(storage).name for storage in storages} | {"float32"}  # of modules in several storages
        device.compile()
        self.kernels, self._is_int8, self._form = Kernels(device), arithmetic == "int8", cache_dtype
        team().keep_subnormals()  # of this thread, whose operations are compared
        check_arithmetic(self.kernels, kinds)
        with (packed or PackedFolder(0)).packing(base_cid, packed_size(weights, config)) as pack:
            self._load(weights, pack, blocks)
            check_files()
        if failures := self.probe_kernels().failures:
            raise DeviceUnavailable(f"{self.device} computes other bits than this CPU: {failures[0]}; use --device cpu")

    def _load(self, weights: Weights, pack: Pack, blocks: int) -> None:
        config, kernels, read = self.config, self.kernels, weights.tensor
        specs, output = layer_specs(config), output_name(weights, config)
        embedding = matrix_of(read(EMBEDDING), pack=pack)
        head = embedding if output == EMBEDDING else matrix_of(read(output), pack=pack)
        self._embedding = EmbeddingTable(embedding, config.hidden_size)
        self._norm = kernels.upload(vector(read, NORM, config.norm_offset) * np.float32(config.logit_scale))
        self._samples = {_kind(head): _first_panels(head)}
        self._head = kernels.matrix(head)
        self._passes = LayerPasses(kernels, config, self._form, blocks, is_int8=self._is_int8)
        self._logits, self._products = self._passes.lines(self._head.columns, LOGIT_ROWS), 0
        tables: dict[object, RotationTables] = {}
        layers = []
        for number, spec in enumerate(specs):
            key = config.rotations[number], spec.scale, spec.temperature
            if key not in tables:
                tables[key] = self._tables(number, spec)
            layer = load_layer(spec, number, (), read, config.norm_offset, pack)
            for matrix in layer.matrices:
                self._samples.setdefault(_kind(matrix), _first_panels(matrix))
            layers.append(self._passes.load(layer, tables[key]))
        self._layers: Sequence[DeviceLayer] = layers

    def _tables(self, number: int, spec: LayerSpec) -> RotationTables:
        context, rotation = self.config.context_length, self.config.rotations[number]
        turns = rotations(rotation.within(context), rotation.factor, context)
        return self._passes.tables(*turns, query_scales(spec.scale, spec.temperature, context))

    def forward(self, rows: Rows, feature_layers: Sequence[int] = ()) -> PassOutput:
        """See `Target`. Raises DeviceLost."""
        if len(rows) <= MOST_ROWS:
            return self._forward(rows, feature_layers)
        cuts = [*range(0, len(rows), MOST_ROWS), len(rows)]
        logits, features = list[Float32](), list[Float32]()
        for first, end in pairwise(cuts):
            part = self._forward(rows.part(first, end), feature_layers)
            logits.append(part.logits)
            features.append(part.features)
        return PassOutput(np.concatenate(logits), np.concatenate(features))

    def _forward(self, rows: Rows, feature_layers: Sequence[int]) -> PassOutput:
        config, passes, count = self.config, self._passes, len(rows)
        described = passes.described(rows)
        passes.write(passes.x, self.embed(rows.tokens) * np.float32(config.embedding_scale) + np.float32(0))
        wide = len(feature_layers) * config.hidden_size
        features = self.kernels.lines(count, wide) if wide else None
        for number, layer in enumerate(self._layers):
            self._keep(features, feature_layers, number, count)
            passes.compute(layer, described, count)
        self._keep(features, feature_layers, len(self._layers), count)
        logits = self._wanted(described, len(rows.wanted))
        found = passes.read(features, count, wide) if features else np.empty((count, 0), np.float32)
        return PassOutput(logits, found)

    def _wanted(self, described: Buffer, count: int) -> LogitRows:
        """Logits of wanted rows; few stay on the device."""
        passes, vocabulary = self._passes, self._vocabulary
        parts = [np.empty((0, vocabulary), np.float32)]
        for first in range(0, count, LOGIT_ROWS):
            some = min(LOGIT_ROWS, count - first)
            passes.norm(passes.x, self._norm, passes.normed, some, described=described, first=first)
            self._product(some)
            if some == count:
                return UnreadLogits(
                    self.kernels.best(self._logits, count, vocabulary), partial(self._row, self._products)
                )
            parts.append(passes.read(self._logits, some, vocabulary))
        return np.concatenate(parts)

    def _row(self, product: int, number: int) -> Float32:
        if product != self._products:
            raise ValueError("logits of an earlier pass")
        found = np.empty(self._vocabulary, np.float32)
        self.kernels.device.read(self._logits.buffer, found, 4 * number * self._logits.width)
        return found

    def _keep(self, features: Lines | None, wanted: Sequence[int], layer: int, count: int) -> None:
        """Copy the stream after `layer` layers for each time that it is wanted as a feature."""
        size = self.config.hidden_size
        for place, each in enumerate(wanted):
            if features and each == layer:
                self.kernels.copy(self._passes.x, features, count, size, place * size)

    def _product(self, count: int) -> None:
        """Compute the head's outputs for rows in `normed`."""
        self._products += 1
        self._passes.linear([self._head], self._passes.normed, self._logits, count)
        if self.config.logit_cap:
            self.kernels.cap(self._logits, count, self._head.columns, self.config.logit_cap)

    @property
    def _vocabulary(self) -> int:
        return min(self.config.vocab_size, self._head.columns)

    def probe_kernels(self) -> KernelReport:
        """Compare linear layers on the model's own weights with the CPU's, for several numbers of rows."""
        random, compared, failures = np.random.default_rng(0), 0, []
        kernels, most = self.kernels, max(_PROBED_ROWS)
        for storage, inputs in sorted(self._samples):
            sample = self._samples[storage, inputs]
            x = whole_lines(random.standard_normal((most, inputs), dtype=np.float32), padded(inputs, GROUP))
            device = kernels.matrix(sample)
            arithmetic = "int8" if self._is_int8 and device.is_quantised else "float32"
            expected = Product(sample, device.columns, 1, arithmetic).rows(x[:, :inputs])
            for rows in _PROBED_ROWS:
                lines, y = Lines(kernels.upload(x), x.shape[1]), kernels.lines(rows, device.columns)
                self._passes.linear([device], lines, y, rows)
                found = self._passes.read(y, rows, device.columns)
                compared += 1
                if found.tobytes() != expected[:rows].tobytes():
                    differ = int((found != expected[:rows]).sum())
                    failures.append(
                        f"{storage} with {inputs} inputs, {rows} rows: {differ} of {found.size} values differ"
                    )
        return KernelReport(compared, tuple(failures))

    def abridged(self) -> GpuTarget:
        """See `Target`. Both share buffers."""
        kinds: dict[object, DeviceLayer] = {}
        for layer in self._layers:
            shapes = [(each.storage, each.columns, each.groups, each.first) for each in layer.matrices]
            kinds.setdefault((replace(layer.spec, prefix=""), id(layer.tables), *shapes), layer)
        found = copy(self)
        found._layers = list(kinds.values())
        found._head = replace(self._head, columns=min(self._head.columns, _SAMPLE_PANELS * PANEL))
        return found

    def embed(self, tokens: Int64) -> Float32:
        return self._embedding.rows(tokens)

    def unembed(self, states: Float32) -> Float32:
        logits = np.empty((len(states), self.config.vocab_size), np.float32)
        for first in range(0, len(states), LOGIT_ROWS):
            some = logits[first : first + LOGIT_ROWS]
            self._passes.write(self._passes.normed, states[first : first + LOGIT_ROWS])
            self._product(len(some))
            some[:] = self._passes.read(self._logits, *some.shape)
        return logits

    def shared(self) -> Shared:
        """Raise UnsupportedArchitecture: only families that are refused have heads over the target's cache."""
        raise UnsupportedArchitecture(f"--device: {self.device} shares no cache with a head; use --device cpu")

    def move(self, sources: list[int], targets: list[int]) -> None:
        places = self.kernels.upload(np.array([sources, targets], np.int32))
        for layer in self._layers:
            layer.cache.move(places, len(sources))

    def release_memory(self) -> None:
        """Nothing: the device's memory is allocated once."""

    def block_content(self, block: int) -> bytes:
        return b"".join(part.tobytes() for layer in self._layers for part in layer.cache.block(block))

    def fill_block(self, block: int, content: bytes | memoryview) -> None:
        rest = np.frombuffer(content, np.uint8)
        for layer in self._layers:
            rest = rest[layer.cache.fill(block, rest) :]


def _kind(matrix: Matrix) -> tuple[str, int]:
    return matrix.weights.storage.name, matrix.weights.inputs


def _first_panels(matrix: Matrix) -> Matrix:
    """A copy of the first panels, for the probe."""
    weights, panels = matrix.weights, min(matrix.panels, _SAMPLE_PANELS)
    some = on_huge_pages(weights.panels[:panels].nbytes).reshape(panels, -1)  # aligned, as the CPU's kernels expect it
    some[:] = weights.panels[:panels]
    few = PackedWeights(weights.storage, min(weights.columns, panels * PANEL), weights.inputs, some)
    return Matrix(few, matrix.bias[: panels * PANEL].copy())


def load_gpu_target(
    directory: Path,
    *,
    device: str,
    context_length: int | None = None,
    cache_tokens: int | None = None,
    cache_bytes: int | None = None,
    adapters: Mapping[str, Path] | None = None,
    cache_dtype: str | None = None,
    arithmetic: str | None = None,
    threads: int | None = None,
    packed: PackedFolder | None = None,
) -> GpuTarget:
    """Load a model onto a device; `device` is a value of `--device`, all else as in `cpu.load_target`.

    Raises:
        TargetError: see `services.generation.target.errors`; DeviceUnavailable, DeviceLost.
    """
    found = _opened(device)
    with one_version(directory) as check:
        config = bounded(read_config(directory), context_length)
        weights = checked_weights(directory, config)
        _refuse_unserved(config, weights, adapters or {}, found.description)
        arithmetic = arithmetic or usual_arithmetic(config, weights)
        cached = cache_dtype or usual_cache(config, arithmetic)
        blocks = cache_blocks(config, cached, tokens=cache_tokens, size=cache_bytes)
        needed = packed_size(weights, config) + blocks * block_bytes(config, cached)
        if needed > found.memory:
            raise DeviceUnavailable(
                f"{found.description} has {found.memory >> 20} MiB; weights and cache of {directory.name} take "
                f"{needed >> 20} MiB; set a smaller --cache-bytes or --context-length, or take a smaller model"
            )
        cids = base_cid(directory), tokenizer_cid(directory)
        return GpuTarget(
            config, weights, found, blocks, *cids, threads=threads, cache_dtype=cached, arithmetic=arithmetic,
            packed=packed, check_files=check,
        )  # fmt: skip


def _opened(name: str) -> Device:
    """The device that `--device` names, not compiled yet. Raises DeviceUnavailable."""
    kind, _, index = name.partition(":")
    open_device: Callable[[int], Device]
    try:
        if kind == "opencl":
            from services.generation.target.gpu.opencl import open_device
        else:
            from services.generation.target.gpu.cuda import open_device
    except ImportError as error:
        raise DeviceUnavailable(
            f"--device {name}: {error.name} is not installed; install the extra gpu of kolm-serve, or use --device cpu"
        ) from error
    return open_device(int(index or 0))


def _refuse_unserved(config: TargetConfig, weights: Weights, adapters: Mapping[str, Path], device: str) -> None:
    """Raise UnsupportedArchitecture or AdapterUnsupported for what the device's kernels lack."""
    if config.architecture not in SERVED:
        inside = " and its MTP block" if BY_NAME[config.architecture].own_head else ""
        raise UnsupportedArchitecture(
            f"--device: {device} computes the families {', '.join(SERVED)}, not {config.architecture}{inside}; use "
            "--device cpu"
        )
    if config.head_dim > MOST_HEAD_DIM:
        raise UnsupportedArchitecture(
            f"--device: heads of {config.head_dim} numbers; {device} computes at most {MOST_HEAD_DIM}; use --device cpu"
        )
    kinds = {packed_as(weights.storage(name)).name for name in weights.names() if len(weights.shape(name)) == 2}
    if unknown := sorted(kinds - STORAGES):
        raise UnsupportedArchitecture(f"--device: weights of {', '.join(unknown)} need --device cpu")
    if adapters:
        raise AdapterUnsupported(f"--device: adapters ({', '.join(adapters)}) need --device cpu; or leave them out")
