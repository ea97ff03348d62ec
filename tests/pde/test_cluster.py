"""Data sets made on a cluster: two workers in processes of their own, some of them killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from pde import DataSpec, PdeError, PermeabilityDataSpec, SourceDataSpec, generate
from pde.datasets import command as command_line
from pde.io.sample_file import SampleFile

distributed = pytest.importorskip("distributed", reason="distributed is in the extra cluster")
Client = distributed.Client
from pde.datasets import dask_cluster as ours  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "generate_pde.py"
SPEC = PermeabilityDataSpec(nx=12, ny=10, terms=8, num_samples=1000, save_pressure=True)
SPECS: dict[str, DataSpec] = {
    "permeability": SPEC,
    "random sources": SourceDataSpec(
        nx=12, ny=10, source="random", num_samples=1000, save_pressure=True
    ),
}
DEADLY = """
import os, signal
from pathlib import Path
from pde import PermeabilityDataSpec

built = []

class Fields:
    def __init__(self, fields):
        self.fields = fields

    def draw(self, i):
        if i == 130 and (Path(__file__).parent / "deadly").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        if i == 0 and "OTHER_BITS" in os.environ:
            return self.fields.draw(1)
        return self.fields.draw(i)

class DeadlySpec(PermeabilityDataSpec):
    @property
    def fields(self):
        built.append(1)
        return Fields(super().fields)

def state():
    from pde.datasets.dask_cluster import _kept
    return len(built), len(_kept)
"""


class Machines:
    """Processes of Dask, each the leader of a group that ends with it."""

    def __init__(self, folder):
        self.folder, self.running = folder, []

    def start(self, module, *arguments, path=(ROOT,), **environment):
        environment = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"} | {
            "PYTHONPATH": os.pathsep.join(str(p) for p in (*path, self.folder)),
            # Two deaths are enough for a chunk; real clusters allow four.
            "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1",
            **environment,
        }
        process = subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.{module}", *arguments],
            cwd=self.folder,
            env=environment,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.running.append(process)
        return process

    def scheduler(self):
        file = self.folder / f"scheduler-{len(self.running)}.json"
        where = ("--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0")
        alone = ("--idle-timeout", "120s")  # should the tests themselves be killed
        process = self.start("dask_scheduler", *where, *alone, "--scheduler-file", str(file))
        while process.poll() is None:
            try:
                return json.loads(file.read_text())["address"]
            except (FileNotFoundError, ValueError):
                time.sleep(0.02)
        raise RuntimeError("the scheduler did not start")

    def workers(self, address, *arguments, **options):
        usual = ("--nthreads", "1", "--no-dashboard", "--local-directory", str(self.folder))
        usual += ("--death-timeout", "5s")
        return self.start("dask_worker", address, *usual, *arguments, **options)

    def stop(self, process):
        """End it and what it started."""
        self.running.remove(process)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "deadly_spec.py").write_text(DEADLY)
    machines = Machines(folder)
    yield machines
    for process in machines.running[::-1]:
        machines.stop(process)


@pytest.fixture(scope="module")
def address(machines):
    """A scheduler with two workers."""
    address = machines.scheduler()
    machines.workers(address, "--nworkers", "2")
    pids(address)
    return address


@pytest.fixture(scope="module", params=SPECS)
def spec(request):
    return SPECS[request.param]


@pytest.fixture(scope="module")
def wholes(tmp_path_factory):
    """The bytes of a run on this machine, by specification."""
    folder = tmp_path_factory.mktemp("whole")
    return {
        spec: generate(spec, folder / name, 1, "scipy", progress=False).read_bytes()
        for name, spec in SPECS.items()
    }


@pytest.fixture(scope="module")
def whole(wholes):
    return wholes[SPEC]


@pytest.fixture(scope="module")
def deadly(machines):
    """A module that the workers have too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(machines.folder))
        import deadly_spec

        yield deadly_spec
        del sys.modules["deadly_spec"]


def ask(address, function, *arguments, count=2):
    """What all workers answer, once there are so many."""
    with Client(address, timeout=20, set_as_default=False) as client:
        client.wait_for_workers(count, timeout=60)
        return sorted(client.run(function, *arguments).values())


def pids(address, count=2):
    return ask(address, os.getpid, count=count)


def make(path, address, spec=SPEC, **options):
    options = {"backend": "scipy", "progress": False} | options
    return generate(spec, path, scheduler=address, **options)


