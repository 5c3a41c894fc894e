"""Compiled programs on disk: found by a later process, replaced when damaged or outdated, bounded in size."""

import dataclasses
import importlib.metadata
import os
import stat

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from calibayes._backend import program_cache
from calibayes._backend.functions import Function
from calibayes._backend.jit import clear_programs, jit
from calibayes._core import particles as particles_module
from calibayes._core.coordinates import Coordinates
from calibayes._core.counts import StoredCounts
from calibayes._core.loss import Generic
from calibayes._core.target import Target
from calibayes.losses import Quantile
from calibayes.priors import Normal


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Program cache in an empty folder, without JAX's cache and without programs in memory."""
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    # JAX keeps the cache that it has opened; programs from it cannot be serialised again.
    compilation_cache.reset_cache()
    monkeypatch.setattr(program_cache._Setting, "folder", tmp_path / "programs")
    monkeypatch.setattr(program_cache._Setting, "is_set", True)
    clear_programs()
    yield tmp_path / "programs"
    clear_programs()
    jax.config.update("jax_compilation_cache_dir", before)
    compilation_cache.reset_cache()


@pytest.fixture
def events():
    """Names of the JAX compilation events since the start of the test."""
    names = []
    listener = lambda name, _seconds, **_: names.append(name.rpartition("/")[2])
    jax.monitoring.register_event_duration_secs_listener(listener)
    yield names
    jax.monitoring.unregister_event_duration_listener(listener)


def target_of(loss, data):
    zeros = jnp.zeros((1, 4))
    counts = StoredCounts(jnp.asarray(4), jnp.ones((1, 4, 1)))
    return Target(loss, Normal(scale=2.0), data, counts, jnp.zeros(1), zeros, Coordinates.from_prior(Normal(), 1))


def linear_target():
    return target_of(Quantile(0.3), (jnp.ones((1, 4, 1)), jnp.arange(4.0)[None], jnp.zeros((1, 4))))


def own_target(fn):
    return target_of(Generic(Function(fn)), jnp.arange(4.0)[None])


def squared(theta, datum):
    return jnp.square(datum - theta[0])


def test_program_of_an_earlier_process_is_neither_traced_nor_compiled(folder, events):
    point = jnp.asarray([0.5])
    first = linear_target().recentre(point)
    assert "backend_compile_duration" in events
    assert len(list(folder.iterdir())) == 1
    clear_programs()
    target = linear_target()
    events.clear()
    second = target.recentre(point)
    assert not events
    assert jax.tree.structure(first) == jax.tree.structure(second)
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))


def test_functions_of_the_user_are_passed_on_and_distinguished_by_their_code(folder, events):
    point = jnp.asarray([0.5])
    first = own_target(squared).recentre(point)
    clear_programs()
    target = own_target(squared)
    events.clear()
    second = target.recentre(point)
    assert not events
    assert second.loss.fn is target.loss.fn
    assert np.array_equal(first.reference_loss, second.reference_loss)
    other = own_target(lambda theta, datum: 2 * jnp.square(datum - theta[0])).recentre(point)
    assert np.allclose(other.reference_loss, 2 * first.reference_loss)


def test_captured_values_are_part_of_the_name(folder):
    losses = []
    for scale in (1.0, 3.0):
        clear_programs()
        target = own_target(lambda theta, datum, scale=scale: scale * jnp.abs(datum - theta[0]))
        losses.append(np.asarray(target.recentre(jnp.asarray([0.5])).reference_loss))
    assert np.allclose(losses[1], 3 * losses[0])
    assert len(list(folder.iterdir())) == 2


class Unknown:
    """Object with a state that its attributes do not show."""

    __slots__ = ("scale",)

    def __init__(self, scale):
        self.scale = scale


def test_objects_of_unknown_classes_are_identified_by_the_lowered_program(folder):
    values = []
    for scale in (1.0, 3.0):
        clear_programs()
        unknown = Unknown(scale)
        target = own_target(lambda theta, datum, u=unknown: u.scale * jnp.abs(datum - theta[0]))
        values.append(np.asarray(target.recentre(jnp.asarray([0.5])).reference_loss))
    assert np.allclose(values[1], 3 * values[0])


def test_functions_of_other_modules_are_identified_by_the_lowered_program(folder):
    results = []
    for factor in (2.0, 5.0):
        clear_programs()
        scaled = jit(lambda x, factor=factor: factor * x)
        results.append(float(scaled(jnp.ones(()))))
    assert results == [2.0, 5.0]


@pytest.mark.parametrize("damage", [lambda content: content[:100], lambda _: b"", lambda c: c[:-1] + b"\0" + c[-1:]])
def test_damaged_file_is_replaced(folder, events, damage):
    point = jnp.asarray([0.5])
    expected = linear_target().recentre(point)
    (path,) = folder.iterdir()
    content = path.read_bytes()
    path.write_bytes(damage(content))
    clear_programs()
    events.clear()
    result = linear_target().recentre(point)
    assert "backend_compile_duration" in events
    assert np.array_equal(result.reference_loss, expected.reference_loss)
    assert len(path.read_bytes()) > 100


def test_replaced_tuning_constant_is_another_program(folder, monkeypatch):
    linear_target().recentre(jnp.asarray([0.5]))
    clear_programs()
    changed = dataclasses.replace(particles_module.CONFIG, max_unrolled_dim=3)
    monkeypatch.setattr(particles_module, "CONFIG", changed)
    linear_target().recentre(jnp.asarray([0.5]))
    assert len(list(folder.iterdir())) == 2


