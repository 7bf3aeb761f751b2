"""Finding the first gradient that is not finite."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from pytest_clustersmoke.rank import watches
from pytest_clustersmoke.rank.rank_environment import RankMisuse
from pytest_clustersmoke.rank.watches import GradientWatch, ReplicaWatch, _is_plain


def watched(factors: list[list[float]]) -> dict[str, Any]:
    """Watch a model whose gradients of one weight are multiplied by these factors: one list for
    each step, one number for each of its backward passes."""
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[0].requires_grad_(False)
    factor = [1.0]
    weight: Any = model[1].weight
    weight.register_hook(lambda gradient: gradient * factor[0])
    watch = GradientWatch(model.named_parameters(), len(factors), torch.device("cpu"))
    for step in factors:
        for factor[0] in step:
            model(torch.ones(1, 3)).sum().backward()
        watch.step_done()
    fields = watch.close()
    factor[0] = float("nan")
    model(torch.ones(1, 3)).sum().backward()  # after close() nothing is watched
    return fields


def test_finite_gradients_are_reported_as_finite() -> None:
    """Two of the four parameters are trained."""
    assert watched([[1.0]] * 3) == {
        "parameters": 2,
        "not_finite_at": None,
        "not_finite_in": None,
    }


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_first_bad_step_and_its_parameter_are_reported(bad: float) -> None:
    """The first of several bad steps counts, whichever backward pass it came from."""
    fields = watched([[1.0, 1.0], [1.0, 1.0], [bad, 1.0], [1.0, bad]])
    assert (fields["not_finite_at"], fields["not_finite_in"]) == (3, "1.weight")


def test_one_sum_is_one_operator() -> None:
    """On small models the operators of a watch cost more than its additions."""
    import torch

    model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(5)))
    watch = GradientWatch(model.named_parameters(), 3, torch.device("cpu"))
    model(torch.ones(1, 3)).sum().backward()
    watch.step_done()
    inputs = [torch.ones(3, 3)] * 10
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for index, gradient in enumerate(inputs):
            watch._add_sum(index, gradient)
        watch.step_done()
    calls = Counter(event.name for event in profile.events())
    assert (calls["aten::sum"], calls["aten::copy_"]) == (10, 1)
    assert not calls.keys() & {"aten::add_", "aten::select", "aten::detach"}


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("kind", ["sparse", "differentiated again"])
@pytest.mark.parametrize("bad", [float("nan"), 1.0])
def test_gradient_whose_sum_is_a_new_tensor_is_watched(kind: str, bad: float) -> None:
    """That of an embedding may be sparse; with `create_graph` it is differentiated again."""
    import torch

    table = torch.nn.Embedding(5, 2, sparse=kind == "sparse")
    watch = GradientWatch(table.named_parameters(), 3, torch.device("cpu"))
    for factor in (1.0, bad, 1.0):
        loss = (table(torch.tensor([1, 1, 4])) ** 2 * factor).sum()
        loss.backward(create_graph=kind != "sparse")
        table.weight.grad = None
        watch.step_done()
    assert watch.close()["not_finite_at"] == (2 if bad != bad else None)


def test_sum_of_a_gradient_on_another_device_is_not_written_in_place() -> None:
    """A program may keep a table on the CPU beside a model on a GPU: torch refuses such a write."""
    import torch

    assert _is_plain(torch.ones(3), torch.device("cpu"))
    assert not _is_plain(torch.ones(3), torch.device("meta"))


def test_step_without_a_gradient_is_no_bad_step() -> None:
    """A parameter that takes no part in a step has no sum of it."""
    import torch

    first, second = (torch.nn.Linear(2, 2, bias=False) for _ in range(2))
    model = torch.nn.ModuleDict({"first": first, "second": second})
    watch = GradientWatch(model.named_parameters(), 3, torch.device("cpu"))
    for layer, factor in ((first, 1.0), (second, 1.0), (first, float("inf"))):
        (layer(torch.ones(1, 2)) * factor).sum().backward()
        watch.step_done()
    fields = watch.close()
    assert (fields["not_finite_at"], fields["not_finite_in"]) == (3, "first.weight")


@pytest.mark.parametrize("at", [1, 4, 5, 9, 10])
def test_step_is_exact_in_a_run_longer_than_the_rows_kept(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long run keeps the sums of some steps, and one number for each of the others."""
    monkeypatch.setattr(watches, "SUM_ROWS", 4)
    factors = [[1.0]] * 10
    factors[at - 1] = [float("nan")]
    assert watched(factors)["not_finite_at"] == at


def test_parameter_nearest_to_the_loss_is_reported() -> None:
    """A NaN that arises in a backward pass propagates to the first layers."""
    import torch

    layers = [torch.nn.Linear(3, 3, bias=False) for _ in range(4)]
    model = torch.nn.Sequential(*layers)
    layers[3].register_full_backward_hook(lambda *_: (torch.full((1, 3), float("nan")),))
    watch = GradientWatch(model.named_parameters(), 1, torch.device("cpu"))
    model(torch.ones(1, 3)).sum().backward()
    watch.step_done()
    assert watch.close()["not_finite_in"] == "2.weight"


def test_model_without_trained_parameters_is_an_error() -> None:
    """A watch over nothing would always report finite gradients."""
    import torch

    with pytest.raises(RankMisuse, match="nothing to watch"):
        GradientWatch([], 3, torch.device("cpu"))


@pytest.mark.parametrize(
    ("count", "compared"), [(1, [1]), (8, [1, 8]), (10, [1, 10]), (25, [1, 10, 20, 25])]
)
def test_parameters_are_compared_at_the_first_step_too(count: int, compared: list[int]) -> None:
    """Ranks that come apart before the tenth step were known to be equal once."""
    import torch

    model = torch.nn.Linear(2, 2)
    watch = ReplicaWatch(model.named_parameters(), count, 2, torch.device("cpu"))
    for step in range(1, count + 1):
        watch.step_done(step)
    assert list(watch.rows().steps) == compared


def test_twin_run_keeps_a_row_for_each_step() -> None:
    import torch

    model = torch.nn.Linear(2, 2)
    watch = ReplicaWatch(model.named_parameters(), 12, 1, torch.device("cpu"), keeps=True)
    for step in range(1, 13):
        watch.step_done(step)
    assert list(watch.rows().steps) == list(range(1, 13))