def after_first_write(monkeypatch, action):
    """Do something when the first chunk is on disk, and note which chunks are written."""
    written, write = [], SampleFile.write

    def wrapped(self, index, arrays):
        write(self, index, arrays)
        written.append(index)
        if len(written) == 1:
            action()

    monkeypatch.setattr(SampleFile, "write", wrapped)
    return written


def submissions(patch):
    """Every future that a client submits from now on."""
    submitted, submit = [], Client.submit

    def keep(self, *arguments, **options):
        submitted.append(submit(self, *arguments, **options))
        return submitted[-1]

    patch.setattr(Client, "submit", keep)
    return submitted


def test_a_killed_worker_loses_nothing(tmp_path, monkeypatch, address, spec, wholes):
    before = pids(address)
    written = after_first_write(monkeypatch, lambda: os.kill(before[0], signal.SIGKILL))
    path = make(tmp_path / "a", address, spec)
    assert path.read_bytes() == wholes[spec]
    assert sorted(written) == list(range(16))
    assert list(tmp_path.iterdir()) == [path]
    assert before[0] not in pids(address)  # nor was this a run that did not notice


def test_the_command_goes_on_where_it_was_stopped(tmp_path, monkeypatch, capsys, address, whole):
    def stop():
        raise KeyboardInterrupt

    path = tmp_path / "a"
    command = "permeability --samples 1000 --terms 8 --pressure --backend scipy --out"
    command = [*command.split(), str(path), "--scheduler", address]

    # The command's grids are square; this one is not.
    class Given(PermeabilityDataSpec):
        def __new__(cls, **_):
            return SPEC

    monkeypatch.setattr(command_line, "PermeabilityDataSpec", Given)
    with monkeypatch.context() as patch:
        first = after_first_write(patch, stop)
        submitted = submissions(patch)
        pids(address)
        assert command_line.main(command) == 130
    assert len(first) == 1
    assert len(submitted) == 4  # two a thread: memory does not grow with the samples
    assert not path.exists()
    # The workers have not forgotten the stopped run; another one is none of its business.
    make(tmp_path / "b", address, PermeabilityDataSpec(nx=6, ny=6, terms=4, num_samples=300))
    second = after_first_write(monkeypatch, lambda: None)
    assert command_line.main(command) == 0
    assert sorted(first + second) == list(range(16))
    assert path.read_bytes() == whole
    assert capsys.readouterr().out == f"{path}\n"


def test_a_chunk_that_kills_its_workers_is_one_error(tmp_path, machines, address, whole, deadly):
    spec = deadly.DeadlySpec(**(SPEC.parameters() | {"num_samples": 192}))
    flag = machines.folder / "deadly"
    flag.touch()
    path = tmp_path / "a"
    with pytest.raises(PdeError, match=r"2 workers died one after the other with samples \d+ to"):
        make(path, address, spec)
    flag.unlink()
    assert path.with_name("a.part").exists()
    make(path, address, spec)
    plain = PermeabilityDataSpec(**spec.parameters())
    generate(plain, tmp_path / "b", workers=1, backend="scipy", progress=False)
    assert path.read_bytes() == (tmp_path / "b").read_bytes()


def test_the_workers_choose_the_backend(tmp_path, address):
    pytest.importorskip("numba", reason="numba is in the extra fast")
    spec = PermeabilityDataSpec(nx=12, ny=10, terms=8, num_samples=100)
    make(tmp_path / "a", address, spec, backend="auto")
    generate(spec, tmp_path / "b", 1, "compiled", progress=False)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_blas_has_one_thread_in_the_workers(address):
    assert ask(address, os.getenv, "OPENBLAS_NUM_THREADS") == ["1", "1"]


def test_workers_keep_what_they_built_until_the_end(tmp_path, address, deadly):
    before = ask(address, deadly.state)
    make(tmp_path / "a", address, deadly.DeadlySpec(**SPEC.parameters()))
    after = ask(address, deadly.state)
    built = sum(count for count, _ in after) - sum(count for count, _ in before)
    assert 1 <= built <= 2  # of 16 chunks
    assert [kept for _, kept in after] == [0, 0]


