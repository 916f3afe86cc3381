"""Options of `kolm up` for its services, and the TOML file of their settings."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from services.cli.frame import options
from services.cli.frame.exits import Failed, UsageError
from services.cli.frame.pull import pulled_model
from services.cli.frame.values import expect_folder, named_adapters
from services.cli.up.supervisor import Plan, Settings, words
from services.generation.target.model_path import HEAD_FOLDER, STORE_FOLDER, default_head_for, default_store_for

if TYPE_CHECKING:
    from services.runtime.settings import ServerSettings, TomlTable


Port = Annotated[int, Option(min=0, max=65535, help="0 takes a free one.", show_default=True)]

_PAGE_PORT, _HTTP_PORT = 50056, 50057
_KNOWN = "auto"  # value of --head: the known public head of the model


_SHARED = ("model", "adapter", "context_length", "cache_dtype", "arithmetic")
_INSTEAD = {
    "listen": "--host and the port's flag",
    "rate": "--audit-rate",
    "metrics_port": "--metrics-port",
    "data_dir": "--data-dir",
    "state_dir": "--data-dir",
    "insecure": "--insecure",
    "log_level": "--log-level",
    "log_format": "--log-format",
}
"""The flag of `kolm up` for each setting that it sets itself."""


def _in_brackets(host: str) -> str:
    """The host as it is before a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """The host of all services, and the port of each."""

    host: Annotated[str, Option(callback=_in_brackets, help="Address to listen on.")] = "127.0.0.1"
    insecure: Annotated[
        bool, Option("--insecure", help="Serve without TLS: traffic is readable by anyone on the network.")
    ] = False
    generation_port: Port = 50051
    ledger_port: Port = 50052
    auditor_port: Port = 50053
    registry_port: Port = 50054
    explorer_port: Annotated[
        int | None, Option(min=0, max=65535, help="0 takes a free one. Default: 50056, or a free one.")
    ] = None
    explorer: Annotated[bool, Option(help="Serve the auditor's page as well.")] = True
    http_port: Annotated[
        int | None, Option(min=0, max=65535, help="0 takes a free one. Default: 50057, or a free one.")
    ] = None
    http: Annotated[bool, Option(help="Serve OpenAI's API as well.")] = True

    def check_host(self) -> None:
        """Raises UsageError for a host that other machines reach, without --insecure."""
        from services.runtime.listening import is_loopback

        if not self.insecure and not is_loopback(self.host):
            hint = "kolm init writes settings with TLS for `kolm serve`; --insecure serves without TLS"
            raise UsageError(f"--host: {self.host} is reached from other machines, and `kolm up` has no TLS", hint)

    def page(self, metrics: Mapping[str, int]) -> int | None:
        """The explorer's port; None without it."""
        return self._port(self.explorer_port, _PAGE_PORT, metrics) if self.explorer else None

    def front(self, metrics: Mapping[str, int]) -> int | None:
        """The HTTP front's port; None without it."""
        return self._port(self.http_port, _HTTP_PORT, metrics) if self.http else None

    def _port(self, asked: int | None, usual: int, metrics: Mapping[str, int]) -> int:
        """The port that was asked for, or else the usual one, or 0 (a free port) if another service or program has
        that.
        """
        from services.runtime.listening import CannotListen, check_free

        if asked is not None:
            return asked
        try:
            check_free(f"{self.host}:{usual}")
        except CannotListen:
            return 0
        return 0 if usual in self._asked(metrics).values() else usual

    def _asked(self, metrics: Mapping[str, int]) -> dict[str, int]:
        """The ports that were asked for, by flag; `metrics` are those of metrics, by service."""
        asked = {
            "--generation-port": self.generation_port,
            "--ledger-port": self.ledger_port,
            "--auditor-port": self.auditor_port,
            "--registry-port": self.registry_port,
            "--explorer-port": self.explorer_port if self.explorer else None,
            "--http-port": self.http_port if self.http else None,
            **{f"--metrics-port, {service}": port for service, port in metrics.items()},
        }
        return {flag: port for flag, port in asked.items() if port is not None}

    def check_ports(self, metrics: Mapping[str, int]) -> None:
        """Raises UsageError for a port that is given twice, Failed for a port in use."""
        from services.runtime.listening import CannotListen, check_free

        ports = self._asked(metrics)
        for flag, port in ports.items():
            if port and list(ports.values()).count(port) > 1:
                raise UsageError(f"{flag}: {port} is given to two services")
            try:
                check_free(f"{self.host}:{port}")
            except CannotListen as error:
                hint = "port 0 takes a free one; a second `kolm up` needs a folder of its own as well, --data-dir"
                raise Failed(f"{flag}: {error}", hint) from None


