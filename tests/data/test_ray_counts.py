"""What a cluster counts against what one process counts, bit for bit."""

import os
import signal
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from plkernel.analysis.mutual_information.curve import decay_curves
from plkernel.analysis.mutual_information.pair_counts import PairCounts, block_edges, count_pairs
from plkernel.data import ray_counts as cluster
from plkernel.data.ray_counts import counting, split

# (symbols of data, lags, blocks); with 40 blocks of 9983 symbols lag 700 is longer than a block.
CASES = [(9983, [1, 2, 13, 700], 40), (10_000, [1], 1), (1000, [3, 999], 1), (257, [1, 250], 7)]
SHARDS = [1, 7, 300]


def random_bytes(size, symbols=11):
    return np.random.default_rng(size).integers(60, 60 + symbols, size, np.uint8)


def assert_same(found: PairCounts, expected: PairCounts) -> None:
    for name in ("lags", "symbols", "tables"):
        left, right = getattr(found, name), getattr(expected, name)
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


class Inline:
    """As much of Ray as is used here, in this process; a task runs when it is waited for, the last one first."""

    exceptions = SimpleNamespace(RayTaskError=type("TaskError", (Exception,), {}), RayError=ArithmeticError)

    def __init__(self, cores=2):
        self.cores, self.waiting, self.most, self.sent = cores, [], 0, []

    def cluster_resources(self):
        return {"CPU": float(self.cores)}

    def remote(self, **options):
        def submit(function):
            return SimpleNamespace(remote=lambda *args, **kwargs: self._submit(function, args, kwargs))

        return submit

    def _submit(self, function, args, kwargs):
        task = SimpleNamespace(run=lambda: function(*args, **kwargs))
        self.waiting.append(id(task))
        self.most = max(self.most, len(self.waiting))
        self.sent.append(args[0].size)
        return Reference(task)

    def wait(self, references):
        return [references[-1]], references[:-1]

    def get(self, reference):
        self.waiting.remove(id(reference.task))
        return reference.task.run()


class Reference:
    def __init__(self, task):
        self.task = task


@pytest.mark.parametrize(("size", "lags", "blocks"), CASES)
@pytest.mark.parametrize("shards", SHARDS)
def test_every_first_position_is_in_exactly_one_shard(size, lags, blocks, shards):
    edges, longest = block_edges(size, lags[-1], blocks), lags[-1]
    owner = np.zeros(size, int)
    for shard in split(size, longest, edges, shards):
        first, last = shard.start + shard.edges[0], shard.start + shard.edges[-1]
        owner[first:last] += 1
        assert shard.edges.size == shard.blocks.stop - shard.blocks.start + 1
        assert np.all(np.diff(shard.edges) > 0)
        np.testing.assert_array_equal(shard.edges[1:-1] + shard.start, edges[shard.blocks][1:])
        assert shard.stop == min(last + longest, size)
        assert shard.stop - shard.start > longest
    assert owner.tolist() == [1] * size


def test_shards_are_equal_and_as_many_as_asked_for():
    lengths = [shard.edges[-1] for shard in split(10_000, 100, np.array([0, 9000, 10_000]), 9)]
    assert lengths == [1100] * 8 + [1200]
    assert len(list(split(50, 40, np.array([0, 50]), 1000))) == 10


@pytest.mark.parametrize(("size", "lags", "blocks"), CASES)
@pytest.mark.parametrize("shards", SHARDS)
def test_shards_add_up_to_the_whole(size, lags, blocks, shards):
    data, edges, pairs = random_bytes(size), block_edges(size, lags[-1], blocks), []
    found = cluster._counter(Inline(), shards)(data, lags, edges=edges, progress=pairs.append)
    assert_same(found, count_pairs(data, lags, edges=edges))
    assert sum(pairs) == sum(size - lag for lag in lags)


def test_a_part_of_the_data_and_symbols_that_do_not_occur():
    data, edges, symbols = random_bytes(5000), np.array([100, 2000, 4001]), np.arange(50, 90, dtype=np.uint8)
    found = cluster._counter(Inline(), 6)(data, [1, 60], edges=edges, symbols=symbols)
    assert_same(found, count_pairs(data, [1, 60], edges=edges, symbols=symbols))