def test_other_versions_are_refused(tmp_path, monkeypatch, address):
    monkeypatch.setattr(np, "__version__", "1.0")
    with pytest.raises(PdeError, match=r"has numpy \d.*, expected 1.0, and would not make the"):
        make(tmp_path / "a", address)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("stranger", "backend", "message"),
    [
        ("bare", "scipy", "cannot run this .*No module named 'pde'.*: install there"),
        ("no numba", "compiled", "the compiled backend needs Numba: install the extra `fast`"),
        ("no numba", "auto", "has backend .*, expected .*: name one, or install"),
        ("other bits", "scipy", "has checksum of sample 0 .*, expected .*: take processors of one"),
    ],
)
def test_workers_that_are_not_alike_are_refused(
    tmp_path, machines, address, deadly, stranger, backend, message
):
    options = {}
    if stranger == "no numba":
        pytest.importorskip("numba", reason="without it all are alike")
        (tmp_path / "numba.py").write_text("raise ImportError('none here')")
        options = {"path": (tmp_path, ROOT)}
    elif stranger == "bare":
        # In the way of the package where that is installed.
        (tmp_path / "pde.py").write_text("raise ModuleNotFoundError(\"No module named 'pde'\")")
        options = {"path": (tmp_path,)}
    else:
        options = {"OTHER_BITS": "1"}
    process = machines.workers(address, "--no-nanny", **options)
    try:
        pids(address, 3)
        with pytest.raises(PdeError, match=message):
            make(tmp_path / "a", address, deadly.DeadlySpec(**SPEC.parameters()), backend=backend)
    finally:
        machines.stop(process)
    assert not (tmp_path / "a").exists()


def test_a_cluster_that_falls_apart_is_one_error(tmp_path, monkeypatch, machines, whole):
    path, address = tmp_path / "a", machines.scheduler()
    scheduler = machines.running[-1]
    monkeypatch.setattr(ours, "ALONE", 0.5)
    with pytest.raises(PdeError, match=r"has no workers .*; start some with `dask worker tcp:"):
        make(path, address)
    monkeypatch.setattr(ours, "ALONE", 60.0)
    worker = machines.workers(address, "--no-nanny")

    def lose_worker():
        monkeypatch.setattr(ours, "ALONE", 0.5)
        worker.kill()

    first = after_first_write(monkeypatch, lose_worker)
    with pytest.raises(PdeError, match=r"no worker is left at tcp:.*; finished chunks are kept"):
        make(path, address)
    monkeypatch.undo()
    machines.workers(address, "--no-nanny")
    second = after_first_write(monkeypatch, scheduler.kill)
    with pytest.raises(PdeError, match=r"went away or dropped the chunks .*; finished chunks are"):
        make(path, address)
    monkeypatch.undo()
    assert first
    assert second
    assert len({*first, *second}) == len(first) + len(second) < 16
    generate(SPEC, path, 1, "scipy", progress=False)
    assert path.read_bytes() == whole


def test_the_last_worker_dies_with_a_finished_chunk(
    tmp_path, monkeypatch, caplog, machines, spec, wholes
):
    path, address = tmp_path / "a", machines.scheduler()
    worker, submitted = machines.workers(address, "--no-nanny"), submissions(monkeypatch)

    def lose_worker():
        while not submitted[-1].done():  # one is written, the other not yet fetched
            time.sleep(0.02)
        monkeypatch.setattr(ours, "ALONE", 0.5)
        worker.kill()

    first = after_first_write(monkeypatch, lose_worker)
    with pytest.raises(PdeError, match=r"no worker is left at tcp:.*; finished chunks are kept"):
        make(path, address, spec)
    assert len(first) == 1
    assert not caplog.records  # Dask's loop has nothing left to complain of
    monkeypatch.undo()
    machines.workers(address, "--no-nanny")
    make(path, address, spec)
    assert path.read_bytes() == wholes[spec]


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "127.0.0.1", ""])
def test_an_address_without_a_scheduler_is_one_error(tmp_path, monkeypatch, capfd, address):
    monkeypatch.setattr(ours, "ANSWER", 0.5)
    with pytest.raises(PdeError, match=f"no Dask scheduler answers at '{address}' "):
        make(tmp_path / "a", address)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr().err == ""


def test_the_command_says_so_in_a_line(tmp_path):
    command = [sys.executable, str(SCRIPT), "permeability", "--out", str(tmp_path / "a")]
    command += ["--scheduler", "127.0.0.1"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stderr.startswith("error: no Dask scheduler answers at '127.0.0.1' (")
    assert len(result.stderr.splitlines()) == 1


def test_without_dask_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.delitem(sys.modules, "pde.datasets.dask_cluster")
    with pytest.raises(PdeError, match="install the extra `cluster`"):
        make(tmp_path / "a", "tcp://127.0.0.1:9")


def test_workers_and_a_scheduler_exclude_each_other(tmp_path):
    with pytest.raises(PdeError, match="workers=2 with a scheduler, which has its own"):
        make(tmp_path / "a", "tcp://127.0.0.1:9", workers=2)