LISTEN = ListenOptions()


def _one_model(context: typer.Context, param: typer.CallbackParam, named: Path | None) -> Path | None:
    """The model of the argument without a flag, if there is one."""
    bare: Path | None = context.params.get("bare")
    source = context.get_parameter_source(param.name or "")
    has_flag = source is not None and source.name == "COMMANDLINE"
    if (engine := context.params.get("engine")) is not None:  # which has a model of its own
        if has_flag or bare is not None:
            raise UsageError(f"--model: is for kolm's own engine; --weights names the model that {engine} serves")
        return named
    if has_flag and bare is not None:
        raise UsageError(f"--model: {bare} is named already; name one model")
    return pulled_model(context, param, bare or named)


@dataclass(frozen=True, slots=True)
class ServedOptions:
    """Options of the model, heads and datastores that generation loads, and of the model of the auditor."""

    bare: Annotated[
        Path | None,
        Argument(
            metavar="MODEL", is_eager=True, help="Same as --model, such as qwen3:4b or hf:OWNER/REPOSITORY:Q4_K_M."
        ),
    ] = None
    model: Annotated[
        Path,
        Option(
            "--model",
            envvar="KOLM_MODEL",
            metavar="DIR|GGUF|NAME",
            callback=_one_model,
            help="A transformers directory, a GGUF file, or a name; models of a hub are fetched.",
        ),
    ] = options.MODEL
    adapter: options.Adapters = None
    head: Annotated[
        list[str] | None,
        Option(
            metavar="HEAD",
            help="Draft head: a reference, a folder, hf:OWNER/REPOSITORY[@REVISION] of a hub, or auto: the public head "
            "that is known for the model (docs/heads.md). Default: the registry's newest.",
        ),
    ] = None
    context_length: Annotated[
        int | None,
        Option(
            min=32, metavar="TOKENS", help="Longest prompt with its output. Default: the model's own, at most 8192."
        ),
    ] = None
    cache_bytes: Annotated[
        str | None,
        Option(metavar="SIZE", help="Memory for keys, values and cached prefixes, such as 4GiB. Default: 1GiB."),
    ] = None
    cache_dtype: Annotated[
        Literal["float32", "bfloat16", "int8"] | None,
        Option(help="Type of cached keys and values. Default: as the arithmetic, bfloat16 for wide heads."),
    ] = None
    arithmetic: Annotated[
        Literal["float32", "int8"] | None,
        Option(help="Arithmetic of linear layers. Default: int8 for quantised weights (GGUF)."),
    ] = None
    device: Annotated[
        str | None,
        Option(metavar="DEVICE", help="Where passes are computed: cpu, opencl[:N] or cuda[:N]. Default: cpu."),
    ] = None
    packed_bytes: Annotated[
        str | None,
        Option(metavar="SIZE", help="Most bytes of packed weights on disk; 0 keeps none. Default: 20GiB."),
    ] = None
    prefix_cache_dir: Annotated[
        Path | None,
        Option(metavar="DIR", help="Folder that keeps computed prefixes after a restart. Default: none."),
    ] = None
    prefix_cache_bytes: Annotated[
        str | None, Option(metavar="SIZE", help="Size limit of that folder, such as 8GiB. Default: 4GiB.")
    ] = None
    draft_model: Annotated[
        Path | None,
        Option(metavar="DIR|GGUF|NAME", callback=options.found_model, help="A smaller model for the method draft."),
    ] = None
    shared_datastore: Annotated[
        list[Path] | None,
        Option(metavar="DIR", help="Datastore for the method rest, for all tenants; may be repeated."),
    ] = None
    own_head: Annotated[bool, Option(help="Draft with the MTP block inside the model's files, if it has one.")] = True
    auto_discover: Annotated[
        bool, Option(help="Use the head, adapters and datastore next to the model if none is named.")
    ] = True

    def default_adapters(self) -> dict[str, Path]:
        """Adapters next to the model, by name; empty if adapters were named or are unwanted."""
        from services.generation.target.model_settings import default_adapters_for

        return {} if self.adapter or not self.auto_discover else default_adapters_for(self.model)

    def shared_settings(self, found: dict[str, Path]) -> Settings:
        """Settings that the auditor and the server share; `found` are adapters that were not named."""
        adapters = (named_adapters(self.adapter or ()) or found).items()
        return {
            "adapter": [f"{name}={folder}" for name, folder in adapters],
            "context_length": self.context_length,
            "cache_dtype": self.cache_dtype,
            "arithmetic": self.arithmetic,
            "packed_bytes": self.packed_bytes,
        }

    def with_fetched_heads(self) -> ServedOptions:
        """These options with the folders of a hub's heads in place of their names. Raises CommandError."""
        if not self.head:
            return self
        from services.cli.foreign_heads import hub_head, known_head

        def folder(head: str) -> str:
            named = known_head(self.model).name if head == _KNOWN else head
            return str(hub_head("--head", named, self.model)) if named.startswith("hf:") else named

        return replace(self, head=[folder(head) for head in self.head])

    def faster(self) -> str | None:
        """The flag or command that would make the model faster: a public head; without one a draft model of its family
        or a datastore, if it has nothing else to draft with. None if there is none.
        """
        if self.head or default_head_for(self.model) is not None:
            return None
        from services.cli.foreign_heads import heads_known_for
        from services.generation.target.adapters import base_names
        from services.generation.target.naming.known_heads import known_draft_model
        from services.generation.target.weights import has_own_head

        for head in heads_known_for(self.model):
            facts = f"size {head.size}, licence {head.licence or 'unknown'}"
            return f"--head auto takes {head.name} ({facts}), a public head of this model"
        if self.draft_model or self.shared_datastore or default_store_for(self.model) or has_own_head(self.model):
            return None
        if (smaller := known_draft_model(base_names(self.model))) is not None:
            return f"--draft-model {smaller}, a small model of the same family, after `kolm models pull {smaller}`"
        built = "kolm datastore build PROMPTS.jsonl --answers 20000 --out DIR"
        return f"--shared-datastore with the model's own answers, of `{built}`"

    def server_settings(self) -> Settings:
        """Settings of the generation service alone. Raises UsageError for folders that are missing."""
        for store in self.shared_datastore or ():
            expect_folder("--shared-datastore", store, STORE_FOLDER)
        for head in self.head or ():
            if "/" in head:
                expect_folder("--head", Path(head), HEAD_FOLDER)
        own = (
            "device", "head", "cache_bytes", "prefix_cache_dir", "prefix_cache_bytes", "draft_model",
            "shared_datastore",
        )  # fmt: skip
        off = {"no_auto_discover": not self.auto_discover, "no_own_head": not self.own_head}
        return off | {name: getattr(self, name) for name in own}