def test_stretches_are_short_and_few_at_a_time(monkeypatch):
    monkeypatch.setattr(cluster, "STRETCH", 1000)
    ray = Inline(cores=3)
    cluster._counter(ray, None)(random_bytes(100_000), [1, 50], edges=block_edges(100_000, 50, 2))
    assert len(ray.sent) == 100
    assert max(ray.sent) <= 1000 + 2 * 50
    assert ray.most == 3 * cluster.PER_CORE


def test_a_small_corpus_keeps_every_core_busy():
    ray = Inline(cores=5)
    cluster._counter(ray, None)(random_bytes(1000), [1], edges=np.array([0, 1000]))
    assert len(ray.sent) == 5 * cluster.TASKS_PER_CORE


def test_the_local_engine_is_count_pairs():
    with counting() as count:
        assert count is count_pairs


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("spark",), "engine 'spark': must be 'local' or 'ray'"), (("ray", 0), "shards must be at least 1, got 0")],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message), counting(*arguments):
        pass


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r'pip install "plkernel\[dist\]"'), counting("ray"):
        pass


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_cluster_that_does_not_answer_is_named(monkeypatch, scheme):
    pytest.importorskip("ray", reason="needs the extra dist")
    monkeypatch.setenv("RAY_ADDRESS", f"{scheme}127.0.0.1:1")
    with pytest.raises(OSError, match=f"RAY_ADDRESS={scheme}127.0.0.1:1: no cluster answers"), counting("ray"):
        pass


@pytest.fixture(scope="module")
def started():
    """Ray on this machine, once for all tests below; gone after them."""
    ray = pytest.importorskip("ray", reason="needs the extra dist")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        with counting("ray"):
            yield
    assert not ray.is_initialized()


@pytest.mark.slow
@pytest.mark.usefixtures("started")
class TestRay:
    @pytest.mark.parametrize(("size", "lags", "blocks"), CASES)
    @pytest.mark.parametrize("shards", [None, 1, 2, 7, 41])
    def test_counts_equal_the_local_ones(self, size, lags, blocks, shards):
        data, edges, pairs = random_bytes(size), block_edges(size, lags[-1], blocks), []
        with counting("ray", shards) as count:
            found = count(data, lags, edges=edges, progress=pairs.append)
        assert_same(found, count_pairs(data, lags, edges=edges))
        assert sum(pairs) == sum(size - lag for lag in lags)

    def test_curves_of_a_mapped_file_equal_the_local_ones(self, tmp_path):
        random_bytes(200_003).tofile(tmp_path / "flat")
        data = np.memmap(tmp_path / "flat", np.uint8, mode="r")
        with counting("ray") as count:
            assert decay_curves(data, [1, 5, 100], count=count) == decay_curves(data, [1, 5, 100])

    def test_a_worker_that_dies_changes_nothing(self, tmp_path, monkeypatch):
        def dies_once(*args, **kwargs):
            try:
                (tmp_path / "died").touch(exist_ok=False)
            except FileExistsError:
                return count_pairs(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGKILL)

        monkeypatch.setattr(cluster, "count_pairs", dies_once)
        data = random_bytes(20_001)
        with counting("ray", 8) as count:
            assert_same(count(data, [1, 9]), count_pairs(data, [1, 9]))
        assert (tmp_path / "died").exists()

    def test_a_stretch_that_kills_every_worker_is_an_error(self, monkeypatch):
        monkeypatch.setattr(cluster, "count_pairs", lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL))
        monkeypatch.setattr(cluster, "RETRIES", 0)
        with pytest.raises(OSError, match="engine 'ray'"), counting("ray", 1) as count:
            count(random_bytes(100), [1])

    def test_bad_input_found_by_a_worker_reads_as_if_found_here(self):
        with counting("ray") as count, pytest.raises(ValueError, match=r"^symbols leave out a byte value"):
            count(random_bytes(100), [1], symbols=np.array([60, 61], np.uint8))

    def test_another_error_of_a_worker_is_one_line(self, monkeypatch):
        def no_module(*args, **kwargs):
            raise ModuleNotFoundError("No module named 'plkernel'")

        monkeypatch.setattr(cluster, "count_pairs", no_module)
        with counting("ray") as count, pytest.raises(OSError, match=r"No module named .* needs plkernel$"):
            count(random_bytes(100), [1])
