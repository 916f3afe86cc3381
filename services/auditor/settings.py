"""Settings of the auditor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from ledger.documents.audit import LONGEST_PROMISE_SECONDS, ReferenceThresholds
from services.auditor.examination import EnginePlan
from services.auditor.foreign_judge import DRAWN, HONEST, Plain
from services.auditor.held_folder import Share
from services.generation.target.model_settings import MODEL, NAMED_ADAPTER, PACKED_BYTES
from services.generation.target.sizes import LEAST_CONTEXT
from services.runtime.setting_kind import Adapter, KeyFile, Target, Url
from services.runtime.settings import Address, RpcServerSettings, SizeOrNone, settings_config
from services.runtime.usage import checked_name


def thresholds(text: str) -> ReferenceThresholds:
    """Parse thresholds: four to six numbers of at least 0, separated by commas. Raises ValueError."""
    parts = text.split(",")
    if not 4 <= len(parts) <= 6 or not all(float(part) >= 0.0 for part in parts):
        raise ValueError(f"expected mean,largest,surprise,rarest[,drift[,missed]], numbers from 0 on, got {text!r}")
    return ReferenceThresholds(*map(float, parts))


class AuditorSettings(RpcServerSettings):
    """Flags of `python -m services.auditor`, environment `KOLM_AUDITOR_…`, TOML table `[auditor]`."""

    model_config = settings_config("auditor")

    listen: Address = Field("127.0.0.1:50053", description="host:port to serve health on; port 0 takes a free one.")
    ledger: Target = Field("127.0.0.1:50052", description="The ledger to audit, host:port or any gRPC name.")
    model: Annotated[Path, MODEL] | None = Field(
        None,
        description="The base for replays, loaded by this auditor: a transformers directory, a GGUF file, or a model's "
        "name. The same weights as the audited server's; receipts of another base stay owed until their time is up, "
        "and are UNREPLAYABLE then.",
        examples=["smollm2"],
    )
    adapter: tuple[Annotated[Adapter, NAMED_ADAPTER], ...] = Field(
        (), description="LoRA adapters that receipts may name: NAME=DIRECTORY, may be repeated."
    )
    engine: Literal["kolm", "vllm", "sglang", "llama-server"] = Field(
        "kolm",
        description="The engine that computed the receipts. Outputs of another engine than kolm's are checked by a "
        "pass of kolm's arithmetic with --model: CONSISTENT or INCONSISTENT with these weights, and never EXACT.",
    )
    plain_url: Url | None = Field(
        None,
        description="URL of that engine with speculation off, to which requests are sent again: SAME, DEVIATION or, if "
        "the engine differs from itself, UNSTABLE.",
        examples=["http://127.0.0.1:8000"],
    )
    engine_key_file: KeyFile | None = Field(None, description="A file with the API key of that engine.")
    reference: str | None = Field(
        None,
        description="Thresholds of passes over another engine's outputs, announced in the log: "
        "mean,largest,surprise,rarest,drift,missed as docs/auditing.md explains them. Default: thresholds for "
        "llama.cpp with 8 and 4 bits a weight, with missed for llama-server.",
        examples=["0.02,1,5,27,12"],
    )
    halt_inconsistent: bool = Field(
        False,
        description="Halt the method of an output that is INCONSISTENT with the weights, as for a DEVIATION; announced "
        "in the log.",
    )
    context_length: int | None = Field(
        None, ge=LEAST_CONTEXT, description="The audited server's --context-length, if it has one.", examples=[32768]
    )
    cache_dtype: Literal["float32", "bfloat16", "int8"] | None = Field(
        None, description="The audited server's --cache-dtype, if it has one; part of the numerics profile."
    )
    arithmetic: Literal["float32", "int8"] | None = Field(
        None, description="The audited server's --arithmetic, if it has one; part of the numerics profile."
    )
    packed_bytes: SizeOrNone = Field(
        PACKED_BYTES,
        validate_default=True,
        description="Size limit of packed weights in the user's cache, which a server on this machine may share. 0 "
        "keeps none.",
        examples=["50GiB"],
    )
    threads: int = Field(1, ge=1, description="Threads of a pass, which have a low priority.")
    decode_share: float = Field(
        0.02,
        ge=0.0,
        le=1.0,
        description="Share of replays that decode token by token. The others compute along the recorded output, with "
        "the same result in a fraction of the time.",
    )
    data_dir: Path = Field(description="Folder of the auditor's key and of its state between starts.")
    key_file: Path | None = Field(
        None,
        description="The auditor's private key, made at first start, or the PKCS#11 URI of one in a device. "
        "Default: <data-dir>/keys/auditor.pem.",
    )
    key_passphrase_file: Path | None = Field(
        None, description="A file with the passphrase of the private key, or the PIN of its device, in its first line."
    )
    trusted_keys: Path | None = Field(
        None, description="Public keys that may sign, put there by `kolm trust add`. Default: <data-dir>/trusted."
    )
    share: str = Field(
        "1/1",
        description="This auditor's share of the receipts if several audit one log: 2/3 is the second of three. Each "
        "has its own folder, all have the same key and rate; the first auditor draws.",
        examples=["2/3"],
    )
    rate: float = Field(
        1.0, ge=0.0, le=1.0, description="Share of receipts to replay, announced in the log; 1 replays all of them."
    )
    within_seconds: int = Field(
        86_400,
        ge=1,
        le=LONGEST_PROMISE_SECONDS,
        description="Longest time from the issue of a sampled receipt to its verdict; announced in the log with the "
        "rate.",
    )
    draw_seconds: float = Field(
        30.0, ge=0.0, le=86_400.0, description="How long receipts wait for the draw that decides which are replayed."
    )
    max_attempts: int = Field(
        5, ge=1, le=1000, description="Most attempts at a receipt whose examination fails or ends the auditor."
    )

    @field_validator("adapter")
    @classmethod
    def _named(cls, adapters: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := [each for each in adapters if not all(each.partition("="))]:
            raise ValueError(f"expected NAME=DIRECTORY, got {wrong[0]!r}")
        for each in adapters:
            checked_name(each.partition("=")[0])
        return adapters

    @field_validator("share")
    @classmethod
    def _part(cls, share: str) -> str:
        Share.parse(share)
        return share

    @field_validator("reference")
    @classmethod
    def _thresholds(cls, reference: str | None) -> str | None:
        if reference is not None:
            thresholds(reference)
        return reference

    @model_validator(mode="after")
    def _computes(self) -> Self:
        if self.model is None and self.engine == "kolm":
            raise ValueError("expected --model with the audited base, or --engine with the engine that served")
        return self

    @classmethod
    def of_one_pass(cls, **values: Any) -> Self:
        """Settings of a single audit, which draws without delay. Neither environment nor files are read, and no value
        is checked: the command that calls this has checked them.
        """
        return cls.model_construct(draw_seconds=0.0, **values)

    @property
    def auditor_share(self) -> Share:
        return Share.parse(self.share)

    @property
    def audits_another_engine(self) -> bool:
        return self.engine != "kolm"

    @property
    def plain(self) -> Plain | None:
        """The other engine with speculation off, if its URL is given."""
        if self.engine == "kolm" or self.plain_url is None:
            return None
        from services.auditor.plain import PlainUpstream

        return PlainUpstream(self.engine, self.plain_url, self.engine_key_file)

    @property
    def thresholds(self) -> ReferenceThresholds:
        """Thresholds of reference passes, which hold unless the log has announced others."""
        if self.reference is not None:
            return thresholds(self.reference)
        return DRAWN if self.engine == "llama-server" else HONEST

    @property
    def own_engine(self) -> EnginePlan | None:
        if self.model is None:
            return None
        pairs = (each.partition("=") for each in self.adapter)
        adapters = {name: Path(directory) for name, _, directory in pairs}
        plan = EnginePlan(
            self.model, adapters, self.context_length, self.cache_dtype, self.arithmetic, threads=self.threads,
            packed_bytes=self.packed_bytes,
        )  # fmt: skip
        return plan if self.engine == "kolm" else plan.for_reference()

    @property
    def auditor_key(self) -> Path:
        return self.key_file or self.data_dir / "keys" / "auditor.pem"

    @property
    def public_directory(self) -> Path:
        """The folder of the auditor's public key, from which a person adds it to trusted keys."""
        return self.data_dir / "public"

    @property
    def trusted_directory(self) -> Path:
        return self.trusted_keys or self.data_dir / "trusted"