SERVED = ServedOptions()


@dataclass(frozen=True, slots=True)
class OtherEngineOptions:
    """Another engine that computes in place of kolm's own."""

    engine: Annotated[
        Literal["vllm", "sglang", "llama-server"] | None,
        Option(is_eager=True, help="A running engine that computes in place of kolm's own."),  # before --model
    ] = None
    plain_url: Annotated[
        str | None,
        Option(metavar="URL", callback=options.engine_access, help="URL of that engine, started with speculation off."),
    ] = None
    url: Annotated[
        str | None,
        Option(
            metavar="URL",
            callback=options.engine_access,
            help="URL of the same engine with speculation enabled. Default: none.",
        ),
    ] = None
    weights: Annotated[
        Path | None,
        Option(metavar="DIR|GGUF|NAME", callback=options.found_model, help="The model that the engine serves."),
    ] = None
    engine_key_file: Annotated[
        Path | None,
        Option(metavar="FILE", callback=options.engine_access, help="A file with the engine's API key."),
    ] = None
    engine_flag: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=VALUE", help="A flag of the engine that changes numbers, for its profile; may be repeated."
        ),
    ] = None
    reference: Annotated[
        str | None,
        Option(
            metavar="NUMBERS",
            help="The auditor's thresholds for outputs: mean,largest,surprise,rarest,drift,missed. Without the last, "
            "draws of seeds are not checked.",
        ),
    ] = None
    halt_inconsistent: Annotated[
        bool, Option("--halt-inconsistent", help="Halt speculation if an output is INCONSISTENT with --weights too.")
    ] = False

    def checked(self) -> OtherEngineOptions | None:
        """These options, None if no engine is named. Raises UsageError if one of them is missing."""
        given = [name for name in self.__slots__ if getattr(self, name)]
        if self.engine is None and given:
            raise UsageError(f"--{given[0].replace('_', '-')} goes with --engine vllm, sglang or llama-server")
        if self.engine is not None and self.plain_url is None:
            raise UsageError(f"--engine {self.engine} needs --plain-url, that engine with speculation off")
        return None if self.engine is None else self

    def settings(self) -> dict[str, Any]:
        """Settings of the generation service."""
        names = [name for name in self.__slots__ if name not in ("reference", "halt_inconsistent")]
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def auditor_settings(self) -> Settings:
        """Settings of the auditor, which asks the plain engine again."""
        names = ("engine", "plain_url", "engine_key_file", "reference", "halt_inconsistent")
        return {name: getattr(self, name) for name in names}


