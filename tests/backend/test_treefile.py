"""Files of trees: everything that is stored comes back, and a damaged or hostile file is rejected and never run."""

import io
import json
import os
import pickle
from collections import namedtuple
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._backend import treefile
from calibayes._backend.files import stored_checksum
from calibayes._backend.fingerprint import digest
from calibayes._core.curve import Coverage, Curve
from calibayes._core.particles import Particles

TRUSTED = frozenset({__name__})
DAMAGED = "was not written by calibayes, or is damaged"


class Colour(Enum):
    RED = "r"


@dataclass(frozen=True)
class Note:
    text: str
    value: float = 0.0


class Module(eqx.Module):
    array: jax.Array
    number: int = eqx.field(static=True)


Pair = namedtuple("Pair", ["first", "second"])


class Opaque:
    """Neither a named tuple nor a dataclass nor an enum."""


def roundtrip(path, tree, trusted=TRUSTED, replace=lambda value: None, restore=lambda stand_in: None):
    treefile.write(path, {"n": 1}, tree, trusted, replace)
    header, build = treefile.read(path, trusted)
    assert header == {"n": 1}
    return build(restore)


def forge(arrays, nodes, data=b"", **header):
    """Return the bytes of a file with these nodes, whose lengths and checksum are right."""
    head = json.dumps({"arrays": arrays, "nodes": nodes} | header).encode()
    return with_checksum(treefile._MAGIC + len(head).to_bytes(8, "little") + head + data)


def with_checksum(content):
    return content + b"\ncalibayes sha256 " + sha256(content).hexdigest().encode()


def read_forged(path, nodes, arrays=(), data=b"", trusted=TRUSTED):
    path.write_bytes(forge(list(arrays), nodes, data))
    return treefile.read(path, trusted)[1](lambda stand_in: stand_in)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        0.1,
        float("inf"),
        "text",
        [1, (2.0, "a"), {"b": None, 1: [True]}],
        np.arange(6, dtype=np.int32).reshape(2, 3),
        np.float32(0.1),
        np.empty((0, 3)),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        jnp.asarray([[0.1, jnp.nan]]),
        jax.random.key(5),
        jax.random.split(jax.random.key(5), 3),
        Note("a", 1.5),
        Pair(1, Note("b")),
        Module(jnp.ones(2), 3),
        cb.Status.CONVERGED,
        cb.Diagnostic(cb.Code.ESS_LOW, cb.Severity.WARNING, 2, "A message."),
        Coverage(95, 100),
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_values_are_restored(value, tmp_path):
    restored = roundtrip(tmp_path / "a", value)
    assert type(restored) is type(value)
    assert digest(restored) == digest(value)


def test_enum_members_are_restored_as_themselves(tmp_path):
    restored = roundtrip(tmp_path / "a", [Colour.RED, cb.Code.ESS_LOW, cb.Severity.ERROR])
    assert restored[0] is Colour.RED
    assert restored[1] is cb.Code.ESS_LOW
    assert restored[2] is cb.Severity.ERROR


def test_coverage_keeps_its_number_of_replicates(tmp_path):
    restored = roundtrip(tmp_path / "a", Coverage(93, 111))
    assert (restored, restored.n_replicates, restored.interval) == (
        Coverage(93, 111),
        111,
        Coverage(93, 111).interval,
    )


def test_curve_is_restored_without_its_cached_values(tmp_path):
    levels = np.random.default_rng(0).uniform(size=(3, 50))
    curve = Curve(np.array([1.0, 2.0, 3.0]), np.sort(levels, 0), np.ones(3), 0.9)
    expected = curve.critical_etas()
    np.testing.assert_array_equal(roundtrip(tmp_path / "a", curve).critical_etas(), expected)


def test_arrays_stay_numpy_or_jax(tmp_path):
    on_host, on_device = roundtrip(tmp_path / "a", [np.ones(2), jnp.ones(2)])
    assert isinstance(on_host, np.ndarray)
    assert isinstance(on_device, jax.Array)
    on_host[0] = 2.0


def test_object_that_occurs_twice_is_one_object(tmp_path):
    shared = Note("shared")
    first, (second, other) = roundtrip(tmp_path / "a", [shared, (shared, Note("shared"))])
    assert first is second
    assert first is not other


