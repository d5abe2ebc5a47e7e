"""Laws of solvers: each converges at its order on a target of known flow, and is exact where that is straight."""

import math
from typing import Any, NamedTuple

import numpy as np
import pytest

from refimpl.media.ddpm import ddim, ddpm
from refimpl.media.deis import deis
from refimpl.media.dpm import dpm_multistep
from refimpl.media.dpm_singlestep import dpm_singlestep
from refimpl.media.euler import euler, euler_ancestral, flow_euler
from refimpl.media.few_step import lcm, tcd
from refimpl.media.heun import flow_heun, heun, kdpm2, kdpm2_ancestral
from refimpl.media.lms import lms
from refimpl.media.plan import Plan
from refimpl.media.pndm import pndm
from refimpl.media.scheduler import SCHEDULERS
from refimpl.media.step import Guided
from refimpl.media.unipc import unipc
from tests.laws import gaussian
from tests.laws.gaussian import FROM, MEAN, SPREAD, TO, Model, between, flowed, marginal, plan_of, run, spread_at

COARSE, FINE = 96, 192
TOLERANCE = 0.25
NEVER = range(999)
"""Steps at which UniPC does not correct."""
X = np.array([-3.0, 0.5, 7.0])
BOTH_ENDS = (heun, flow_heun, kdpm2, kdpm2_ancestral)
"""Solvers that ask at the end of a step, so that the last one goes to sigma = 0."""


class Case(NamedTuple):
    """A solver, where it runs, and at which order it converges; of multistep solvers the start is kept small."""

    solver: Any
    family: str
    prediction: str
    order: float
    settings: dict[str, Any]
    start: int = 1

    def name(self) -> str:
        """Return how a table calls it."""
        named = [f"{key}={value}" for key, value in self.settings.items() if value not in (NEVER, False)]
        named += ["noise"] * (self.settings.get("predict_x0") is False)
        named += ["predictor"] * (NEVER in self.settings.values())
        return " ".join([self.solver.__name__, self.family, *named])


def multistep() -> list[Case]:
    """Return the solvers that keep estimates, in all of their forms."""
    cases = [Case(lms, "k", "epsilon", p, {"order": p}, p) for p in (1, 2, 3, 4)]
    whole: dict[str, Any] = {"lower_order_final": False}
    for family, said in (("vp", "epsilon"), ("flow", "flow_prediction")):
        cases += [Case(deis, family, said, p, whole | {"order": p}, p) for p in (1, 2, 3)]
        for algorithm in ("dpmsolver", "dpmsolver++"):
            for p, kind in ((1, "midpoint"), (2, "midpoint"), (2, "heun"), (3, "midpoint"), (3, "heun")):
                settings = whole | {"algorithm": algorithm, "order": p, "kind": kind}
                cases.append(Case(dpm_singlestep, family, said, p, settings))
                cases.append(Case(dpm_multistep, family, said, min(p, 2), settings, p))  # as published: 3 is of order 2
                if p == 3:
                    cases.append(Case(dpm_multistep, family, said, 3, settings | {"full_curvature": True}, p))
        for p in (1, 2, 3):
            for kind, x0 in (("bh1", True), ("bh2", True), ("bh1", False), ("bh2", False)):
                settings = whole | {"order": p, "kind": kind, "predict_x0": x0}
                cases.append(Case(unipc, family, said, p + 1, settings, p + 1))
                cases.append(Case(unipc, family, said, p, settings | {"disable_corrector": NEVER}, p))
    return cases


ODE = (
    Case(euler, "k", "epsilon", 1, {}),
    Case(flow_euler, "flow", "flow_prediction", 1, {}),
    Case(heun, "k", "v_prediction", 2, {}),
    Case(flow_heun, "flow", "flow_prediction", 2, {}),
    Case(kdpm2, "k", "sample", 2, {}),
    Case(ddim, "vp", "epsilon", 1, {}),
    Case(ddim, "vp", "sample", 1, {"use_clipped_model_output": True}),
    Case(pndm, "vp", "epsilon", 2, {}),
    *multistep(),
)
SDE = (
    Case(euler, "k", "epsilon", 1, {"s_churn": 5.0}),
    Case(euler_ancestral, "k", "epsilon", 1, {}),
    Case(kdpm2_ancestral, "k", "epsilon", 2, {}),
    Case(ddpm, "vp", "epsilon", 1, {"variance": "fixed_small"}),
    Case(ddpm, "vp", "v_prediction", 1, {"variance": "fixed_large"}),
    Case(ddim, "vp", "epsilon", 1, {"eta": 1.0}),
    Case(ddim, "vp", "epsilon", 1, {"eta": 0.5}),
    *(
        Case(dpm_multistep, "vp", "epsilon", min(p, 2), {"algorithm": a, "order": p, "kind": kind})
        for a in ("sde-dpmsolver", "sde-dpmsolver++")
        for p, kind in ((1, "midpoint"), (2, "midpoint"), (2, "heun"), (3, "midpoint"))
    ),
)


