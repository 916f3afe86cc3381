"""Settings of the generation service."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from ledger.documents.audit import LONGEST_PROMISE_SECONDS
from services.generation.requests.quotas import Quota, read_quotas
from services.generation.target.model_path import name_of
from services.generation.target.model_settings import (
    IF_FOLDER_A_HEAD,
    MODEL,
    NAMED_ADAPTER,
    NAMED_STORE,
    PACKED_BYTES,
    STORE,
)
from services.generation.target.sizes import LEAST_CONTEXT
from services.runtime.setting_kind import Adapter, KeyFile, Kind, Name, Target, Url
from services.runtime.settings import Address, RpcServerSettings, Size, SizeOrNone, settings_config
from services.runtime.usage import checked_name

_Head = Annotated[str, Kind("HEAD", "reference or folder", "support-head@sha256:3f0c2a9d"), IF_FOLDER_A_HEAD]
_Adapter = Annotated[Adapter, NAMED_ADAPTER]
_TenantStore = Annotated[str, Kind("TENANT=DIR", "tenant=folder", "acme=acme.store"), NAMED_STORE]
_Quota = Annotated[str, Kind("QUOTA", "TENANT=NAME:LIMIT,…", "acme=requests:8,tokens:60000")]

_HEAD = re.compile(r"cidv1:sha256:[0-9a-f]{64}|[A-Za-z0-9][A-Za-z0-9._-]{0,127}(@sha256:[0-9a-f]{1,64})?")
_OWN_ENGINE = (
    "draft_model", "datastore", "shared_datastore", "device", "cache_dtype", "arithmetic", "prefix_cache_dir",
)  # fmt: skip
DEVICES = re.compile(r"cpu|(opencl|cuda)(:\d{1,3})?")
_ENGINE_FLAG = re.compile(r"[a-z][a-z0-9_-]{0,31}=.{1,256}")
_ADAPTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}=.+")


class GenerationSettings(RpcServerSettings):
    """Flags of `python -m services.generation`, environment `KOLM_GENERATION_…`, TOML table `[generation]`."""

    model_config = settings_config("generation")

    listen: Address = Field("127.0.0.1:50051", description="host:port to serve gRPC on; port 0 takes a free one.")
    model: Annotated[Path, MODEL] = Field(
        Path("smollm2"), description="The base: a transformers directory, a GGUF file, or a model's name."
    )
    engine: Literal["kolm", "vllm", "sglang", "llama-server"] = Field(
        "kolm", description="The engine: kolm's own, exact, or another engine at --plain-url."
    )
    plain_url: Url | None = Field(
        None,
        description="URL of another engine, started without speculation: answers of --url are compared with it, and it "
        "answers if speculation is off or halted.",
        examples=["http://127.0.0.1:8000"],
    )
    url: Url | None = Field(
        None,
        description="URL of the same engine and model, started with speculation. Default: none, speculation is off.",
        examples=["http://127.0.0.1:8001"],
    )
    weights: Annotated[Path, MODEL] | None = Field(
        None,
        description="The model that the other engine serves, in the form of --model: receipts then name its digest, "
        "and text is tokenized and checked here. Default: the name and the tokenizer of the engine.",
    )
    engine_key_file: KeyFile | None = Field(None, description="A file with the API key of the other engine.")
    engine_flag: tuple[Annotated[str, Kind("NAME=VALUE", "name=value", "dtype=bfloat16")], ...] = Field(
        (),
        description="A flag of the other engine that changes numbers and that the engine does not report, for its "
        "profile; may be repeated. device, parallelism, batch_invariant and speculation are members of the profile. "
        "prefix_cache=true lets requests reuse cached prefixes; then no difference counts as a deviation.",
    )
    engine_silence_seconds: float = Field(
        120.0, gt=0, description="How long an upstream may be silent before its answer counts as broken off."
    )
    model_name: Name | None = Field(
        None,
        description="Name that requests may use. Default: the package's, or the directory's or file's; the engine's.",
        examples=["house-model"],
    )
    adapter: tuple[_Adapter, ...] = Field(
        (), description="LoRA adapters in peft's layout that requests may name: NAME=DIRECTORY, may be repeated."
    )
    head: tuple[_Head, ...] = Field(
        (),
        description="Draft heads of any kind (eagle3, block), the preferred one first, may be repeated: name, "
        "name@sha256:DIGITS or cidv1:sha256:… in the registry, or a folder (with a slash), for development. Default: "
        "the registry's newest for the base.",
    )
    own_head: bool = Field(True, description="Draft with the MTP block inside the model's own files, if there is one.")
    own_head_tokens: int = Field(
        32_768,
        ge=0,
        description="Tokens that the MTP block drafts: those of earlier answers, and the most frequent ones; with "
        "fewer a draft is cheaper and less often right. 0: all.",
    )
    auto_discover: bool = Field(
        True,
        description="Draft with the head and the datastore next to the model (head, store), if none was named and the "
        "registry has no head.",
    )
    datastore: tuple[_TenantStore, ...] = Field(
        (), description="Datastores (`kolm datastore build`) for one tenant's requests: TENANT=FOLDER, may be repeated."
    )
    shared_datastore: tuple[Annotated[Path, STORE], ...] = Field(
        (), description="Datastores for the requests of every tenant; may be repeated."
    )
    draft_model: Annotated[Path, MODEL] | None = Field(
        None, description="A smaller model for the method draft, in the form of --model."
    )
    registry: Target | None = Field(
        None, description="The registry of heads, host:port or any gRPC name.", examples=["127.0.0.1:50054"]
    )
    ledger: Target = Field("127.0.0.1:50052", description="The ledger service, host:port or any gRPC name.")
    state_dir: Path = Field(
        Path(".kolm/generation"), description="Folder of receipts on their way to the ledger and the last known halts."
    )
    replicas: int = Field(
        1, ge=1, le=256,
        description="Servers that may share --state-dir and its key: each uses the first unlocked of as many numbered "
        "subfolders, with the receipts that an earlier server left there.",
    )  # fmt: skip
    keys_dir: Path | None = Field(
        None, description="Folder of receipts.pem, made at the first start (mode 0600). Default: <state-dir>/keys."
    )
    key_file: Path | None = Field(
        None,
        description="The private key of the receipts, or the PKCS#11 URI of a key in a device. "
        "Default: <keys-dir>/receipts.pem.",
    )
    key_passphrase_file: Path | None = Field(
        None, description="A file with the passphrase of the private key, or the PIN of its device, in its first line."
    )
    trusted_keys: Path | None = Field(
        None,
        description="Folder of trusted public keys (`kolm trust add`): a head that keys publisher-*.pub and log-*.pub "
        "have signed may be loaded. (The receipts key goes to <state-dir>/public.) Default: none, no such head.",
    )
    threads: int | None = Field(
        None, ge=1, le=1024, description="Threads that compute a pass. Default: one for each CPU."
    )
    device: Annotated[str, Kind("DEVICE", "cpu, opencl[:N] or cuda[:N]", "opencl:0")] | None = Field(
        None,
        description="Where passes are computed: cpu, or on a GPU (extra `gpu`, experimental). Default: cpu.",
    )
    cache_dtype: Literal["float32", "bfloat16", "int8"] | None = Field(
        None,
        description="Type of the cached keys and values, part of the profile; bfloat16 takes half the memory of "
        "float32, int8 a quarter. Default: as the arithmetic; bfloat16 for int8 with heads of more than 128 numbers.",
    )
    arithmetic: Literal["float32", "int8"] | None = Field(
        None,
        description="Arithmetic of linear layers with quantised weights (GGUF), part of the profile; int8 rounds their "
        "inputs and is faster. Default: int8 if the weights are quantised, else float32.",
    )
    context_length: int | None = Field(
        None,
        ge=LEAST_CONTEXT,
        description="Tokens that a prompt and its output may have together. Default: the model's own, at most 8192.",
        examples=[32768],
    )
    cache_bytes: Size | None = Field(
        None,
        description="Memory for keys and values of sequences, an eighth of it for features of cached prefixes. Bytes, "
        "or 500MB, 2GiB and the like. Default: 1GiB, or more if one sequence needs it.",
    )
    packed_bytes: SizeOrNone = Field(
        PACKED_BYTES,
        validate_default=True,
        description="Size limit of packed weights, which are kept in the user's cache and mapped at later starts and "
        "by an auditor on this machine; the least recently used are deleted. 0 keeps none.",
        examples=["50GiB"],
    )
    max_sequences: int = Field(
        64, ge=1, description="Sequences that run at the same time, if the cache has room; the others wait."
    )
    max_waiting: int = Field(256, ge=1, description="Sequences of one tenant that may wait.")
    prefill_seconds: float = Field(
        0.05,
        gt=0,
        description="Time that a pass with prompts and outputs may take beyond a pass over one row: less makes gaps "
        "shorter and first tokens later. Prompts always get 16 rows.",
    )
    quota: tuple[_Quota, ...] = Field(
        (),
        description="Quota of a tenant, may be repeated: requests in flight (a request of n choices counts n), tokens "
        "of prompts and outputs a minute, grammar_seconds (CPU seconds of compiling grammars) a minute; each a whole "
        "number, or unlimited. The tenant * gives the limits that a tenant's own quota leaves out. Default: unlimited.",
    )
    quota_servers: int = Field(
        1, ge=1, le=256,
        description="Servers behind one name that share the quotas: each gives out this part of requests and tokens, "
        "rounded up, and does not see the other servers. Set it to their number on each of them.",
    )  # fmt: skip
    prefix_caching: bool = Field(
        True, description="Requests of a tenant with the same beginning share its keys and values."
    )
    prefix_share: float = Field(
        0.25,
        ge=0,
        le=1,
        description="Share of the cache, 0 to 1, that prefixes of earlier requests may use; beyond it the oldest "
        "prefixes are evicted.",
    )
    prefix_cache_dir: Path | None = Field(
        None,
        description="A folder that keeps computed prefixes over restarts with the same model. Prompts can be recovered "
        "from its files, which only their owner can read. Default: none, memory only.",
        examples=["/var/cache/kolm/prefixes"],
    )
    prefix_cache_bytes: Size = Field(
        4 << 30,
        validate_default=True,
        description="Size limit of this folder; least recently used prefixes are evicted.",
        examples=["8GiB"],
    )
    verify: Literal["sampled", "inline"] = Field(
        "sampled",
        description="Default of requests that do not set it: verified by audits (sampled), or before they are signed "
        "(inline).",
    )
    on_halt: Literal["refuse", "off"] | None = Field(
        None,
        description="Requests for a halted method: refused, or served with speculation off. Default: refuse; before "
        "another engine off.",
    )
    halt_poll_seconds: float = Field(1.0, gt=0, description="Pause between two queries of the ledger for halts.")
    halt_lease_seconds: float = Field(
        30.0,
        gt=0,
        description="How long the ledger's answer on halts is valid. After so long without an answer, requests are "
        "served with speculation off until the next answer.",
    )
    speculation_max_temperature: float = Field(
        1.2, ge=0, description="Temperature above which speculation is off, because drafts are rarely accepted."
    )
    outbox_limit: int = Field(
        1024,
        ge=1,
        description="Receipts without the ledger's confirmation, those of running requests included, above which new "
        "requests are refused.",
    )
    append_seconds: float = Field(
        2.0, ge=0, description="How long a response waits for the ledger before its receipt is marked as pending."
    )
    promise_seconds: float = Field(
        3600.0,
        gt=0,
        le=LONGEST_PROMISE_SECONDS,
        description="Promised time from a request's start until the log has its receipts; a receipt that is missing "
        "then proves omission. Allow for the longest answer and the longest outage.",
    )
    outbox_retry_seconds: float = Field(
        2.0, gt=0, description="Longest pause between two attempts to send receipts to the ledger."
    )

    @field_validator("adapter")
    @classmethod
    def _named(cls, adapters: tuple[str, ...]) -> tuple[str, ...]:
        names = [adapter.partition("=")[0] for adapter in adapters if _ADAPTER.fullmatch(adapter)]
        if len(names) < len(adapters):
            raise ValueError("expected NAME=DIRECTORY; a name is 1 to 128 letters, digits, '.', '_' and '-'")
        if len(set(names)) < len(names):
            raise ValueError("expected different names")
        return adapters

    @field_validator("datastore")
    @classmethod
    def _tenants(cls, datastores: tuple[str, ...]) -> tuple[str, ...]:
        if not all(tenant and folder for tenant, _, folder in (each.partition("=") for each in datastores)):
            raise ValueError("expected TENANT=FOLDER; use shared_datastore for all tenants")
        for each in datastores:
            checked_name(each.partition("=")[0])
        return datastores

    @field_validator("quota")
    @classmethod
    def _readable(cls, quotas: tuple[str, ...]) -> tuple[str, ...]:
        read_quotas(quotas)
        return quotas

    @property
    def quotas(self) -> Mapping[str, Quota]:
        """This server's part of each tenant's quota, always with a quota for `*`."""
        return {tenant: quota.part(self.quota_servers) for tenant, quota in read_quotas(self.quota).items()}

    @property
    def datastores(self) -> list[tuple[str | None, Path]]:
        """Folders with their tenant; None for a shared folder."""
        owned = (each.partition("=") for each in self.datastore)
        return [
            *((tenant, Path(folder)) for tenant, _, folder in owned),
            *((None, path) for path in self.shared_datastore),
        ]

    @property
    def adapters(self) -> dict[str, Path]:
        """Directories by name."""
        return {name: Path(directory) for name, _, directory in (each.partition("=") for each in self.adapter)}

    @field_validator("head")
    @classmethod
    def _known_heads(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        wrong = [each for each in value if "/" not in each and not _HEAD.fullmatch(each)]
        if wrong:
            raise ValueError(f"expected a reference, or a folder with a slash, got {wrong[0]!r}")
        return value

    @field_validator("device")
    @classmethod
    def _known_device(cls, device: str | None) -> str | None:
        if device is not None and not DEVICES.fullmatch(device):
            raise ValueError(f"expected cpu, opencl, opencl:N, cuda or cuda:N, got {device!r}")
        return device

    @field_validator("engine_flag")
    @classmethod
    def _flags_named(cls, flags: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := [flag for flag in flags if not _ENGINE_FLAG.fullmatch(flag)]:
            raise ValueError(f"expected NAME=VALUE, the name in small letters, digits, '-' and '_', got {wrong[0]!r}")
        return flags

    @model_validator(mode="after")
    def _engine_is_somewhere(self) -> Self:
        given = {"--url": self.url, "--weights": self.weights, "--engine-key-file": self.engine_key_file}
        if self.engine == "kolm":
            named = next((flag for flag, value in {"--plain-url": self.plain_url, **given}.items() if value), None)
            if named is not None:
                raise ValueError(f"{named} needs --engine vllm, sglang or llama-server")
        elif ours := next((name for name in _OWN_ENGINE if getattr(self, name)), None):
            raise ValueError(f"--{ours.replace('_', '-')} is for kolm's own engine, not for --engine {self.engine}")
        elif self.head and (len(self.head) > 1 or "/" not in self.head[0]):
            raise ValueError("--head: expected one folder from `kolm heads pull`, the head that the engine drafts with")
        elif self.plain_url is None:
            raise ValueError(f"--engine {self.engine} needs --plain-url, an upstream with speculation off")
        return self

    @model_validator(mode="after")
    def _prefixes_are_kept(self) -> Self:
        if self.prefix_cache_dir is not None and not self.prefix_caching:
            raise ValueError("--prefix-cache-dir cannot be combined with --no-prefix-caching")
        return self

    @model_validator(mode="after")
    def _heads_come_from_somewhere(self) -> Self:
        published = [each for each in self.head if "/" not in each]
        if published and (self.registry is None or self.trusted_keys is None):
            raise ValueError(f"head {published[0]} needs --registry and --trusted-keys")
        return self

    @property
    def head_references(self) -> tuple[str, ...]:
        """The heads to load, the preferred one first; the empty reference is the base's newest."""
        by_default = ("",) if self.registry is not None and self.trusted_keys is not None else ()
        return self.head or by_default

    @property
    def heads_cache(self) -> Path:
        return self.state_dir / "heads"

    @property
    def served_name(self) -> str:
        return self.model_name or name_of(self.model)

    @property
    def public_directory(self) -> Path:
        """Folder of the public half of the receipts key, to be added to trusted keys."""
        return self.state_dir / "public"

    @property
    def receipts_key(self) -> Path:
        return self.key_file or (self.keys_dir or self.state_dir / "keys") / "receipts.pem"