def test_stand_ins_replace_objects(tmp_path):
    restored = roundtrip(
        tmp_path / "a",
        [Opaque(), 1],
        replace=lambda value: {"stand-in": 7} if isinstance(value, Opaque) else None,
        restore=lambda stand_in: stand_in["stand-in"] * 2,
    )
    assert restored == [14, 1]


@pytest.mark.parametrize("kernel", [cb.kernels.RWMH(), cb.kernels.RAM(), cb.kernels.CrankNicolson()])
def test_adaptation_of_a_kernel_is_restored(kernel, tmp_path):
    adaptation = kernel.init(jnp.asarray([[[0.1]], [[np.pi]]]))
    tree = [adaptation, adaptation, {1: jax.random.key(5), "a": (np.float32(0.1), float("nan"), None)}]
    restored = roundtrip(tmp_path / "a", tree, trusted=frozenset())
    assert restored[0] is restored[1]
    assert digest(restored) == digest(tree)


def make_local_class():
    @dataclass
    class Local:
        value: int = 0

    return Local()


@pytest.mark.parametrize(
    ("value", "trusted"),
    [
        (Opaque(), TRUSTED),
        (Note("a"), frozenset()),
        (make_local_class(), TRUSTED),
        (lambda: None, TRUSTED),
        (np.array([None]), TRUSTED),
        ({1, 2}, TRUSTED),
        (os, TRUSTED),
    ],
    ids=["opaque", "not trusted", "local class", "function", "array of objects", "set", "module"],
)
def test_unsupported_values_are_not_written(value, trusted, tmp_path):
    with pytest.raises(cb.CheckpointError, match="which cannot be stored"):
        treefile.write(tmp_path / "a", {}, [value], trusted, lambda value: None)
    assert not list(tmp_path.iterdir())


def test_error_names_the_class_that_cannot_be_stored(tmp_path):
    with pytest.raises(cb.CheckpointError, match=r"a test_treefile:Opaque, which cannot be stored"):
        treefile.write(tmp_path / "a", {}, [Opaque()], TRUSTED, lambda value: None)


def test_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a"
    treefile.write(path, {}, [1], TRUSTED, lambda value: None)
    before = path.read_bytes()
    for broken in ("os.replace", "os.fsync"):
        with monkeypatch.context() as patched:

            def fail(*_):
                raise KeyboardInterrupt

            patched.setattr(broken, fail)
            with pytest.raises(KeyboardInterrupt):
                treefile.write(path, {}, [2], TRUSTED, lambda value: None)
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]


def test_checksum_tells_files_apart(tmp_path):
    checksums = []
    for content in (1, 1, 2):
        treefile.write(tmp_path / "a", {}, [content], TRUSTED, lambda value: None)
        checksums.append(stored_checksum(tmp_path / "a"))
    assert checksums[0] == checksums[1] != checksums[2]


class Malicious:
    def __reduce__(self):
        return (os.abort, ())


def npz_with_pickle():
    buffer = io.BytesIO()
    np.savez(buffer, a=np.array([Malicious()], object))
    return buffer.getvalue()


NOT_CHECKPOINTS = {
    "empty": b"",
    "zeros": b"\x00" * 1000,
    "random bytes": np.random.default_rng(0).bytes(5000),
    "pickle": pickle.dumps(Malicious()),
    "npz with a pickle": npz_with_pickle(),
    "first line only": treefile._MAGIC,
    "first line and checksum": with_checksum(treefile._MAGIC),
    "checksum only": with_checksum(b""),
    "header longer than the file": with_checksum(treefile._MAGIC + (2**63).to_bytes(8, "little")),
    "header is a list": with_checksum(treefile._MAGIC + (2).to_bytes(8, "little") + b"[]"),
    "array larger than the file": forge([["float64", [10**13]]], [["jax", 0]]),
    "array with a huge axis": forge([["float64", [0, 10**30]]], [["jax", 0]]),
    "negative axis": forge([["float64", [-1]]], [["jax", 0]]),
    "dtype object": forge([["object", [1]]], [["numpy", 0]], b"12345678"),
    "dtype void": forge([["V8", [1]]], [["numpy", 0]], b"12345678"),
    "too many axes": forge([["float32", [1] * 100]], [["numpy", 0]], b"1234"),
    "deeply nested header": with_checksum(treefile._MAGIC + (100_000).to_bytes(8, "little") + b"[" * 100_000),
    "another format version": with_checksum(forge([], [["plain", 1]])[:-82].replace(b"checkpoint 7", b"checkpoint 5")),
    "checksum of other content": forge([], [["plain", 1]]).replace(b"plain", b"Plain"),
}


