import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from pde import (
    DarcySolver,
    FileContentError,
    PdeError,
    SourceDataSpec,
    generate,
    load,
    random_source,
    three_spot_strengths,
)
from pde.datasets.progress import Progress

SPOTS = SourceDataSpec(nx=12, ny=10, num_samples=70, seed=3, save_pressure=True)
RANDOM = SourceDataSpec(nx=9, ny=8, source="random", num_samples=150, seed=3, save_pressure=True)
SCRIPT = Path(__file__).parents[2] / "scripts" / "generate_pde.py"


def make(spec, path, workers=1):
    return generate(spec, path, workers=workers, progress=False)


def failing(error):
    def fail(*_):
        raise error

    return fail


@pytest.fixture(scope="module")
def random_file(tmp_path_factory):
    return make(RANDOM, tmp_path_factory.mktemp("random") / "data.npz")


@pytest.mark.parametrize("spec", [SPOTS, RANDOM], ids=["three spots", "random"])
def test_every_sample_solves_its_problem(spec, tmp_path, random_file):
    data = load(random_file if spec is RANDOM else make(spec, tmp_path / "data.npz"))
    assert data.spec == spec
    assert len(data) == spec.num_samples
    assert data.velocity.shape == (spec.num_samples, spec.grid.num_edges)
    np.testing.assert_array_equal(data.permeability, spec.permeability())
    solution = DarcySolver(spec.grid, data.permeability).solve(data.source())
    np.testing.assert_allclose(data.velocity, solution.velocity, atol=1e-12)
    scale = np.abs(solution.pressure).max()
    np.testing.assert_allclose(data.pressure, solution.pressure, atol=1e-11 * scale)
    np.testing.assert_allclose(spec.grid.divergence(data.velocity), data.source(), atol=1e-11)


def test_three_spot_sets_carry_their_basis(tmp_path):
    data = load(make(SPOTS, tmp_path / "data.npz"))
    np.testing.assert_array_equal(data.strengths, three_spot_strengths(3, 70))
    np.testing.assert_allclose(data.strengths @ data.basis_velocity, data.velocity, atol=1e-13)
    gram = data.basis_velocity @ data.basis_velocity.T
    form = np.einsum("ni,ij,nj->n", data.strengths, gram, data.strengths)
    np.testing.assert_allclose(form, (data.velocity**2).sum(axis=1), rtol=1e-12)


def test_sources_of_a_random_set_are_those_of_their_indices(random_file):
    data = load(random_file)
    np.testing.assert_array_equal(data.source(77), random_source(data.grid, 3, 77))
    assert data.source([1, 2]).shape == (2, 8, 9)
    assert data.strengths is None


def test_shorter_sets_begin_longer_ones(random_file, tmp_path):
    short = load(make(SourceDataSpec(**{**RANDOM.parameters(), "num_samples": 64}), tmp_path / "a"))
    np.testing.assert_array_equal(short.velocity, load(random_file).velocity[:64])


def test_bytes_do_not_depend_on_the_number_of_workers(random_file, tmp_path):
    path = make(RANDOM, tmp_path / "two.npz", workers=2)
    assert path.read_bytes() == random_file.read_bytes()
    assert [entry.name for entry in tmp_path.iterdir()] == ["two.npz"]


