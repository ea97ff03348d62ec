"""Data sets of random permeabilities: contents, containers, interruptions, errors."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from pde import (
    DarcyFamily,
    FileContentError,
    Grid,
    KarhunenLoeve,
    PdeError,
    PermeabilityDataSpec,
    RandomPermeability,
    generate_permeabilities,
    load_permeabilities,
)
from pde.io.sample_file import Store

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "generate_pde.py"
SMALL = PermeabilityDataSpec(nx=12, ny=10, terms=8, num_samples=150, save_pressure=True)


def make(path, spec=SMALL, **options):
    options = {"workers": 1, "progress": False} | options
    return generate_permeabilities(spec, path, **options)


def test_samples_are_flows_through_their_fields(tmp_path):
    data = load_permeabilities(make(tmp_path / "a.safetensors"))
    assert len(data) == 150
    assert data.spec == SMALL
    fields = RandomPermeability(
        KarhunenLoeve(Grid(12, 10), 2.0, (0.2, 0.3), terms=8), "additive", 6.0, seed=0
    )
    family = DarcyFamily(Grid(12, 10), {"left": 1.0, "right": 0.0}, 1.0)
    for i in (0, 63, 64, 149):
        xi, kappa = fields.draw(i)
        solution = family.solve(kappa)
        np.testing.assert_array_equal(data.coefficients[i], xi)
        np.testing.assert_array_equal(data.permeability[i], kappa)
        np.testing.assert_array_equal(data.velocity[i], solution.velocity)
        np.testing.assert_array_equal(data.pressure[i], solution.pressure)


def test_others_read_the_file(tmp_path):
    path = make(tmp_path / "a.safetensors")
    ours, theirs = load_permeabilities(path), load_file(path)
    assert set(theirs) == {"coefficients", "permeability", "velocity", "pressure"}
    for name, array in theirs.items():
        np.testing.assert_array_equal(array, getattr(ours, name))


@pytest.mark.parametrize("backend", ["scipy", "compiled"])
def test_bytes_depend_on_the_specification_alone(tmp_path, backend):
    if backend == "compiled":
        pytest.importorskip("numba", reason="numba is in the extra fast")
    whole = make(tmp_path / "whole", backend=backend).read_bytes()
    assert make(tmp_path / "two", backend=backend, workers=2).read_bytes() == whole
    more = PermeabilityDataSpec(nx=12, ny=10, terms=8, num_samples=200)
    longer = load_permeabilities(make(tmp_path / "more", more, backend=backend))
    first = load_permeabilities(tmp_path / "whole")
    np.testing.assert_array_equal(longer.velocity[:150], first.velocity)


def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(tmp_path):
    command = [sys.executable, str(SCRIPT), "permeability", "--grid", "40", "--samples", "1000"]
    command += ["--terms", "16", "--workers", "1", "--backend", "scipy", "--out"]
    spec = PermeabilityDataSpec(nx=40, ny=40, terms=16, num_samples=1000)
    whole = make(tmp_path / "whole", spec, backend="scipy").read_bytes()
    path = tmp_path / "killed"
    journal = tmp_path / "killed.journal"
    process = subprocess.Popen([*command, str(path)], stderr=subprocess.DEVNULL)
    while process.poll() is None and (not journal.exists() or not journal.read_text()):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not path.exists()
    finished = len(journal.read_text().splitlines())
    assert 1 <= finished < 16
    before = (tmp_path / "killed.part").stat().st_mtime_ns
    result = subprocess.run([*command, str(path)], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == str(path)
    assert path.read_bytes() == whole
    assert path.stat().st_mtime_ns > before
    assert not journal.exists()


def test_chunks_that_are_not_what_was_written_are_made_again(tmp_path, monkeypatch):
    whole = make(tmp_path / "whole").read_bytes()

    def stop(self):
        self.close()
        raise KeyboardInterrupt

    path = tmp_path / "damaged"
    monkeypatch.setattr(Store, "finish", stop)
    with pytest.raises(KeyboardInterrupt):
        make(path)
    monkeypatch.undo()
    part, journal = tmp_path / "damaged.part", tmp_path / "damaged.journal"
    lines = journal.read_text().splitlines()
    assert len(lines) == 3
    # Chunk 1 is torn, the note of chunk 2 is cut short.
    with part.open("r+b") as file:
        file.seek(part.stat().st_size - 64 * 120 * 8)
        file.write(b"\0" * 64)
    journal.write_text("\n".join(sorted(lines)[:2]) + "\n" + "2 ")
    made = []
    write = Store.write
    monkeypatch.setattr(
        Store, "write", lambda self, i, arrays: (made.append(i), write(self, i, arrays))
    )
    make(path)
    assert sorted(made) == [1, 2]
    assert path.read_bytes() == whole


def test_nothing_is_made_twice(tmp_path, capsys):
    path = make(tmp_path / "a")
    stamp = path.stat().st_mtime_ns
    make(path, progress=True)
    assert path.stat().st_mtime_ns == stamp
    assert "finished already" in capsys.readouterr().err


def test_other_parameters_are_refused_and_nothing_is_lost(tmp_path, monkeypatch):
    path = make(tmp_path / "a")
    content = path.read_bytes()
    other = PermeabilityDataSpec(
        nx=12, ny=10, terms=8, num_samples=150, save_pressure=True, mean=7.0
    )
    with pytest.raises(FileContentError, match=r"mean is 6\.0 there, 7\.0 here"):
        make(path, other)
    assert path.read_bytes() == content
    begun = tmp_path / "b.part"
    shutil.copy(path, begun)
    (tmp_path / "b.journal").touch()
    with pytest.raises(FileContentError, match=r"begun with other .*mean is 6\.0 there"):
        make(tmp_path / "b", other)
    assert begun.read_bytes() == content


def test_a_cut_or_foreign_file_is_refused(tmp_path):
    path = make(tmp_path / "a")
    content = path.read_bytes()
    for wrong in (content[:-8], content[:100], b"", b"\x10" + b"\0" * 7 + b"{}" + b" " * 14):
        path.write_bytes(wrong)
        with pytest.raises(FileContentError, match="cut short or not a data set"):
            load_permeabilities(path)
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    metadata = json.loads(header["__metadata__"]["pde"]) | {"version": 9}
    header["__metadata__"]["pde"] = json.dumps(metadata)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    with pytest.raises(FileContentError, match="version 9; expected"):
        load_permeabilities(path)


def test_a_disk_without_room_is_found_first(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(PdeError, match=r"takes 0.000\d+ GB and the disk has 1e-06 GB left"):
        make(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_loses_nothing(tmp_path, monkeypatch):
    whole = make(tmp_path / "whole").read_bytes()
    write = Store.write

    def full(self, index, arrays):
        if index == 2:
            raise OSError(28, "No space left on device")
        write(self, index, arrays)

    monkeypatch.setattr(Store, "write", full)
    with pytest.raises(OSError, match="No space left"):
        make(tmp_path / "a")
    noted = (tmp_path / "a.journal").read_text().split("\n")
    assert 1 < len(noted) <= 3
    assert not any(line.startswith("2 ") for line in noted)
    monkeypatch.undo()
    assert make(tmp_path / "a").read_bytes() == whole


def test_a_dead_worker_is_one_clear_error(tmp_path):
    code = (
        "import os, sys, pde.datasets.permeability as p\n"
        "if __name__ == '__main__':\n"
        "    spec = p.PermeabilityDataSpec(nx=40, ny=40, terms=4, num_samples=3000)\n"
        "    import threading, multiprocessing, signal, time\n"
        "    def kill():\n"
        "        while not multiprocessing.active_children():\n"
        "            time.sleep(0.01)\n"
        "        time.sleep(0.3)\n"
        "        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)\n"
        "    threading.Thread(target=kill, daemon=True).start()\n"
        "    try:\n"
        "        p.generate_permeabilities(spec, sys.argv[1], 1, 'scipy', progress=False)\n"
        "    except p.PdeError as error:\n"
        "        print(error)\n"
    )
    script = tmp_path / "run.py"
    script.write_text(code)
    environment = os.environ | {"PYTHONPATH": str(SCRIPT.parents[1])}
    result = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "a")],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert result.stdout.startswith("a worker process died")
    assert (tmp_path / "a.part").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nx": 1}, "a grid of 1 x 12 cells, expected at least 2 x 2"),
        ({"terms": 1000}, "1000 terms, expected 1 to 144"),
        ({"kernel": "matern"}, "kernel='matern'"),
        ({"lengths": (0.2, 0.0)}, "ly=0.0"),
        ({"variance": -2.0}, "variance=-2.0"),
        ({"kind": "log"}, "kind='log'"),
        ({"source": np.nan}, "source=nan, expected a finite number"),
        ({"num_samples": 0}, "num_samples=0"),
        ({"seed": -1}, "seed -1"),
    ],
)
def test_bad_values_are_one_clear_error(change, message):
    with pytest.raises(PdeError, match=message):
        PermeabilityDataSpec(**({"nx": 12, "ny": 12} | change))


def test_workers_must_be_positive(tmp_path):
    with pytest.raises(PdeError, match="workers=0, expected an integer of at least 1"):
        make(tmp_path / "a", workers=0)


def test_the_command_says_what_is_wrong(tmp_path):
    command = [sys.executable, str(SCRIPT), "permeability", "--out", str(tmp_path / "a")]
    result = subprocess.run([*command, "--terms", "0"], capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr == "generate_pde: 0 terms, expected 1 to 2500, the number of cells\n"