def planned(case: Case, count: int) -> Plan:
    """Return a plan of about so many steps to ``TO``, and one behind it."""
    rho = between((gaussian.graded if case.start > 1 else gaussian.warped)(count, case.start))
    plan = plan_of(case.family, rho, case.prediction, 0.0 if case.solver in BOTH_ENDS else 0.5)
    return gaussian.with_ancestral_middle(plan) if case.solver is kdpm2_ancestral else plan


def error(case: Case, count: int) -> float:
    """Return how far x is from the flow where ``TO`` is reached: that is before the last evaluation."""
    x = marginal(case.family, FROM)[0] * MEAN + X
    model = Model(case.family, case.prediction)
    found = run(case.solver, x, model, planned(case, count), **case.settings)[-2]
    return float(np.abs(found - flowed(case.family, x, FROM, TO)).max())


def spread_error(case: Case, count: int) -> float:
    """Return how far the spread of x is from the target's: what x is made of, each draw in a place of its own."""
    plan = planned(case, count)
    first, *draws = np.eye(len(plan.timesteps) + 1)
    model = Model(case.family, case.prediction, mean=0.0)
    found = run(case.solver, spread_at(case.family, FROM) * first, model, plan, draws, **case.settings)[-2]
    return float(abs(np.linalg.norm(found) / spread_at(case.family, TO) - 1))


ORDERS: dict[str, float] = {}


def measured(case: Case) -> float:
    """Return the order of convergence, from the errors of two plans."""
    of = spread_error if case in SDE else error
    if case.name() not in ORDERS:
        ORDERS[case.name()] = math.log2(of(case, COARSE) / of(case, FINE))
    return ORDERS[case.name()]


@pytest.mark.parametrize("case", [*ODE, *SDE], ids=Case.name)
def test_a_solver_converges_at_its_order(case):
    found = measured(case)
    print(f"{case.name():80} order {case.order}, measured {found:.2f}")
    assert abs(found - case.order) < TOLERANCE


def test_the_orders_are_printed(capsys):
    cases = [case for case in (*ODE, *SDE) if case.family != "flow" or case in ODE[:4]]
    rows = [(case.name(), case.order, measured(case)) for case in cases]
    assert len(rows) > 60
    with capsys.disabled():
        print("\nsolver on a Gaussian target, error from", COARSE, "to", FINE, "steps: order, measured")
        for name, order, found in rows:
            print(f"  {name:76} {order}  {found:.2f}")


def test_adams_weights_of_equal_steps_are_of_third_order_where_steps_are_equal():
    errors = []
    for count in (COARSE, FINE):
        plan = plan_of("vp", np.linspace(FROM, TO, count + 1), "epsilon", 0.5)
        x = marginal("vp", FROM)[0] * MEAN + X
        errors.append(np.abs(run(pndm, x, Model("vp", "epsilon"), plan)[-2] - flowed("vp", x, FROM, TO)).max())
    assert math.log2(errors[0] / errors[1]) > 2.9


def test_every_scheduler_has_its_law_here():
    assert {kind.solver for kind in SCHEDULERS.values()} == {case.solver for case in (*ODE, *SDE)} | {lcm, tcd}


def to_zero(case: Case) -> bool:
    """Tell whether a solver reaches the picture where it is known: one that interpolates the noise cannot end at
    sigma = 0, and one that churns asks before it adds noise, so that what the model said is of another x."""
    algorithm = str(case.settings.get("algorithm", "++"))
    noise = case.solver is deis or not algorithm.endswith("++") or not case.settings.get("predict_x0", True)
    return not noise and "s_churn" not in case.settings


def draws_for(count: int) -> list[np.ndarray]:
    return list(np.random.default_rng(5).standard_normal((count, *X.shape)))


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("case", [case for case in (*ODE, *SDE) if to_zero(case)], ids=Case.name)
def test_where_the_flow_is_straight_the_picture_is_reached_in_any_number_of_steps(case, count):
    plan = plan_of(case.family, np.geomspace(FROM, TO, count), case.prediction)
    plan = gaussian.with_ancestral_middle(plan) if case.solver is kdpm2_ancestral else plan
    if case.solver is ddpm:  # its steps add noise as long as the timestep is not 0
        plan, told = plan._replace(timesteps=np.arange(count)[::-1]), plan.timesteps[::-1]
    model = Model(case.family, case.prediction, kind="point")
    asked = (lambda x, t: model(x, told[int(t)])) if case.solver is ddpm else model
    steps = run(case.solver, X, asked, plan, draws_for(count), **case.settings)
    np.testing.assert_allclose(steps[-1], MEAN, atol=1e-12)
    assert steps[0] is X and len(steps) == model.calls + 1