@pytest.mark.parametrize("content", NOT_CHECKPOINTS.values(), ids=NOT_CHECKPOINTS)
def test_other_files_are_rejected(content, tmp_path):
    path = tmp_path / "run.ckpt"
    path.write_bytes(content)
    with pytest.raises(cb.CheckpointError, match=rf"run\.ckpt' {DAMAGED}"):
        treefile.read(path, TRUSTED)
    assert path.read_bytes() == content


def test_every_truncation_and_every_flipped_byte_is_detected(tmp_path):
    path = tmp_path / "a"
    treefile.write(path, {"n": 1}, [np.arange(3.0), Note("a")], TRUSTED, lambda value: None)
    content = path.read_bytes()
    for position in range(len(content)):
        for damaged in (
            content[:position],
            content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :],
        ):
            path.write_bytes(damaged)
            with pytest.raises(cb.CheckpointError, match=DAMAGED):
                treefile.read(path, TRUSTED)
    path.write_bytes(content + b"0")
    with pytest.raises(cb.CheckpointError, match=DAMAGED):
        treefile.read(path, TRUSTED)


def test_unreadable_file_is_reported(tmp_path):
    with pytest.raises(cb.CheckpointError, match="cannot be read"):
        treefile.read(tmp_path, TRUSTED)


HOSTILE_NODES = {
    "no nodes": [],
    "function of a library": [["new", "os:system", "false"]],
    "class of a module that is not trusted": [["new", "subprocess:Popen", "false"]],
    "class of a module that is not imported": [["record", "calibayes.no_such_module:A"]],
    "class that a trusted module imports": [
        ["new", "calibayes._backend.treefile:np.memmap", "memory", "u1", "w+", 0, 1]
    ],
    "enum that a trusted module imports": [["enum", f"{__name__}:Enum", "RED"]],
    "class without fields": [["record", f"{__name__}:Opaque"]],
    "class with a constructor": [["new", f"{__name__}:Opaque", 1]],
    "record as enum": [["enum", f"{__name__}:Note", "text"]],
    "unknown enum member": [["enum", f"{__name__}:Colour", "GREEN"]],
    "record with too few fields": [["record", "calibayes._core.particles:Particles"]],
    "reference to a later node": [["tuple", 1]],
    "array that does not exist": [["jax", 5]],
    "unknown kind": [["eval", "1 + 1"]],
    "unknown kind of array": [["plain", 0], ["file", 0]],
    "nodes are a string": "abc",
    "dict with a key but no value": [["plain", 1], ["dict", 0]],
    "node without a kind": [[]],
}


@pytest.mark.parametrize("nodes", HOSTILE_NODES.values(), ids=HOSTILE_NODES)
def test_hostile_nodes_are_rejected(nodes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.ckpt"
    with pytest.raises(cb.CheckpointError, match="damaged"):
        read_forged(path, nodes, [["float32", [1]]], b"1234")
    assert list(tmp_path.iterdir()) == [path]


def test_constructors_are_not_called(tmp_path, monkeypatch):
    """Records are rebuilt field by field, whatever their constructor does."""
    monkeypatch.setattr(Note, "__init__", lambda self, *args: os.abort())
    note = read_forged(tmp_path / "a", [["plain", "x"], ["plain", 1.0], ["record", f"{__name__}:Note", 0, 1]])
    assert (note.text, note.value) == ("x", 1.0)


def test_trusted_modules_are_named_by_the_caller(tmp_path):
    nodes = [["plain", "x"], ["plain", 1.0], ["record", f"{__name__}:Note", 0, 1]]
    assert isinstance(read_forged(tmp_path / "a", nodes), Note)
    with pytest.raises(cb.CheckpointError, match="damaged"):
        read_forged(tmp_path / "a", nodes, trusted=frozenset())


def test_particles_need_no_trust(tmp_path):
    """Classes of this package are always trusted."""
    particles = Particles(jnp.ones((1, 2, 3)), jnp.ones((2, 3)), jnp.ones((2, 3)), jnp.ones((2, 3)))
    restored = roundtrip(tmp_path / "a", particles, trusted=frozenset())
    assert digest(restored) == digest(particles)