def test_double_precision_is_another_program(folder):
    linear_target().recentre(jnp.asarray([0.5]))
    with jax.enable_x64(True):
        linear_target().recentre(jnp.asarray([0.5]))
    assert len(list(folder.iterdir())) == 2


def test_oldest_files_are_deleted(folder, monkeypatch):
    linear_target().recentre(jnp.asarray([0.5]))
    (path,) = folder.iterdir()
    os.utime(path, (1, 1))
    limit = dataclasses.replace(program_cache.CONFIG, max_bytes=int(1.5 * path.stat().st_size))
    monkeypatch.setattr(program_cache, "CONFIG", limit)
    own_target(squared).recentre(jnp.asarray([0.5]))
    assert path not in list(folder.iterdir())
    assert len(list(folder.iterdir())) == 1


def test_use_of_a_program_makes_it_recent(folder):
    linear_target().recentre(jnp.asarray([0.5]))
    (path,) = folder.iterdir()
    os.utime(path, (1, 1))
    clear_programs()
    linear_target().recentre(jnp.asarray([0.5]))
    assert path.stat().st_mtime > 1


def test_program_on_a_read_only_file_system_is_used(folder, events, monkeypatch):
    """The time of its last use cannot be recorded there."""
    point = jnp.asarray([0.5])
    linear_target().recentre(point)
    clear_programs()
    monkeypatch.setattr(os, "utime", raise_os_error)
    target = linear_target()
    events.clear()
    target.recentre(point)
    assert not events


@pytest.mark.parametrize("function", ["fdopen", "replace"])
def test_failed_write_leaves_no_temporary_file(folder, monkeypatch, function):
    monkeypatch.setattr(os, function, raise_os_error)
    linear_target().recentre(jnp.asarray([0.5]))
    assert not list(folder.iterdir())


def raise_os_error(*_, **__):
    raise OSError("No space left on device")


def test_folder_is_private_and_holds_no_temporary_files(folder):
    linear_target().recentre(jnp.asarray([0.5]))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not list(folder.glob("*.tmp"))


def test_folder_that_cannot_be_created_is_no_error(folder):
    folder.write_text("")
    assert linear_target().recentre(jnp.asarray([0.5])).reference.shape == (1,)


def test_settings_choose_the_folder(tmp_path, monkeypatch):
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setattr(program_cache._Setting, "is_set", False)
    monkeypatch.delenv(program_cache.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        assert program_cache.cache_dir() == tmp_path / "calibayes" / "programs"
        monkeypatch.setenv(program_cache.VARIABLE, str(tmp_path / "other"))
        assert program_cache.cache_dir() == tmp_path / "other"
        monkeypatch.setenv(program_cache.VARIABLE, "off")
        assert program_cache.cache_dir() is None
        program_cache.set_cache_dir(tmp_path)
        assert program_cache.cache_dir() == tmp_path
        program_cache.set_cache_dir(None)
        assert program_cache.cache_dir() is None
        program_cache.set_cache_dir(tmp_path)
        jax.config.update("jax_compilation_cache_dir", str(tmp_path / "jax"))
        assert program_cache.cache_dir() is None
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_name_depends_on_the_versions(monkeypatch):
    name = program_cache.name_of("text")
    assert importlib.metadata.version("jax") in program_cache._environment()
    monkeypatch.setattr(jax, "__version__", "0.0")
    assert program_cache.name_of("text") != name


def test_programs_that_differ_in_unused_arguments_are_not_confused(folder):
    """A lowered program does not mention the shape of an argument that it does not use."""
    first = jit(lambda x, unused: 2 * x)
    first(np.ones(2, np.float32), np.ones(3, np.float32))
    clear_programs()
    second = jit(lambda x, unused: 2 * x)
    np.testing.assert_array_equal(second(np.ones(2, np.float32), np.ones(5, np.float32)), [2.0, 2.0])
    assert len(list(folder.iterdir())) == 2


def test_programs_that_use_different_arguments_are_not_confused(folder):
    """The lowered programs of both functions would be equal if arguments that are not used were dropped."""
    results = []
    for name in ("first", "second"):
        clear_programs()
        of_one = jit(lambda first, second, name=name: {"first": first, "second": second}[name] * 2)
        results.append(float(of_one(np.ones((), np.float32), np.full((), 5, np.float32))))
    assert results == [2.0, 10.0]


def test_other_files_in_the_folder_are_not_deleted(folder, monkeypatch):
    folder.mkdir()
    (folder / "data.csv").write_text("a,b\n" * 100_000)
    monkeypatch.setattr(program_cache, "CONFIG", dataclasses.replace(program_cache.CONFIG, max_bytes=1))
    linear_target().recentre(jnp.asarray([0.5]))
    assert [path.name for path in folder.iterdir()] == ["data.csv"]


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="Windows has no permission bits")
def test_program_that_others_can_write_to_is_not_run(folder, events):
    linear_target().recentre(jnp.asarray([0.5]))
    (path,) = folder.iterdir()
    path.chmod(0o666)
    clear_programs()
    events.clear()
    linear_target().recentre(jnp.asarray([0.5]))
    assert "backend_compile_duration" in events