@pytest.mark.parametrize("case", ODE, ids=Case.name)
def test_guidance_at_1_is_the_conditional_branch_to_the_bit(case):
    plan, said = planned(case, 12), (case.family, case.prediction)
    model, other = Model(*said), Model(*said, mean=9.0)
    alone = run(case.solver, X, model, plan, **case.settings)
    guided = run(case.solver, X, lambda x, t: Guided(model(x, t), other(x, t), 1.0), plan, **case.settings)
    without = run(case.solver, X, lambda x, t: Guided(other(x, t), model(x, t), 0.0), plan, **case.settings)
    assert np.array_equal(guided, alone) and np.array_equal(without, alone)


@pytest.mark.parametrize("case", [*ODE, *SDE], ids=Case.name)
def test_nan_stays_in_its_place_and_is_not_hidden(case):
    x, plan = np.array([0.5, np.nan, -1.0]), planned(case, 6)
    found = run(case.solver, x, Model(case.family, case.prediction), plan, draws_for(20), **case.settings)
    assert all(np.isnan(step).tolist() == [False, True, False] for step in found)


@pytest.mark.parametrize(("solver", "family"), [(ddim, "vp"), (euler, "k"), (unipc, "vp"), (dpm_multistep, "flow")])
def test_a_solver_goes_the_same_way_whatever_the_model_predicts(solver, family):
    ways = []
    for prediction in ("epsilon", "sample", "v_prediction", "edm", "flow_prediction"):
        plan = plan_of(family, between(gaussian.warped(8)), prediction, 0.5)
        ways.append(run(solver, X, Model(family, prediction), plan))
    np.testing.assert_allclose(ways, np.broadcast_to(ways[0], np.shape(ways)), atol=1e-12)


def there_and_back(model: Any, count: int) -> float:
    """Return how far DDIM is off that goes to the picture, and back to the noise."""
    down = plan_of("vp", between(gaussian.warped(count)), "epsilon", 0.5)
    up = Plan(down.timesteps[:0:-1], down.alphas[-2::-1], down.sigmas[-2::-1])
    picture = run(ddim, X, model, down)[-2]
    return float(np.abs(run(ddim, picture, model, up)[-1] - X).max())


def test_ddim_without_noise_goes_back_where_it_came_from():
    noise = np.array([1.0, -2.0, 0.5])
    assert there_and_back(lambda x, rho: noise, 5) < 1e-12
    errors = [there_and_back(Model("vp", "epsilon"), count) for count in (COARSE, FINE)]
    assert abs(math.log2(errors[0] / errors[1]) - 1) < TOLERANCE and errors[1] < 0.1


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("solver", [lcm, tcd, flow_euler])
def test_with_a_perfect_consistency_model_any_number_of_steps_draws_from_the_target(solver, count):
    family = "flow" if solver is flow_euler else "vp"
    rho, (first, *draws) = np.geomspace(FROM, TO, count), np.eye(count + 1)
    settings = {
        lcm: {"timestep_scaling": 1e9}, flow_euler: {"stochastic": True}, tcd: {"eta": 1.0, "bar": np.ones(1)},
    }[solver]  # fmt: skip
    for mean in (0.0, MEAN):
        start = marginal(family, FROM)[0] * mean + spread_at(family, FROM) * first
        model, plan = Model(family, "epsilon", mean, "consistent"), plan_of(family, rho, "epsilon")
        found = run(solver, start, model, plan, draws, **settings)[-1]
        np.testing.assert_allclose(np.linalg.norm(found - mean), SPREAD, rtol=1e-12)


def test_trajectory_consistency_without_noise_is_ddim():
    bar = np.linspace(0.99, 0.05, 10)
    stops = np.array([9, 6, 4, 0])
    bars = np.append(bar[stops], bar[0])
    plan = Plan(stops, bars**0.5, (1 - bars) ** 0.5, "v_prediction")
    model = Model("vp", "v_prediction")

    def asked(x, timestep):
        return model(x, (1 / bar[int(timestep)] - 1) ** 0.5)

    assert np.allclose(run(tcd, X, asked, plan, eta=0.0, bar=bar), run(ddim, X, asked, plan), atol=1e-12)