def test_interrupted_run_continues_to_the_same_bytes(random_file, tmp_path, monkeypatch):
    path = tmp_path / "data.npz"
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "advance", failing(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            make(RANDOM, path)
    kept = sorted((tmp_path / "data.npz.parts").glob("chunk_*.npz"))
    assert kept
    assert not path.exists()
    kept[0].write_bytes(kept[0].read_bytes()[:1000])
    with pytest.raises(FileContentError, match=r"begun with other .*\(seed is 3 there, 4 here\)"):
        make(SourceDataSpec(**{**RANDOM.parameters(), "seed": 4}), path)
    make(RANDOM, path)
    assert path.read_bytes() == random_file.read_bytes()
    assert [entry.name for entry in tmp_path.iterdir()] == ["data.npz"]


def test_finished_chunks_are_not_solved_again(tmp_path, monkeypatch):
    path = tmp_path / "data.npz"
    monkeypatch.setattr("pde.datasets.generation.write_npz", failing(OSError("full")))
    with pytest.raises(OSError, match="full"):
        make(RANDOM, path)
    monkeypatch.undo()
    monkeypatch.setattr("pde.datasets.chunks.ProcessPoolExecutor", None)
    assert len(load(make(RANDOM, path))) == 150


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_stopped_command_continues_to_the_same_bytes(stop, tmp_path):
    spec = SourceDataSpec(nx=32, ny=32, source="random", num_samples=6000)
    arguments = ["source", "--source", "random", "--samples", "6000", "--grid", "32"]
    path = tmp_path / "stopped.npz"
    command = [sys.executable, str(SCRIPT), *arguments, "--out", str(path)]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # A test run in the background of a shell ignores it, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    parts = tmp_path / "stopped.npz.parts"
    deadline = time.monotonic() + 60
    while not list(parts.glob("chunk_*.npz")) and time.monotonic() < deadline:
        time.sleep(0.005)
    # A terminal sends Ctrl-C to the whole group, the workers included.
    (os.killpg if stop == signal.SIGINT else os.kill)(process.pid, stop)
    _, error = process.communicate(timeout=60)
    assert list(parts.glob("chunk_*.npz"))
    assert not path.exists()
    if stop == signal.SIGINT:
        assert process.returncode == 130
        assert error.decode().strip() == "stopped; run the same command again to continue"
    make(spec, path, workers=2)
    whole = make(spec, tmp_path / "whole.npz", workers=2)
    assert path.read_bytes() == whole.read_bytes()


def test_finished_file_is_reused(tmp_path):
    path = make(SPOTS, tmp_path / "data.npz")
    before = path.stat().st_mtime_ns
    make(SPOTS, path)
    assert path.stat().st_mtime_ns == before


def test_file_of_other_parameters_is_refused_and_kept(tmp_path):
    path = make(SPOTS, tmp_path / "data.npz")
    before = path.read_bytes()
    other = SourceDataSpec(nx=12, ny=10, num_samples=71, seed=3, save_pressure=True, spread="sd")
    with pytest.raises(FileContentError) as raised:
        make(other, path)
    assert "spread is 'variance' there, 'sd' here" in str(raised.value)
    assert "num_samples is 70 there, 71 here" in str(raised.value)
    assert "seed is" not in str(raised.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize("cut", [0, 10, 5000, -1])
def test_cut_file_is_refused_and_kept(cut, tmp_path):
    path = make(SPOTS, tmp_path / "data.npz")
    path.write_bytes(path.read_bytes()[:cut])
    before = path.read_bytes()
    for action in (load, lambda path: make(SPOTS, path)):
        with pytest.raises(FileContentError, match="cut short or not a data set"):
            action(path)
    assert path.read_bytes() == before


def test_altered_file_is_refused(tmp_path):
    path = make(SPOTS, tmp_path / "data.npz")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(FileContentError, match="cut short or not a data set"):
        load(path)


def test_foreign_files_are_refused(tmp_path):
    path = tmp_path / "data.npz"
    with pytest.raises(FileContentError, match="no data set at"):
        load(path)
    np.savez(path, velocity=np.zeros(3))
    with pytest.raises(FileContentError, match="cut short or not a data set"):
        load(path)
    np.savez(path, metadata=np.array(json.dumps({"format": "pde source data", "version": 0})))
    with pytest.raises(FileContentError, match="of version 0, expected"):
        load(path)


def test_spe10_sets_know_their_field(fake_spe10, tmp_path):
    spec = SourceDataSpec(nx=8, ny=9, field="spe10", spe10_file=str(fake_spe10), num_samples=2)
    data = load(make(spec, tmp_path / "data.npz"))
    np.testing.assert_array_equal(data.permeability, spec.permeability())
    assert data.metadata["permeability"] == "SPE10 model 2"
    moved = tmp_path / "elsewhere.dat"
    moved.write_bytes(fake_spe10.read_bytes())
    same = SourceDataSpec(nx=8, ny=9, field="spe10", spe10_file=str(moved), num_samples=2)
    make(same, tmp_path / "data.npz")
    moved.write_bytes(fake_spe10.read_bytes().replace(b"30001", b"30002").replace(b"5", b"7"))
    with pytest.raises(FileContentError, match="holds another permeability"):
        make(same, tmp_path / "data.npz")


def test_synthetic_sets_say_so(tmp_path):
    metadata = load(make(SPOTS, tmp_path / "data.npz")).metadata
    assert "synthetic" in metadata["permeability"]
    assert metadata["parameters"]["field_seed"] == 0
    assert "layer" not in metadata["parameters"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"field": "kle"}, "field='kle', expected one of channelised, spe10"),
        ({"source": "two"}, "source='two', expected one of"),
        ({"spread": "std"}, "spread='std', expected one of"),
        ({"num_samples": 0}, "num_samples=0, expected at least 1"),
        ({"seed": -1}, "seed -1"),
        ({"nx": 0}, "nx=0"),
        ({"nx": 4, "ny": 4}, "at least 6 x 6"),
        ({"field": "spe10"}, "needs spe10_file"),
        ({"field": "spe10", "spe10_file": "f", "layer": 99}, "layer 99"),
    ],
)
def test_impossible_specifications_are_refused(values, message):
    with pytest.raises(PdeError, match=message):
        SourceDataSpec(**values)


@pytest.mark.parametrize("workers", [0, -2, 1.5])
def test_impossible_workers_are_refused(workers, tmp_path):
    with pytest.raises(PdeError, match="workers="):
        generate(SPOTS, tmp_path / "data.npz", workers=workers)


def test_no_progress_line_unless_asked(tmp_path, capsys):
    generate(SPOTS, tmp_path / "quiet.npz", progress=False)
    assert capsys.readouterr().err == ""
    generate(SPOTS, tmp_path / "loud.npz")
    assert "70/70 samples, " in capsys.readouterr().err


def test_command_line(tmp_path):
    def run(*arguments):
        command = [sys.executable, str(SCRIPT), "source", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    out = tmp_path / "data.npz"
    done = run("--out", str(out), "--grid", "10", "--samples", "5")
    assert (done.returncode, done.stdout.strip()) == (0, str(out))
    assert len(load(out)) == 5
    again = run("--out", str(out), "--grid", "10", "--samples", "6")
    assert again.returncode == 2
    assert again.stderr.count("\n") == 1
    assert "num_samples is 5 there, 6 here" in again.stderr
    wrong = run("--out", str(tmp_path / "b.npz"), "--field", "spe10", "--spe10-file", "missing")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "no SPE10 file at missing" in wrong.stderr
    unknown = run("--out", str(tmp_path / "b.npz"), "--field", "kle")
    assert unknown.returncode == 2
    assert not (tmp_path / "b.npz").exists()
