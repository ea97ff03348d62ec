"""What holds for the data sets of every family: bytes, interruptions, damage, errors."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pde import (
    FileContentError,
    PdeError,
    PermeabilityDataSpec,
    SourceDataSpec,
    generate,
    load,
    load_permeabilities,
)
from pde.datasets import command as command_line
from pde.datasets.family import Job
from pde.datasets.local_workers import computed
from pde.datasets.progress import Progress
from pde.io.sample_file import SampleFile
from tests.pde.families import SCRIPT, SPECS, TWO, make, other

COMMANDS = {
    "random sources": (
        "source --source random --samples 3000 --grid 32 --workers 1",
        SourceDataSpec(nx=32, ny=32, source="random", num_samples=3000),
    ),
    "permeability": (
        "permeability --samples 800 --grid 30 --terms 16 --workers 1 --backend scipy",
        PermeabilityDataSpec(nx=30, ny=30, terms=16, num_samples=800),
    ),
}


@pytest.fixture(params=SPECS)
def spec(request):
    return SPECS[request.param]


@pytest.fixture(params=TWO)
def one_of_two(request):
    return SPECS[request.param]


@pytest.fixture(scope="session")
def wholes(tmp_path_factory):
    """Files made without interruption by one worker, by specification."""
    made = {}

    def whole(spec, backend="auto"):
        if (spec, backend) not in made:
            path = tmp_path_factory.mktemp("whole") / "a"
            made[spec, backend] = make(spec, path, backend=backend)
        return made[spec, backend]

    return whole


@pytest.fixture
def copy(wholes, spec, tmp_path):
    """A copy of a finished file, to be damaged."""
    return shutil.copy(wholes(spec), tmp_path / "a.safetensors")


def failing(error):
    def fail(*_):
        raise error

    return fail


def rewrite_header(path, change):
    """Change a finished file's header in place."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"] = change(header["__metadata__"])
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


def test_others_read_the_file(wholes, spec):
    ours, theirs = load(wholes(spec)), load_file(wholes(spec))
    assert ours.spec == spec
    assert len(ours) == 150
    assert set(theirs) == {*spec.shapes(), *spec.shared()}
    for name, array in theirs.items():
        np.testing.assert_array_equal(array, ours.arrays[name])
    for name in {"velocity", "pressure"} & set(theirs):
        np.testing.assert_array_equal(theirs[name], getattr(ours, name))


@pytest.mark.parametrize(
    ("name", "backend"),
    [(name, "scipy") for name in SPECS] + [("permeability", "compiled")],
)
def test_bytes_do_not_depend_on_the_number_of_workers(tmp_path, name, backend):
    if backend == "compiled":
        pytest.importorskip("numba", reason="numba is in the extra fast")
    one = make(SPECS[name], tmp_path / "one", backend=backend)
    two = make(SPECS[name], tmp_path / "two", backend=backend, workers=2)
    assert two.read_bytes() == one.read_bytes()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["one", "two"]


def test_shorter_sets_begin_longer_ones(wholes, spec, tmp_path):
    short = load(make(other(spec, num_samples=70), tmp_path / "a"))
    longer = load(wholes(spec))
    for name in spec.drawn():
        np.testing.assert_array_equal(short.arrays[name], longer.arrays[name][:70])
    # A chunk's composition may change the last bits of solutions of arbitrary sources.
    for name in spec.shapes():
        np.testing.assert_array_equal(short.arrays[name][:64], longer.arrays[name][:64])


def test_interrupted_run_continues_to_the_same_bytes(wholes, spec, tmp_path, monkeypatch):
    path = tmp_path / "a"
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "advance", failing(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            make(spec, path)
    assert (tmp_path / "a.journal").read_text().count("\n") == 1
    assert not path.exists()
    with pytest.raises(FileContentError, match=r"begun with other .*\(seed is 3 there, 4 here\)"):
        make(other(spec, seed=4), path)
    make(spec, path)
    assert path.read_bytes() == wholes(spec).read_bytes()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_finished_chunks_are_not_made_again(wholes, spec, tmp_path, monkeypatch):
    path = tmp_path / "a"
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing(OSError("full")))
        with pytest.raises(OSError, match="full"):
            make(spec, path)
    for way in ("_by_threads", "_by_processes"):
        monkeypatch.setattr(f"pde.datasets.local_workers.{way}", None)
    assert make(spec, path).read_bytes() == wholes(spec).read_bytes()