OTHER_ENGINE = OtherEngineOptions()


@dataclass(frozen=True, slots=True)
class Configuration:
    """One table for each service, by its name."""

    tables: Mapping[str, TomlTable]

    @classmethod
    def read(cls, path: Path) -> Configuration:
        """Raises UsageError with file and line for a name that nothing reads."""
        from services.runtime.settings import SettingsError, TomlTable

        try:
            return cls({name: TomlTable.read(path, name, kind.model_fields) for name, kind in _settings().items()})
        except SettingsError as error:
            raise UsageError(str(error)) from error

    def shared_with_the_auditor(self) -> dict[str, Any]:
        """The settings of the generation service that the auditor has to load as well."""
        return {name: value for name, value in self.tables["generation"].values.items() if name in _SHARED}

    def refuse_what_up_sets(self, plans: Iterable[Plan]) -> None:
        """Raises UsageError for a setting that its service's plan sets as well, and for settings of TLS."""
        for plan in plans:
            table = self.tables[plan.name]
            given = {name for name, value in plan.settings.items() if words(**{name: value})}
            taken = given - set(_SHARED) if plan.name == "generation" else given
            for name in table.values:
                if name.startswith("tls_"):
                    raise UsageError(f"{table.place(name)}: `kolm up` has no TLS", "`kolm serve` has")
                if name in taken:
                    instead = f"use {_INSTEAD[name]}" if name in _INSTEAD else None
                    hint = "it is read from [generation]" if name in _SHARED else instead
                    raise UsageError(f"{table.place(name)}: `kolm up` sets this itself", hint)


def refuse_tls_variables(plans: Iterable[Plan]) -> None:
    """Raises UsageError for a variable with which a service would have TLS; the others call it without."""
    prefixes = tuple(f"KOLM_{plan.name.upper()}_TLS_" for plan in plans)
    for name, value in os.environ.items():
        if value and name.upper().startswith(prefixes):
            raise UsageError(f"{name}: `kolm up` has no TLS", "unset it; `kolm serve` has TLS")


def _settings() -> dict[str, type[ServerSettings]]:
    """The settings of each service, by the name of its table."""
    from services.auditor.settings import AuditorSettings
    from services.explorer.settings import ExplorerSettings
    from services.generation.settings import GenerationSettings
    from services.http.settings import HttpSettings
    from services.ledger.settings import LedgerSettings
    from services.registry.settings import RegistrySettings
    from services.witness.settings import WitnessSettings

    return {
        "generation": GenerationSettings,
        "ledger": LedgerSettings,
        "auditor": AuditorSettings,
        "registry": RegistrySettings,
        "explorer": ExplorerSettings,
        "http": HttpSettings,
        "witness": WitnessSettings,
    }
