"""A PKCS#11 token of SoftHSM for tests, in a folder of their own."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

REQUIRED = "KOLM_TESTS_NEED_SOFTHSM"
MODULE = Path("/usr/lib/softhsm/libsofthsm2.so")
PIN = "246810"
_EDWARDS25519 = b"\x13\x0cedwards25519"  # a PrintableString, as PKCS#11 3.0 names the curve in CKA_EC_PARAMS


@dataclass(frozen=True)
class Token:
    """An initialised token with the label `kolm`; `pin_file` holds its PIN."""

    pin_file: Path

    def uri(self, label: str) -> Path:
        return Path(f"pkcs11:token=kolm;object={label}?module-path={MODULE}")

    def generate(self, label: str) -> None:
        """Make an Ed25519 key pair in the token."""
        import pkcs11
        from pkcs11 import Attribute, KeyType, Mechanism

        token = pkcs11.lib(str(MODULE)).get_token(token_label="kolm")
        with token.open(rw=True, user_pin=PIN) as session:
            curve = session.create_domain_parameters(
                KeyType.EC_EDWARDS, {Attribute.EC_PARAMS: _EDWARDS25519}, local=True
            )
            curve.generate_keypair(mechanism=Mechanism.EC_EDWARDS_KEY_PAIR_GEN, store=True, label=label)


def new_token(folder: Path) -> Token:
    """Skip the test if SoftHSM is not installed, unless it is required. The library reads its configuration once a
    process: all its users share one token.
    """
    if not MODULE.exists():
        if os.environ.get(REQUIRED):
            raise AssertionError(f"{MODULE} is not there, and {REQUIRED} asks for it: apt-get install softhsm2")
        pytest.skip("SoftHSM is not installed")
    (folder / "tokens").mkdir()
    configuration = folder / "softhsm2.conf"
    configuration.write_text(f"directories.tokendir = {folder / 'tokens'}\nlog.level = ERROR\n")
    os.environ["SOFTHSM2_CONF"] = str(configuration)
    initialise = ["softhsm2-util", "--init-token", "--free", "--label", "kolm", "--pin", PIN, "--so-pin", "135791"]
    subprocess.run(initialise, check=True, capture_output=True)
    pin_file = folder / "pin"
    pin_file.write_text(f"{PIN}\n")
    return Token(pin_file)