def test_chunks_that_are_not_what_was_written_are_made_again(wholes, spec, tmp_path, monkeypatch):
    def stop(self):
        raise KeyboardInterrupt

    path = tmp_path / "damaged"
    monkeypatch.setattr(SampleFile, "finish", stop)
    with pytest.raises(KeyboardInterrupt):
        make(spec, path)
    monkeypatch.undo()
    part, journal = tmp_path / "damaged.part", tmp_path / "damaged.journal"
    lines = journal.read_text().splitlines()
    assert len(lines) == 3
    # Chunk 1 is torn, the note of chunk 2 is cut short.
    with part.open("r+b") as file:
        file.seek(part.stat().st_size - 64 * 8 * spec.grid.num_cells)
        file.write(b"\xff" * 64)
    journal.write_text("\n".join(sorted(lines)[:2]) + "\n" + "2 ")
    made = []
    write = SampleFile.write
    monkeypatch.setattr(
        SampleFile, "write", lambda self, i, arrays: (made.append(i), write(self, i, arrays))
    )
    make(spec, path)
    assert sorted(made) == [1, 2]
    assert path.read_bytes() == wholes(spec).read_bytes()


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
@pytest.mark.parametrize("name", COMMANDS)
def test_stopped_command_continues_to_the_same_bytes(stop, name, wholes, tmp_path):
    arguments, spec = COMMANDS[name]
    path, journal = tmp_path / "stopped", tmp_path / "stopped.journal"
    command = [sys.executable, str(SCRIPT), *arguments.split(), "--out", str(path)]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # A test run in the background of a shell ignores it, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while process.poll() is None and (not journal.exists() or not journal.read_text()):
        time.sleep(0.005)
    # A terminal sends Ctrl-C to the whole group, the workers included.
    (os.killpg if stop == signal.SIGINT else os.kill)(process.pid, stop)
    _, error = process.communicate(timeout=60)
    assert not path.exists()
    assert 1 <= len(journal.read_text().splitlines()) < -(-spec.num_samples // 64)
    if stop == signal.SIGINT:
        assert process.returncode == 130
        assert error.decode().strip() == "stopped; run the same command again to continue"
    before = (tmp_path / "stopped.part").stat().st_mtime_ns
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == str(path)
    assert path.stat().st_mtime_ns > before
    assert not journal.exists()
    assert path.read_bytes() == wholes(spec, "scipy").read_bytes()


def test_numbers_of_numpy_are_numbers(tmp_path):
    given = {"nx": 6, "ny": 7, "num_samples": 2, "seed": 3, "lx": 0.5}
    same = {k: (np.float32 if k == "lx" else np.int64)(v) for k, v in given.items()}
    made = make(SourceDataSpec(**same), tmp_path / "a")
    assert make(SourceDataSpec(**given), made).read_bytes() == made.read_bytes()
    assert load(made).spec.parameters() == SourceDataSpec(**given).parameters()


def test_finished_file_is_reused(copy, spec, capsys):
    before = copy.stat().st_mtime_ns
    generate(spec, copy)
    assert copy.stat().st_mtime_ns == before
    assert "finished already" in capsys.readouterr().err


def test_file_of_other_parameters_is_refused_and_kept(copy, spec, tmp_path):
    before = copy.read_bytes()
    name, there = ("low", 3.0) if "low" in spec.parameters() else ("lx", 1.0)
    wrong = other(spec, num_samples=151, **{name: 2.0})
    with pytest.raises(FileContentError) as raised:
        make(wrong, copy)
    assert "num_samples is 150 there, 151 here" in str(raised.value)
    assert f"{name} is {there} there, 2.0 here" in str(raised.value)
    assert "seed is" not in str(raised.value)
    assert copy.read_bytes() == before
    begun = tmp_path / "b.part"
    shutil.copy(copy, begun)
    (tmp_path / "b.journal").touch()
    with pytest.raises(FileContentError, match=rf"begun with other .*{name} is {there} there"):
        make(wrong, tmp_path / "b")
    assert begun.read_bytes() == before


def test_a_file_of_another_family_is_refused(wholes):
    source, permeability = wholes(SPECS["three spots"]), wholes(SPECS["permeability"])
    with pytest.raises(FileContentError, match="holds 'pde source data', expected 'pde perm"):
        load_permeabilities(source)
    with pytest.raises(FileContentError, match="holds 'pde reaction data', expected 'pde perm"):
        load(wholes(SPECS["reaction"]), PermeabilityDataSpec)
    with pytest.raises(FileContentError, match="format is 'pde permeability data' there, 'pde rea"):
        make(SPECS["reaction"], permeability)


@pytest.mark.parametrize("cut", [0, 10, 100, 5000, -8, -1])
def test_cut_file_is_refused_and_kept(cut, copy, spec):
    copy.write_bytes(copy.read_bytes()[:cut])
    before = copy.read_bytes()
    for action in (load, lambda path: make(spec, path)):
        with pytest.raises(FileContentError, match="cut short or not a data set"):
            action(copy)
    assert copy.read_bytes() == before


@pytest.mark.parametrize("place", [0.2, 0.5, 0.99])
def test_altered_file_is_refused(copy, place):
    content = bytearray(copy.read_bytes())
    content[int(place * len(content))] ^= 1
    copy.write_bytes(content)
    with pytest.raises(FileContentError, match=r"cut short or not a data set .its checksum"):
        load(copy)
    load(copy, verify=False)


def test_foreign_files_are_refused(tmp_path):
    path = tmp_path / "data"
    with pytest.raises(FileContentError, match="no data set at"):
        load(path)
    save_file({"velocity": np.zeros(3)}, path)
    with pytest.raises(FileContentError, match="cut short or not a data set"):
        load(path)
    path.write_bytes(b"\x10" + b"\0" * 7 + b"{}" + b" " * 14)
    with pytest.raises(FileContentError, match="cut short or not a data set"):
        load(path)


def test_other_versions_are_refused(copy):
    def newer(about):
        return about | {"pde": json.dumps(json.loads(about["pde"]) | {"version": 9})}

    rewrite_header(copy, newer)
    with pytest.raises(FileContentError, match="version 9; expected"):
        load(copy)


def test_npz_files_of_earlier_versions_are_refused_with_a_way_out(tmp_path):
    path, spec = tmp_path / "old.npz", SPECS["three spots"]
    np.savez(path, metadata=np.array(json.dumps({"format": "pde source data", "version": 1})))
    before = path.read_bytes()
    for action in (load, lambda path: make(spec, path)):
        with pytest.raises(FileContentError, match=r"generate the set again into a \.safetensors"):
            action(path)
    assert path.read_bytes() == before
    with pytest.raises(PdeError, match=r"are safetensors files, not \.npz"):
        make(spec, tmp_path / "new.npz")
    assert not (tmp_path / "new.npz").exists()


def test_permeabilities_of_earlier_versions_are_read(wholes, tmp_path):
    """Their files differ in one thing: they have no checksum."""
    spec = SPECS["permeability"]
    path = shutil.copy(wholes(spec), tmp_path / "old")
    rewrite_header(path, lambda about: {"pde": about["pde"]})
    data = load_permeabilities(path)
    assert data.spec == spec
    np.testing.assert_array_equal(data.velocity, load(wholes(spec)).velocity)
    before = path.read_bytes()
    make(spec, path)
    assert path.read_bytes() == before
    path.rename(tmp_path / "begun.part")
    (tmp_path / "begun.journal").touch()
    with pytest.raises(FileContentError, match=r"an earlier version of this format.*; delete it"):
        make(spec, tmp_path / "begun")


def test_a_disk_without_room_is_found_first(one_of_two, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(PdeError, match=r"takes 0.000\d+ GB and the disk has 1e-06 GB left"):
        make(one_of_two, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_loses_nothing(wholes, one_of_two, tmp_path, monkeypatch):
    write = SampleFile.write

    def full(self, index, arrays):
        if index == 2:
            raise OSError(28, "No space left on device")
        write(self, index, arrays)

    monkeypatch.setattr(SampleFile, "write", full)
    with pytest.raises(OSError, match="No space left"):
        make(one_of_two, tmp_path / "a")
    noted = (tmp_path / "a.journal").read_text().split("\n")
    assert 1 < len(noted) <= 3
    assert not any(line.startswith("2 ") for line in noted)
    monkeypatch.undo()
    assert make(one_of_two, tmp_path / "a").read_bytes() == wholes(one_of_two).read_bytes()


@pytest.mark.parametrize("moment", ["start", "solving", "halfway through a chunk"])
def test_a_dead_worker_is_one_clear_error(moment):
    """At any moment: a chunk is larger than what a pipe holds, so its writer waits for a reader."""
    spec = SourceDataSpec(nx=32, ny=32, source="random", num_samples=1280)
    job = Job(spec, spec.shared(), "scipy")
    chunks = computed(job, {i: range(64 * i, 64 * (i + 1)) for i in range(20)}, workers=1)
    if moment == "start":
        kill = threading.Timer(0.05, lambda: os.kill(only_child(), signal.SIGKILL))
        kill.start()
    else:
        next(chunks)
        worker = only_child()
        if moment != "solving":
            time.sleep(2)  # the next chunk is solved and half of it is in the pipe
        os.kill(worker, signal.SIGKILL)
    with pytest.raises(PdeError, match="a worker process died"):
        list(chunks)


def only_child():
    while not (children := multiprocessing.active_children()):
        time.sleep(0.01)
    (child,) = children
    return child.pid


def test_an_error_in_a_worker_process_arrives_with_its_place(monkeypatch):
    spec = SourceDataSpec(nx=4, ny=4, source="random", num_samples=4)
    job = Job(spec, {"unlike": np.zeros(3)}, "no such backend")
    with pytest.raises(Exception, match="backend") as caught:
        list(computed(job, {0: range(4)}, workers=1))
    assert "In a worker process:" in caught.value.__notes__[0]
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("workers", [0, -2, 1.5])
def test_impossible_workers_are_refused(one_of_two, workers, tmp_path):
    with pytest.raises(PdeError, match=f"workers={workers}, expected an integer of at least 1"):
        make(one_of_two, tmp_path / "a", workers=workers)


@pytest.mark.parametrize("name", ["three spots", "random sources", "reaction"])
def test_a_solver_that_a_family_does_not_have_is_refused(name, tmp_path):
    with pytest.raises(PdeError, match="backend='compiled', expected one of auto, scipy"):
        make(SPECS[name], tmp_path / "a", backend="compiled")
    assert list(tmp_path.iterdir()) == []


def test_no_progress_line_unless_asked(one_of_two, tmp_path, capsys):
    generate(one_of_two, tmp_path / "quiet", workers=1, progress=False)
    assert capsys.readouterr().err == ""
    generate(one_of_two, tmp_path / "loud", workers=1)
    assert "150/150 samples, " in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["source", "permeability", "reaction"])
def test_command_line(kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    terms = "" if kind == "source" else "--terms 8"

    def run(arguments):
        status = command_line.main([kind, "--workers", "1", *arguments.split()])
        return status, *capsys.readouterr()

    status, printed, _ = run(f"--out data --grid 10 --samples 5 {terms}")
    assert (status, printed) == (0, "data\n")
    assert len(load(tmp_path / "data")) == 5
    status, _, error = run(f"--out data --grid 10 --samples 6 {terms}")
    assert (status, error.count("\n")) == (2, 1)
    assert "num_samples is 5 there, 6 here" in error
    if kind == "source":
        status, _, error = run("--out b --field spe10 --spe10-file missing")
        assert "no SPE10 file at missing" in error
    else:
        status, _, error = run("--out b --terms 0")
        assert error == "error: 0 terms, expected 1 to 2500, the number of cells\n"
    assert (status, error.count("\n")) == (2, 1)
    with pytest.raises(SystemExit, match="2"):
        run("--out b --field kle")
    assert not (tmp_path / "b").exists()


def test_a_singular_field_is_one_line_from_a_worker_process_too(tmp_path, capsys):
    """The worker's error is pickled."""
    np.save(tmp_path / "k.npy", 10.0 ** np.random.default_rng(0).uniform(-150, 150, (1, 12, 12)))
    options = ["fields", f"--out={tmp_path / 'a'}", f"--permeability={tmp_path / 'k.npy'}"]
    options += ["--lx=1", "--ly=1", "--workers=1", "--side-pressure", "left=1", "right=0"]
    assert command_line.main(options) == 2
    assert "error: the system is numerically singular" in capsys.readouterr().err
