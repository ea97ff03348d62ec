"""The device that tests run on, which ``pytest --device`` chooses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

#: ``cpu``, ``cuda``, or ``fake``: a GPU that a machine does not need to have.
CHOSEN = os.environ.get("SGMCMC_TEST_DEVICE", "cpu")
#: Where the tests' chains and data are.
DEVICE = torch.device("cpu") if CHOSEN == "cpu" else torch.device("cuda", 0)


def trainer_settings() -> dict[str, Any]:
    """Return the settings with which a Trainer runs on the device."""
    if CHOSEN == "cpu":
        return {"accelerator": "cpu", "devices": 1}
    if CHOSEN == "cuda":
        return {"accelerator": "gpu", "devices": 1}
    from tests.fake_gpu import fake_trainer_settings

    return fake_trainer_settings()


#: Test modules that put their chains and data on the device themselves.
PUT_THERE = (
    "lightning_sgmcmc/test_device.py",
    "lightning_sgmcmc/callbacks/test_guard.py",
    "lightning_sgmcmc/chain/test_bfloat16.py",
    "lightning_sgmcmc/samplers/test_calibration.py",
    "lightning_sgmcmc/samplers/test_contract.py",
    "lightning_sgmcmc/samplers/test_discretised_law.py",
    "lightning_sgmcmc/samplers/test_logistic.py",
    "lightning_sgmcmc/samplers/test_stationarity.py",
    "lightning_sgmcmc/samplers/test_thermostat_order.py",
    "lightning_sgmcmc/samplers/test_waiting.py",
    "lightning_sgmcmc/samplers/test_weak_order.py",
    "lightning_sgmcmc/steps/test_triton_loops.py",
    "tasks/test_estimators.py",
)
#: Those whose tensors `made_there` puts on the device.
MADE_THERE = (
    "lightning_sgmcmc/adaptation/test_directions.py",
    "lightning_sgmcmc/adaptation/test_excess.py",
    "lightning_sgmcmc/adaptation/test_heating.py",
    "lightning_sgmcmc/adaptation/test_networks.py",
    "lightning_sgmcmc/adaptation/test_noise.py",
    "lightning_sgmcmc/adaptation/test_stability.py",
    "lightning_sgmcmc/baselines/test_bayes_by_backprop.py",
    "lightning_sgmcmc/baselines/test_dropout.py",
    "lightning_sgmcmc/baselines/test_optimized.py",
    "lightning_sgmcmc/baselines/test_rms_spectral.py",
    "lightning_sgmcmc/baselines/test_swag.py",
    "lightning_sgmcmc/callbacks/test_checkpoint.py",
    "lightning_sgmcmc/callbacks/test_log.py",
    "lightning_sgmcmc/callbacks/test_progress.py",
    "lightning_sgmcmc/callbacks/test_pruning.py",
    "lightning_sgmcmc/callbacks/test_settings.py",
    "lightning_sgmcmc/chain/test_adapters.py",
    "lightning_sgmcmc/chain/test_batch_kinds.py",
    "lightning_sgmcmc/chain/test_batches.py",
    "lightning_sgmcmc/chain/test_chain.py",
    "lightning_sgmcmc/chain/test_chains.py",
    "lightning_sgmcmc/chain/test_cycles.py",
    "lightning_sgmcmc/chain/test_on_disk.py",
    "lightning_sgmcmc/chain/test_permutation.py",
    "lightning_sgmcmc/chain/test_pretrained.py",
    "lightning_sgmcmc/chain/test_probe.py",
    "lightning_sgmcmc/chain/test_randomised_map.py",
    "lightning_sgmcmc/chain/test_schedules.py",
    "lightning_sgmcmc/diagnostics/test_autocorrelation.py",
    "lightning_sgmcmc/diagnostics/test_temperature.py",
    "lightning_sgmcmc/metrics/test_classification.py",
    "lightning_sgmcmc/metrics/test_conformal.py",
    "lightning_sgmcmc/metrics/test_ensemble.py",
    "lightning_sgmcmc/metrics/test_laws.py",
    "lightning_sgmcmc/metrics/test_regression.py",
    "lightning_sgmcmc/noise/test_philox.py",
    "lightning_sgmcmc/noise/test_stream.py",
    "lightning_sgmcmc/posterior/test_directions.py",
    "lightning_sgmcmc/posterior/test_distill.py",
    "lightning_sgmcmc/posterior/test_draws.py",
    "lightning_sgmcmc/posterior/test_export.py",
    "lightning_sgmcmc/posterior/test_held_out.py",
    "lightning_sgmcmc/posterior/test_law.py",
    "lightning_sgmcmc/posterior/test_predict.py",
    "lightning_sgmcmc/posterior/test_sparse.py",
    "lightning_sgmcmc/preconditioners/test_decaying_rmsprop.py",
    "lightning_sgmcmc/preconditioners/test_fisher.py",
    "lightning_sgmcmc/preconditioners/test_invariance.py",
    "lightning_sgmcmc/preconditioners/test_lbfgs.py",
    "lightning_sgmcmc/preconditioners/test_prior_metric.py",
    "lightning_sgmcmc/preconditioners/test_rmsprop.py",
    "lightning_sgmcmc/priors/test_gaussian.py",
    "lightning_sgmcmc/priors/test_heavy_tails.py",
    "lightning_sgmcmc/priors/test_priors.py",
    "lightning_sgmcmc/priors/test_scale_mixture.py",
    "lightning_sgmcmc/priors/test_spike_slab.py",
    "lightning_sgmcmc/samplers/test_bad_input.py",
    "lightning_sgmcmc/samplers/test_common_arguments.py",
    "lightning_sgmcmc/samplers/test_hamcmc.py",
    "lightning_sgmcmc/samplers/test_hasgld.py",
    "lightning_sgmcmc/samplers/test_hmc.py",
    "lightning_sgmcmc/samplers/test_mclmc.py",
    "lightning_sgmcmc/samplers/test_natural_langevin.py",
    "lightning_sgmcmc/samplers/test_self_check.py",
    "lightning_sgmcmc/samplers/test_sgfs.py",
    "lightning_sgmcmc/samplers/test_sgld.py",
    "lightning_sgmcmc/samplers/test_sgnht.py",
    "lightning_sgmcmc/target/test_estimators.py",
    "lightning_sgmcmc/target/test_hessian.py",
    "lightning_sgmcmc/target/test_linear_head.py",
    "lightning_sgmcmc/target/test_per_example.py",
    "lightning_sgmcmc/target/test_potential.py",
    "lightning_sgmcmc/test_habits.py",
    "lightning_sgmcmc/test_module.py",
    "lightning_sgmcmc/test_resume.py",
    "tasks/test_class_nets.py",
    "tasks/test_classification.py",
    "tasks/test_collapsed_head.py",
    "tasks/test_darcy_pressure.py",
    "tasks/test_drbm.py",
    "tasks/test_flow_nets.py",
    "tasks/test_images.py",
    "tasks/test_input_noise.py",
    "tasks/test_logistic.py",
    "tasks/test_logistic_chains.py",
    "tasks/test_nld.py",
    "tasks/test_own_network.py",
    "tasks/test_pde_perm.py",
    "tasks/test_pde_source.py",
    "tasks/test_prediction.py",
    "tasks/test_psgld_networks.py",
    "tasks/test_regression.py",
    "tasks/test_training_law.py",
    "tasks/test_uci.py",
    "test_examples.py",
)
#: All whose chains and data lie on the device: laws, contracts, runs, chains, predictions.
TAKE_IT = PUT_THERE + MADE_THERE
#: Tests of what an error leaves: the host looks at every step for them, as it does on the CPU.
LOOKED_AT_AT_ONCE = (
    "lightning_sgmcmc/samplers/test_bad_input.py::test_gradients_that_are_not_finite_are_refused",
    "lightning_sgmcmc/samplers/test_bad_input.py::test_infinite_gradients_that_cancel_are_seen",
    "lightning_sgmcmc/samplers/test_hamcmc.py::test_an_error_leaves_the_weights_where_they_were",
)
#: Why some of these, or single tests of them, do not run on a fake GPU.
NOT_ON_A_FAKE = {
    "lightning_sgmcmc/chain/test_bfloat16.py": "autocast asks the driver for a GPU",
    "lightning_sgmcmc/chain/test_pretrained.py::"
    "test_draws_of_a_compiled_network_are_those_of_the_plain_one": "torch.compile traces the fake",
    "lightning_sgmcmc/chain/test_probe.py::test_a_run_is_refused_in_any_precision": (
        "autocast asks the driver for a GPU"
    ),
    "lightning_sgmcmc/test_habits.py::test_draws_of_a_compiled_network_are_of_the_plain_one": (
        "torch.compile traces the fake"
    ),
    "lightning_sgmcmc/steps/test_triton_loops.py": "kernels start by a driver",
    "lightning_sgmcmc/samplers/test_waiting.py": "has torch's fake tensors, on a GPU of their own",
}
_COMMAND = "a run of the command line, which is compared on the CPU"
#: Why single tests of these run on the CPU alone.
NOT_ON_A_GPU = {
    "lightning_sgmcmc/noise/test_philox.py::test_the_loops_make_the_same_bits": (
        "compiled loops for the CPU"
    ),
    "lightning_sgmcmc/noise/test_philox.py::test_the_loops_count_beyond_2_32_blocks": (
        "compiled loops for the CPU"
    ),
    "lightning_sgmcmc/noise/test_stream.py::test_errors": "the generator of the CPU",
    "lightning_sgmcmc/test_habits.py::test_hyperparameters_are_kept_where_they_are_plain": (
        "Lightning asks the constructor, which made_there wraps"
    ),
    "lightning_sgmcmc/posterior/test_predict.py::test_a_little_work_is_not_traced": (
        "compiled loops for the CPU"
    ),
    "lightning_sgmcmc/test_habits.py::"
    "test_a_plain_trainer_leaves_what_the_command_leaves": _COMMAND,
    "tasks/test_darcy_pressure.py::test_a_short_run_learns_and_says_what_it_measured": _COMMAND,
    "tasks/test_pde_source.py::test_own_field_from_command_to_posterior": _COMMAND,
    "tasks/test_pde_source.py::test_a_short_run_from_command_to_posterior": _COMMAND,
    "tasks/test_prediction.py::test_compiled_loops_give_the_same_law": "compiled loops for the CPU",
}
NOT_ON_A_FAKE |= NOT_ON_A_GPU
#: Why others do not, by the longest of these that a module's path begins with.
ON_THE_CPU = {
    "": "no chain, or one whose numbers are made on the CPU",
    "pde/": "NumPy and SciPy",
    "lightning_sgmcmc/test_kernels.py": "compiled loops for the CPU",
    "lightning_sgmcmc/steps/": "compiled loops for the CPU",
    "lightning_sgmcmc/callbacks/test_label.py": "names",
    "lightning_sgmcmc/callbacks/test_freed_memory.py": "the host's memory",
    "lightning_sgmcmc/callbacks/test_subnormals.py": "a mode of the CPU's arithmetic",
    "lightning_sgmcmc/chain/test_processes.py": "processes that share the CPU",
    "lightning_sgmcmc/common/": "names, files and lists",
    "lightning_sgmcmc/diagnostics/": "NumPy",
    "lightning_sgmcmc/posterior/test_fused.py": "compiled loops for the CPU",
    "lightning_sgmcmc/posterior/test_pieces.py": "rows of the host, in memory and in files",
    "lightning_sgmcmc/test_ddp.py": "processes that share the CPU",
    "lightning_sgmcmc/run/": "the command line",
    "tasks/": "experiments, which compute on the CPU or run by the command line; records and data",
    "test_": "pages, packages and the command line",
    "test_bank.py": "verdicts at the CPU's random numbers, as recorded",
}


def name_of(path: Path) -> str:
    """Return a module's path within the tests."""
    return path.relative_to(Path(__file__).parent).as_posix()


def why_not_there(path: Path, test: str) -> str | None:
    """Return why a test does not run on the device that was chosen, None where it does."""
    name = name_of(path)
    if name in TAKE_IT:
        reasons = NOT_ON_A_FAKE if CHOSEN == "fake" else NOT_ON_A_GPU
        return reasons.get(name) or reasons.get(f"{name}::{test}")
    return ON_THE_CPU[max((key for key in ON_THE_CPU if name.startswith(key)), key=len)]
