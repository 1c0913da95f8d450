"""
The key that signs terminations and exports of the audit trail: ed25519, in the service's own file.

``audit-key.pem`` has the private key and is readable only by its owner. ``audit-key.pub`` has the public
keys, the newest last. To rotate the key, move ``audit-key.pem`` away and restart. Earlier signatures stay
verifiable. A signature covers the canonical JSON of an object without its signature: sorted keys, no spaces,
UTF-8.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from queenright.instrumentation.errors import QueenrightError
from queenright.runtime.events import AgentEvent

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

PRIVATE_NAME: Final = "audit-key.pem"
PUBLIC_NAME: Final = "audit-key.pub"

_PEM: Final = re.compile(rb"-----BEGIN PUBLIC KEY-----.+?-----END PUBLIC KEY-----", re.DOTALL)


class AuditKeyError(QueenrightError):
    """
    Raised when a key cannot be used. The message names the file, the reason and the fix, but quotes no
    content.
    """


class AuditKey:
    """A private key for signing."""

    __slots__ = ("_private", "key_id", "public")

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public = _encode_public_key(private.public_key())
        """The public key, 32 bytes."""
        self.key_id = key_id_of(self.public)

    @classmethod
    def load_or_create(cls, folder: Path) -> AuditKey:
        """
        Return the key of the service whose storage is ``folder``. Create it if it is missing.

        Raises:
            AuditKeyError: The file has no ed25519 key, others may read it, or the folder is not writable.
        """
        path = folder / PRIVATE_NAME
        try:
            if not path.exists():
                _create_private_key(folder)
            key = cls(_read_private_key(path))
            _append_public_key(folder / PUBLIC_NAME, key.public)
        except OSError as error:
            raise AuditKeyError(
                f"cannot use the audit key {path}: {error.strerror}; "
                "give the service a folder that it may read and write"
            ) from error
        return key

    @classmethod
    def load(cls, folder: Path) -> AuditKey | None:
        """
        Return the key in ``folder``, or None if it is missing or this user may not read it.

        Raises:
            AuditKeyError: The file has no ed25519 key, or others may read it.
        """
        try:
            return cls(_read_private_key(folder / PRIVATE_NAME))
        except OSError:
            return None

    def __repr__(self) -> str:
        return f"AuditKey({self.key_id!r})"

    def sign(self, event: AgentEvent) -> AgentEvent:
        """
        Return the event with ``key_id`` and ``signature`` (base64) in its data. The signature covers
        the rest of the event.
        """
        with_id = replace(event, data={**event.data, "key_id": self.key_id})
        signature = self.create_signature(build_signed_content(with_id))
        return replace(with_id, data={**with_id.data, "signature": signature})

    def create_signature(self, content: bytes) -> str:
        """Return the signature of ``content``, as base64."""
        return base64.b64encode(self._private.sign(content)).decode()


class PublicKeys:
    """
    Trusted public keys, by id.

    Args:
        keys: The keys, 32 bytes each.
    """

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        self._keys: dict[str, bytes] = {}
        self.add(keys)

    @classmethod
    def load(cls, *files: Path, missing_ok: bool = False) -> PublicKeys:
        """
        Return the keys in the PEM ``files``, each of which has one or more.

        Raises:
            AuditKeyError: A file cannot be read, or has no ed25519 public key.
        """
        return cls([key for file in files for key in _read_public_keys(file, missing_ok=missing_ok)])

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        return iter(self._keys.items())

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, keys: Iterable[bytes]) -> None:
        """Add trusted keys."""
        self._keys.update((key_id_of(key), key) for key in keys)

    def find_signature_problem(self, key_id: object, signature: object, content: bytes) -> str:
        """Return why ``signature`` is not valid for ``content``, or an empty string if it is."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        if not isinstance(key_id, str) or not isinstance(signature, str):
            return "it is not signed"
        if key_id not in self._keys:
            return f"it is signed by an unknown key, {key_id[:40]!r}"
        try:
            raw = base64.b64decode(signature, validate=True)
            if base64.b64encode(raw).decode() != signature:
                raise ValueError("not canonical base64")
            Ed25519PublicKey.from_public_bytes(self._keys[key_id]).verify(raw, content)
        except (InvalidSignature, ValueError):
            return f"the signature does not match key {key_id}: it was forged, or the signed content changed"
        return ""


def key_id_of(public: bytes) -> str:
    """Return the id of a public key: the first 16 hex digits of its SHA-256."""
    return hashlib.sha256(public).hexdigest()[:16]


def encode_canonical_json(value: Mapping[str, Any]) -> bytes:
    """Return JSON with sorted keys and no spaces, in UTF-8."""
    return orjson.dumps(value, default=dict, option=orjson.OPT_SORT_KEYS)


def build_signed_content(event: AgentEvent) -> bytes:
    """Return the content that the signature of an event covers: everything but the signature."""
    data = {key: value for key, value in event.data.items() if key != "signature"}
    return encode_canonical_json(event.to_dict() | {"time": event.time + 0.0, "data": data})


def _create_private_key(folder: Path) -> None:
    """Create a key file atomically, unless another process created it first."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    content = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    folder.mkdir(parents=True, exist_ok=True)
    with (
        _write_durably(folder / PRIVATE_NAME, content, 0o600) as temporary,
        contextlib.suppress(FileExistsError),
    ):
        # A rename would replace a key that another process created in the meantime.
        os.link(temporary, folder / PRIVATE_NAME)


def _append_public_key(path: Path, public: bytes) -> None:
    """Append a public key to the file ``path``, unless the file contains it."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if public in _read_public_keys(path, missing_ok=True):
        return
    existing = path.read_bytes() if path.exists() else b""
    pem = Ed25519PublicKey.from_public_bytes(public).public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    with _write_durably(path, existing + pem, 0o644) as temporary:
        temporary.replace(path)


@contextlib.contextmanager
def _write_durably(path: Path, content: bytes, mode: int) -> Iterator[Path]:
    """Yield a synced temporary file next to ``path``, and sync the folder afterwards."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with open(
            os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb"
        ) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read_private_key(path: Path) -> Ed25519PrivateKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        content = file.read(65_536)
    if mode & 0o077:
        raise AuditKeyError(
            f"the audit key {path} has the mode {mode:04o}, so others may have read it; "
            "move it away for a new one, or if it is still a secret, `chmod 600` it"
        )
    try:
        key = load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # The error gets no cause, because the cause's message may quote the file.
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise AuditKeyError(
            f"{path} is not an unencrypted ed25519 private key in PEM; "
            "restore it from a backup, or move it away for a new one"
        )
    return key


def _read_public_keys(path: Path, *, missing_ok: bool) -> list[bytes]:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    invalid = AuditKeyError(f"{path} has no ed25519 public keys in PEM; name a copy of {PUBLIC_NAME}")
    try:
        content = path.read_bytes()
    except OSError as error:
        if missing_ok and isinstance(error, FileNotFoundError):
            return []
        raise AuditKeyError(f"cannot read public keys from {path}: {error.strerror}") from error
    try:
        keys = [load_pem_public_key(pem) for pem in _PEM.findall(content)]
    except (ValueError, UnsupportedAlgorithm):
        raise invalid from None
    ed25519_keys = [key for key in keys if isinstance(key, Ed25519PublicKey)]
    if len(ed25519_keys) != len(keys) or not ed25519_keys:
        raise invalid
    return [_encode_public_key(key) for key in ed25519_keys]


def _encode_public_key(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes_raw()
