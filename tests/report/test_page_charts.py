"""The charts of index.html: they show everything in the record, and never by colour alone."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from datetime import datetime, timezone

import pytest

from pytest_clustersmoke.config.metrics import show
from pytest_clustersmoke.evidence.progress_record import LaneRecord
from pytest_clustersmoke.report.job_progress import merge_lanes
from tests.report import staged
from tests.report.browsing import PATIENCE_MS, PHONE, Browse, Opened
from tests.support import records

SLOW = 'section[data-phase="zero1_4node"]'


def chart(opened: Opened, kind: str, phase: str = SLOW) -> str:
    return f'{phase} figure[data-chart="{kind}"]'


@pytest.mark.parametrize("size", [(1280, 800), PHONE])
def test_topology_draws_every_rank_and_link(browse: Browse, size: tuple[int, int]) -> None:
    """A box for each node, a square for each rank, a line for each link; the unexpected link is
    dashed and labelled, and the slow rank has a mark."""
    opened = browse(staged.run(), size=size)
    part = opened.page.locator(chart(opened, "topology"))
    assert part.locator("rect.box").count() == 4
    assert part.locator("rect.gpu").count() == 8
    drawn = part.locator("path.link").evaluate_all("all => all.map(e => e.dataset.link)")
    assert sorted(drawn) == ["0-1", "0-7", "1-2", "2-3", "3-4", "4-5", "5-6", "6-7"]
    wrong = part.locator("path.link.wrong")
    assert wrong.evaluate_all("all => all.map(e => e.dataset.link)") == ["3-4"]
    assert wrong.evaluate("e => getComputedStyle(e).strokeDasharray") != "none"
    (label,) = part.locator("g.label.wrong").all()
    assert label.text_content() == "⚠ NET/Socket1.17 GB/s"
    assert part.locator("g.label:not(.wrong)").count() == 3
    assert part.locator("rect.gpu.behind").evaluate_all("all => all.map(e => e.dataset.rank)") == [
        "5"
    ]
    assert part.locator("text.behind-mark").text_content() == "▲5"
    assert "1 unexpected links: NET/Socket" in str(part.locator("svg").get_attribute("aria-label"))


def test_labels_of_links_do_not_overlap(browse: Browse) -> None:
    """No label of a link covers another label or a node's box."""
    opened = browse(staged.run())
    script = (
        "all => all.map(e => e.getBoundingClientRect()).map(b => [b.x, b.y, b.right, b.bottom])"
    )
    part = opened.page.locator(chart(opened, "topology"))
    labels = part.locator("g.label rect").evaluate_all(script)
    boxes = part.locator("rect.box").evaluate_all(script)
    assert len(labels) == 4
    for number, label in enumerate(labels):
        for other in labels[number + 1 :] + boxes:
            apart = (
                label[2] <= other[0] + 1 or other[2] <= label[0] + 1,
                label[3] <= other[1] + 1 or other[3] <= label[1] + 1,
            )
            assert any(apart), (label, other)


def test_gloo_topology_explains_missing_links(browse: Browse) -> None:
    """The note says why there are no links; nodes and measured bandwidths are drawn."""
    opened = browse(staged.run())
    opened.open_all()
    part = opened.page.locator('section[data-phase="allreduce_multinode"]')
    assert "does not log its connections" in part.inner_text()
    figure = part.locator('figure[data-chart="topology"]')
    assert figure.locator("rect.box").count() == 4 and figure.locator("path.link").count() == 6
    text = " ".join(figure.locator("g.label").all_text_contents())
    assert "0.400 GB/s" in text and "0.550 GB/s" in text


def test_many_nodes_become_a_grid_and_a_matrix(browse: Browse) -> None:
    """64 nodes: a box with 8 ranks for each node, a square for each pair, a cross on the unexpected
    pair."""
    opened = browse(staged.large())
    part = opened.page.locator(chart(opened, "topology", ".phase"))
    assert part.locator("rect.box").count() == 64 and part.locator("rect.gpu").count() == 512
    assert part.locator("rect.cell").count() == 64 * 63 // 2
    assert part.locator("rect.cell.wrong").count() == part.locator("path.cross").count() == 1
    assert part.locator("text.kinds.wrong").text_content() == "⚠ NET/Socket: node40, node41"
    assert part.locator("rect.gpu.behind").get_attribute("data-rank") == "341"


def test_slow_rank_is_named_in_its_chart(browse: Browse) -> None:
    """The chart of step times names the rank that is behind; even at the edge the label fits."""
    run = records.run(staged.with_own_times(records.phase(), slow=7), verdict="UNFIT")
    opened = browse(run)
    svg = opened.page.locator(f"{chart(opened, 'steps')} svg")
    assert str(svg.get_attribute("aria-label")).endswith("Behind: 7.")
    label = svg.locator("text", has_text="rank 7 is behind")
    inner, outer = label.bounding_box(), svg.bounding_box()
    assert inner and outer
    assert inner["x"] + inner["width"] <= outer["x"] + outer["width"] + 1


def test_nan_loss_is_marked(browse: Browse) -> None:
    """If the loss ends in NaN, the chart says from which step on."""
    opened = browse(staged.run())
    svg = opened.page.locator(f"{chart(opened, 'loss', '#phase-zero1_2gpu')} svg")
    assert "Not a number from step 21 on." in str(svg.get_attribute("aria-label"))
    assert svg.locator("text", has_text="NaN").or_(svg.locator("text", has_text="nan")).count() == 1


def test_trends_show_each_metric_over_its_past(browse: Browse) -> None:
    """Each metric has a chart; one outside its bounds says so in its label, and is marked."""
    run = staged.run()
    opened = browse(run)
    part = opened.page.locator(chart(opened, "trends"))
    names = part.locator(".small").evaluate_all("all => all.map(e => e.dataset.metric)")
    slow = next(phase for phase in run["phases"] if phase["phase"] == "zero1_4node")
    assert names == list(slow["metrics"])
    off = part.locator(".small.off").evaluate_all("all => all.map(e => e.dataset.metric)")
    assert set(off) == {"steps_per_s", "samples_per_s"}
    text = part.locator(".small.off svg").first.get_attribute("aria-label")
    assert text == "steps_per_s over 30 past runs, outside its bounds now."


def test_chart_tells_each_value_by_pointer_and_by_keyboard(browse: Browse) -> None:
    """Date, value with its unit, and run; a screen reader gets them as the value of a slider."""
    run = staged.run()
    opened = browse(run)
    part = opened.page.locator(chart(opened, "trends"))
    small = part.locator(".small").first
    slow = next(phase for phase in run["phases"] if phase["phase"] == "zero1_4node")
    value = show(slow["metrics"]["steps_per_s"]["value"])
    tip = small.locator(".tip")
    assert tip.is_hidden()
    small.focus()
    words = tip.inner_text()
    assert f"UTC: {value} steps/s; {run['run_id']} (this run)" in words
    opened.page.keyboard.press("ArrowLeft")
    before = str(small.get_attribute("aria-valuetext"))
    assert slow["trend"]["run_ids"][-1] in before and before == tip.inner_text()
    opened.page.keyboard.press("Home")
    assert slow["trend"]["run_ids"][0] in tip.inner_text()
    opened.page.keyboard.press("Escape")
    assert tip.is_hidden()
    box = small.bounding_box()
    assert box
    opened.page.mouse.move(box["x"] + box["width"] - 20, box["y"] + box["height"] / 2)
    assert tip.inner_text() == words


@pytest.mark.parametrize(
    ("kind", "words"),
    [("steps", "rank 7: 142.0 ms per step"), ("memory", "rank 7: 9.007 GiB"), ("loss", "step 30")],
)
def test_charts_of_ranks_and_of_the_loss_tell_their_values(
    browse: Browse, kind: str, words: str
) -> None:
    """The last one first, when they get the focus."""
    opened = browse(staged.run())
    part = opened.page.locator(f"{chart(opened, kind)} .explore")
    part.focus()
    assert part.locator(".tip").inner_text().startswith(words)


def test_points_tell_what_the_marks_show(browse: Browse) -> None:
    """A rank that is behind, and a loss that is not a number; the label of the chart describes the
    slider, which hides it from a screen reader."""
    opened = browse(records.run(staged.with_own_times(records.phase(), slow=7), verdict="UNFIT"))
    part = opened.page.locator(f"{chart(opened, 'steps')} .explore")
    assert str(part.get_attribute("aria-valuetext")).endswith(", behind")
    part.press("ArrowLeft")
    assert "behind" not in str(part.get_attribute("aria-valuetext"))
    label = part.locator("svg").get_attribute("aria-label")
    described = "e => document.getElementById(e.getAttribute('aria-describedby')).ariaLabel"
    assert part.evaluate(described) == label and str(label).endswith("Behind: 7.")
    opened = browse(staged.run())
    opened.open_all()
    part = opened.page.locator(f"{chart(opened, 'loss', '#phase-zero1_2gpu')} .explore")
    told = part.get_attribute("aria-valuetext")
    assert str(told).lower() == "step 22: loss nan, not a number"


def test_45_nights_have_enough_ticks(browse: Browse) -> None:
    """At least three, evenly apart, and the newest night has one; the reference has a label."""
    phase = records.phase(metrics={"steps_per_s": staged.against(9.9, 10.0, "steps/s")})
    phase["trend"] = made = staged.trend(phase, 44)
    made["begun"] = [records.BEGUN - (44 - n) * staged.DAY_S for n in range(44)]
    opened = browse(records.run(phase))
    opened.open_all()
    small = opened.page.locator(chart(opened, "trends")).locator(".small").first
    labels = small.locator('g[data-mark="x-axis tick label"] text').all_text_contents()
    days = [datetime.strptime(f"2026 {label}", "%Y %d %b") for label in labels]
    assert len(days) >= 3 and len({later - day for day, later in itertools.pairwise(days)}) == 1
    newest = datetime.fromtimestamp(records.BEGUN, timezone.utc)
    assert (days[-1].month, days[-1].day) == (newest.month, newest.day)
    sides = small.locator('g[data-mark="text"] text').all_text_contents()
    assert sorted(sides) == ["fail", "ref", "warn"]


def test_timeline_has_every_phase(browse: Browse) -> None:
    """One row per phase, with its queue and run time."""
    run = staged.run()
    svg = browse(run).page.locator("#timeline svg")
    text = svg.locator("text").all_text_contents()
    for phase in run["phases"]:
        assert phase["phase"] in text
        assert f"queue {phase['queue_s']:.1f} s, run {phase['run_s']:.1f} s" in text
    assert svg.locator('g[data-mark="bar"] rect').count() == 2 * len(run["phases"])


def test_queue_bar_is_as_long_as_the_queue_time(browse: Browse) -> None:
    """Slurm reports whole seconds: the bar of "queue 11.0 s" is 11 s long, not the 12 s between our
    time of submission and Slurm's start time."""
    phase = staged.later(records.phase("slow"), 0, 24.0, 12.0)
    phase["queue_s"] = 11.0
    other = staged.later(records.phase("early"), 0, 24.0, 12.0)
    other |= {"queue_s": 13.0}
    svg = browse(records.run(phase, other)).page.locator("#timeline svg")
    bars = svg.locator('g[data-mark="bar"]')
    script = "all => all.map(e => [e.x.baseVal.value, e.width.baseVal.value])"
    waited, ran = (bars.nth(at).locator("rect").evaluate_all(script) for at in (0, 1))
    second = ran[0][1] / 24
    for (x, width), (start, _), queue_s in zip(waited, ran, (11, 13), strict=True):
        assert abs(width / second - queue_s) < 0.05 and abs(x + width - start) < 0.5


@pytest.mark.parametrize(
    ("apart_s", "words"),
    [
        (0.4, r"\d\d:\d\d:\d\d"),
        (1, r"\d\d:\d\d:\d\d"),
        (600, r"\d\d:\d\d"),
        (staged.DAY_S, r"\d{1,2} [A-Z][a-z]{2}"),
        (30 * staged.DAY_S, r"[A-Z][a-z]{2} \d{4}"),
    ],
)
@pytest.mark.parametrize("size", [pytest.param((1280, 800), marks=pytest.mark.slow), PHONE])
def test_trend_ticks_are_24_hour_utc_times(
    browse: Browse, apart_s: float, words: str, size: tuple[int, int]
) -> None:
    """For any interval between runs, the labels are UTC times that do not overlap or repeat."""
    phase = records.phase()
    phase["trend"] = made = staged.trend(phase, 20)
    made["begun"] = [records.BEGUN - (20 - n) * apart_s for n in range(20)]
    opened = browse(records.run(phase), size=size)
    opened.open_all()
    part = opened.page.locator(chart(opened, "trends"))
    assert "times in UTC" in part.inner_text()
    ticks = part.locator(".small").first.locator('g[data-mark="x-axis tick label"] text')
    labels = ticks.all_text_contents()
    assert labels and all(re.fullmatch(words, label) for label in labels), labels
    assert len(set(labels)) == len(labels)
    boxes = ticks.evaluate_all(
        "all => all.map(e => e.getBoundingClientRect()).map(b => [b.x, b.right])"
    )
    assert all(left[1] + 2 < right[0] for left, right in itertools.pairwise(boxes)), boxes


def test_times_of_runs_seconds_apart_do_not_touch(browse: Browse) -> None:
    """Two runs a few seconds apart, on a laptop: fewer ticks rather than labels that run
    together."""
    phase = records.phase()
    phase["trend"] = made = staged.trend(phase, 1)
    made["begun"] = [records.BEGUN - 2.5]
    opened = browse(records.run(phase, begun=records.BEGUN + 0.9))
    opened.open_all()
    part = opened.page.locator(chart(opened, "trends"))
    ticks = part.locator(".small").first.locator('g[data-mark="x-axis tick label"] text')
    boxes = ticks.evaluate_all(
        "all => all.map(e => e.getBoundingClientRect()).map(b => [b.x, b.right])"
    )
    assert boxes and all(left[1] + 2 < right[0] for left, right in itertools.pairwise(boxes))


def test_charts_are_redrawn_when_the_width_changes(browse: Browse) -> None:
    """After a phone is turned, its charts have the new width."""
    opened = browse(staged.run())
    before = opened.page.locator("#timeline svg").bounding_box()
    opened.ask("document.querySelector('#timeline svg').dataset.old = 'yes'")
    opened.page.set_viewport_size({"width": 800, "height": 600})
    opened.page.wait_for_selector("#timeline svg:not([data-old])", timeout=PATIENCE_MS)
    opened.settle()
    after = opened.page.locator("#timeline svg").bounding_box()
    assert before and after and after["width"] < before["width"]
    assert opened.ask("document.documentElement.scrollWidth") == 800


def paired(nodes: int, ranks_per_node: int, wrong: bool = True) -> records.Record:
    """A run in which every pair of nodes was measured; `wrong`: one link uses sockets."""
    phase = records.phase("allreduce_multinode", nodes=nodes, ranks_per_node=ranks_per_node)
    if wrong:
        staged.with_wrong_link(phase, ranks_per_node - 1)
    topology = phase["topology"]
    assert topology is not None
    topology["groups"] += staged.measured_pairs(topology["groups"], nodes)
    return records.run(phase, verdict="UNFIT")


@pytest.mark.parametrize("size", [pytest.param((1280, 800), marks=pytest.mark.slow), PHONE])
@pytest.mark.parametrize(("nodes", "ranks"), [(2, 8), (6, 1), (6, 8), (8, 2), (12, 8)])
def test_every_link_has_its_label_or_is_counted(
    browse: Browse, size: tuple[int, int], nodes: int, ranks: int
) -> None:
    """The unexpected link always has a label inside the picture; links without a label are counted
    below it, and the table has the transport and bandwidth of each pair."""
    opened = browse(paired(nodes, ranks), size=size)
    part = opened.page.locator(chart(opened, "topology", ".phase"))
    (wrong,) = part.locator("g.label.wrong").all_text_contents()
    assert wrong == "⚠ NET/Socket1.17 GB/s" + ("slowest" if nodes > 5 else "")
    pairs = nodes * (nodes - 1) // 2
    left = pairs - part.locator("g.label").count()
    notes = part.locator("p.unlabelled").all_text_contents()
    words = f"{left} link{'s' * (left > 1)} between nodes without a label: see the figures."
    assert notes == ([words] if left else [])
    assert not left or pairs > 10
    opened.open_all()
    rows = part.locator('table[data-table="groups"] tbody tr:not([data-one="0"][data-other="0"])')
    cells = [row.split("\t") for row in rows.all_inner_texts()]
    between = [row for row in cells if row[0].count("node") == 2]
    assert len(between) == pairs
    assert all(row[1].startswith("NET/") and float(row[4]) > 0 for row in between)
    script = "all => all.map(e => e.getBBox()).map(b => [b.x, b.y, b.x + b.width, b.y + b.height])"
    view = part.locator("svg").first.evaluate(
        "e => [e.viewBox.baseVal.width, e.viewBox.baseVal.height]"
    )
    for x, y, right, bottom in part.locator("g.label rect").evaluate_all(script):
        assert x >= 0 and y >= 0 and right <= view[0] and bottom <= view[1]


@pytest.mark.parametrize(("nodes", "ranks"), [(5, 2), (12, 8)])
def test_unlabelled_unexpected_links_are_counted(browse: Browse, nodes: int, ranks: int) -> None:
    """If every pair is unexpected, a small picture labels all of them; a large one labels at least
    ten and counts the others."""
    run = paired(nodes, ranks)
    topology = run["phases"][0]["topology"]
    assert topology is not None
    for group in topology["groups"]:
        group |= {"kind": "NET/Socket", "unexpected": group["links"]}
    part = browse(run).page.locator('.phase figure[data-chart="topology"]')
    labels = part.locator("g.label.wrong").count()
    notes = part.locator("p.unlabelled").all_text_contents()
    counted = int(notes[0].split()[0]) if notes else 0
    assert labels >= min(10, nodes * (nodes - 1) // 2)
    assert labels + counted == nodes * (nodes - 1) // 2


def test_label_covers_no_other_line(browse: Browse) -> None:
    """With four nodes, all connected, a label covers only the line of its own link."""
    part = browse(paired(4, 2)).page.locator('.phase figure[data-chart="topology"]')
    lines = part.locator("path.link").evaluate_all(
        "all => all.map(e => e.getAttribute('d').match(/[-\\d.]+/g).map(Number))"
    )
    frames = part.locator("g.label rect").evaluate_all(
        "all => all.map(e => e.getBBox()).map(b => [b.x, b.y, b.x + b.width, b.y + b.height])"
    )
    assert len(frames) == 6 and len(lines) == 6 + 4
    for left, top, right, bottom in frames:
        through = [
            line
            for line in lines
            if any(left < x < right and top < y < bottom for x, y in along(*line))
        ]
        assert len(through) == 1


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [4, 5])
def test_slowest_pair_is_labelled_on_its_own_line(browse: Browse, nodes: int) -> None:
    """For every pair as the slowest one, even if its line crosses others."""
    for slowest in range(nodes * (nodes - 1) // 2):
        run = records.run(staged.gloo_phase(nodes), verdict="FIT")
        topology = run["phases"][0]["topology"]
        assert topology is not None
        topology["groups"][slowest]["bandwidth_gb_per_s"] = 0.125
        opened = browse(run)
        opened.open_all()
        part = opened.page.locator('.phase figure[data-chart="topology"]')
        label = part.locator("g.label", has_text="0.125 GB/s").locator("rect")
        left, top, right, bottom = label.evaluate(
            "e => [e.getBBox()].map(b => [b.x, b.y, b.x + b.width, b.y + b.height])[0]"
        )
        lines = part.locator("path.link").evaluate_all(
            "all => all.map(e => e.getAttribute('d').match(/[-\\d.]+/g).map(Number))"
        )
        through = [
            number
            for number, line in enumerate(lines)
            if any(left < x < right and top < y < bottom for x, y in along(*line))
        ]
        assert through == [slowest]


def test_six_nodes_also_have_a_matrix(browse: Browse) -> None:
    """Fifteen lines leave no room for labels; a matrix has a square for each pair."""
    part = browse(paired(6, 1, wrong=False)).page.locator('figure[data-chart="topology"]')
    assert part.locator("rect.cell").count() == 15


def along(x: float, y: float, to_x: float, to_y: float) -> Iterator[tuple[float, float]]:
    """Points of a line, closer together than the height of a label."""
    for step in range(501):
        yield x + (to_x - x) * step / 500, y + (to_y - y) * step / 500


def test_wide_picture_scrolls_to_the_unexpected_link(browse: Browse) -> None:
    """On a phone the label of the unexpected link is in view, and so are notes and text below."""
    opened = browse(paired(12, 8), size=PHONE)
    part = opened.page.locator('.phase figure[data-chart="topology"]')
    for words in (
        part.locator("g.label.wrong"),
        part.locator("p.unlabelled"),
        part.locator("svg").last,
    ):
        box = words.bounding_box()
        assert box and box["x"] >= 0 and box["x"] + box["width"] <= PHONE[0]
    assert opened.ask("document.documentElement.scrollWidth") == PHONE[0]


def test_few_pairs_are_told_in_the_picture(browse: Browse) -> None:
    """Where each pair has its label there is no matrix: the picture tells each of them by keyboard
    and pointer, the worst first, and the table has the same order."""
    opened = browse(paired(4, 2))
    picture = opened.page.locator(f"{chart(opened, 'topology', '.phase')} .explore")
    assert picture.count() == 1 and picture.locator("rect.gpu").count() == 8
    picture.focus()
    tip = picture.locator(".tip")
    first = tip.inner_text()
    assert first.startswith("node0 \u2013 node1: 1.17 GB/s; NET/Socket; 1 unexpected; 1 of 6")
    opened.page.keyboard.press("End")
    last = tip.inner_text()
    assert last != first and "6 of 6" in last
    rows = opened.page.locator('table[data-table="groups"] tbody tr th').all_text_contents()
    between = [row for row in rows if "\u2013" in row]
    told = [words.partition(":")[0] for words in (first, last)]
    assert [between[0], between[-1]] == told and len(between) == 6


def test_axis_ticks_all_have_labels_that_fit(browse: Browse) -> None:
    """Also those of a logarithmic axis, whatever it spans; and long numbers are shortened."""
    opened = browse(records.run())
    spans = [[0.9, 1.3], [0.05, 0.8], [0.02, 3], [1e-3, 1e4], [1e-9, 1e12]]
    for low, high in spans:
        axis = opened.ask(
            f"(({{ domain, ticks }}) => [domain, ticks])(Charts.logarithmic({low}, {high}))"
        )
        (least, most), ticks = axis
        assert least < low and high < most and 2 <= len(ticks) <= 6
        assert ticks == sorted(set(ticks)) and all(least <= tick <= most for tick in ticks)
    losses = [(step, 2.0 / step**2) for step in range(1, 12)]
    opened = browse(records.run({**records.phase(), "loss": losses}))
    opened.open_all()
    labels = opened.page.locator('figure[data-chart=loss] g[data-mark="y-axis tick label"] text')
    texts = labels.all_text_contents()
    assert len(texts) > 1 and all(texts), texts
    phase = records.phase()
    phase["trend"] = trend = staged.trend(phase, 20)
    phase["metrics"]["steps_per_s"]["value"] *= 1e5
    trend["metrics"]["steps_per_s"] = [value * 1e5 for value in trend["metrics"]["steps_per_s"]]
    opened = browse(records.run(phase))
    opened.open_all()
    rates = opened.page.locator(f"{chart(opened, 'trends', '.phase')} .small").first
    texts = rates.locator('g[data-mark="y-axis tick label"] text').all_text_contents()
    assert texts and all(re.fullmatch(r"[\d.]+[kM]", text) for text in texts), texts
    assert opened.find_cut() == []


def test_trends_of_one_figure_begin_above_zero(browse: Browse) -> None:
    """One whose values spread widely looks no other than its neighbours."""
    phase = records.phase()
    phase["trend"] = made = staged.trend(phase, 20)
    made["metrics"]["steps_per_s"][3] /= 50
    opened = browse(records.run(phase))
    opened.open_all()
    part = opened.page.locator(chart(opened, "trends", ".phase"))
    ticks = part.locator('g[data-mark="y-axis tick label"] text').all_text_contents()
    assert ticks and "0" not in ticks
    assert "each vertical axis spans its own values" in part.inner_text()


@pytest.mark.slow
def test_matrix_tells_each_pair_the_worst_first(browse: Browse) -> None:
    """With the focus the unexpected pair, then the slowest of the others; under the pointer the
    pair of that square. The table has the same order."""
    opened = browse(staged.large())
    opened.open_all()
    matrix = opened.page.locator(f"{chart(opened, 'topology', '.phase')} .explore")
    matrix.focus()
    tip = matrix.locator(".tip")
    assert tip.inner_text().startswith("node40 \u2013 node41: 1.17 GB/s; NET/Socket; 1 unexpected")
    assert "1 of 2,016, the worst first" in tip.inner_text()
    opened.page.keyboard.press("ArrowRight")
    second = tip.inner_text()
    assert ": 44.0 GB/s; NET/IB; 2 of 2,016" in second
    cell = matrix.locator("rect.cell").nth(100)
    cell.hover()
    words = tip.inner_text()
    assert words != second and re.match(r"node\d+ \u2013 node\d+: 4\d\.\d GB/s; NET/IB; ", words)
    rows = opened.page.locator('table[data-table="slowest-pairs"] tbody tr').all_inner_texts()
    assert rows[0].startswith("node40 \u2013 node41\tNET/Socket\t1\t1.170\t-97")
    assert rows[1].startswith(second.partition(":")[0]) and len(rows) == 32


def swept(past: int = 24) -> records.Record:
    phase = records.phase("allreduce_multinode", collectives=staged.curves("all_reduce", past=past))
    phase["metrics"] = {
        "busbw_gb_per_s": staged.against(8.0, 10.0, "GB/s"),
        "busbw_1mib_gb_per_s": staged.against(9.0, 9.1, "GB/s"),
        "latency_us": records.metric(20.0, "us", higher_is_better=False),
    }
    return records.run(phase, verdict="UNFIT")


@pytest.mark.parametrize("size", [(1280, 800), pytest.param(PHONE, marks=pytest.mark.slow)])
def test_curves_tell_each_size(browse: Browse, size: tuple[int, int]) -> None:
    """Bus bandwidth and time by message size, with the past and how far this run is from it; a
    reference that is missed marks its chart, and no label leaves the picture."""
    opened = browse(swept(), size=size)
    opened.open_all()
    part = opened.page.locator(chart(opened, "curves", ".phase"))
    names = part.locator(".small").evaluate_all("all => all.map(e => e.dataset.curve)")
    assert names == ["all_reduce busbw", "all_reduce seconds"]
    off = part.locator(".small.off").evaluate_all("all => all.map(e => e.dataset.curve)")
    assert off == ["all_reduce busbw"]
    busbw = part.locator(".small").first
    busbw.focus()
    words = busbw.locator(".tip").inner_text()
    assert re.fullmatch(r"2 MiB: 9\.129 GB/s; past 9\.495, .3\.8%, 24 runs", words), words
    opened.page.keyboard.press("Home")
    assert busbw.locator(".tip").inner_text().startswith("8 B: ")
    sides = busbw.locator('g[data-mark="text"] text').all_text_contents()
    assert sides == ["ref"]
    assert opened.ask("document.documentElement.scrollWidth") == size[0]
    for label in part.locator('g[data-mark="x-axis tick label"] text').all():
        box = label.bounding_box()
        assert box and box["x"] >= 0 and box["x"] + box["width"] <= size[0]


def test_curves_match_the_record(browse: Browse) -> None:
    """Each point, with its past, to the last digit; without scripts the table is there."""
    record = swept()
    opened = browse(record, scripts=False)
    points = record["phases"][0]["collectives"][0]["points"]
    cells = opened.page.locator('table[data-table="curves"] td[data-value]')
    found = cells.evaluate_all("all => all.map(e => Number(e.dataset.value))")
    wanted = [
        value
        for point in points
        for value in (
            *(point["asked_bytes"], point["seconds"], point["busbw_gb_per_s"]),
            point["past"]["runs"],
            *point["past"]["busbw_gb_per_s"].values(),
            *point["past"]["seconds"].values(),
        )
    ]
    assert found == wanted
    bounds = opened.page.locator('table[data-table="curve-bounds"] tbody tr')
    assert bounds.count() == 2 and "outside" in str(bounds.first.text_content())


def test_curves_without_a_past_say_so(browse: Browse) -> None:
    """On a first run, and after a change of versions."""
    opened = browse(swept(past=0))
    opened.open_all()
    part = opened.page.locator('section[id$="-curves"]')
    assert "no past is drawn" in part.inner_text() and "median" not in part.inner_text()
    told = part.locator(".small").first.get_attribute("aria-valuetext")
    assert told == "2 MiB: 9.129 GB/s"


@pytest.mark.parametrize("size", [pytest.param((1280, 800), marks=pytest.mark.slow), PHONE])
def test_failed_job_shows_how_far_it_got(browse: Browse, size: tuple[int, int]) -> None:
    """A row for each rank with its host and stages, the named one marked there, in the charts of
    its steps and in the topology; nothing is cut."""
    opened = browse(staged.run(), size=size)
    opened.open_all()
    part = opened.page.locator("#phase-zero1_2gpu-progress")
    assert "The last step that a rank marked is 44 of 400." in part.inner_text()
    assert "at most every 0.5 s" in part.inner_text()
    lanes = part.locator('figure[data-chart="lanes"]')
    texts = lanes.locator("svg text").all_text_contents()
    assert {"! rank 0 · node0", "✖ rank 1 · node0", "train"} <= set(texts)
    box = lanes.locator(".explore")
    box.focus()
    words = lanes.locator(".tip").inner_text()
    assert words.startswith("rank 1: train, from 3.100 s, did not end; named as a cause")
    for kind in ("track_loss", "track_rate"):
        label = str(part.locator(f'figure[data-chart="{kind}"] svg').get_attribute("aria-label"))
        assert "Rank 1 marked step 40 last and is named" in label
        text = part.locator(f'figure[data-chart="{kind}"] svg text', has_text="✖ rank 1").first
        inside = text.bounding_box()
        assert inside and inside["x"] >= 0 and inside["x"] + inside["width"] <= size[0]
    for kind in ("steps", "memory"):
        figure = opened.page.locator(chart(opened, kind, "#phase-zero1_2gpu"))
        assert figure.locator("svg text", has_text="✖ rank 1").count() == 1
    topology = opened.page.locator('#phase-zero1_2gpu-topology figure[data-chart="topology"]')
    assert topology.locator("rect.gpu.named").get_attribute("data-rank") == "1"
    assert topology.locator("text.ended").text_content() == "✖1"
    assert opened.ask("document.documentElement.scrollWidth") == size[0]


def test_rank_that_wrote_nothing_is_drawn_on_its_node(browse: Browse) -> None:
    """Without links the nodes stand in reading order, each with its rank."""
    phase = records.phase("wide", nodes=4, ranks_per_node=1, outcome="failed", metrics={}, loss=[])
    phase["ranks"][2] |= {"node_rank": None, "node": "unknown", "done": False}
    lanes = [staged.lane([rank], "failed", "raised Error") for rank in (0, 1, 3)]
    lanes.insert(2, staged.lane([2], "silent", "wrote nothing"))
    for rank, lane in enumerate(lanes):
        lane["nodes"] = [f"node{rank}"]
    phase["progress"] = staged.progress(lanes, named=1)
    phase["topology"] = None
    opened = browse(records.run(phase, verdict="UNFIT", sentence="UNFIT", failed=["wide"]))
    figure = opened.page.locator('#phase-wide-topology figure[data-chart="topology"]')
    names = [figure.locator("text.name").nth(at) for at in range(4)]
    places = [name.bounding_box() for name in names]
    order = [(round(box["y"]), box["x"]) for box in places if box]
    assert [name.text_content() for name in names] == [f"node{rank}" for rank in range(4)]
    assert order == sorted(order)
    home, drawn = places[2], figure.locator("text.ended").bounding_box()
    assert home and drawn
    assert abs(home["x"] + home["width"] / 2 - drawn["x"] - drawn["width"] / 2) < 2


@pytest.mark.slow
def test_512_ranks_of_a_failed_job_have_a_bounded_time_line(browse: Browse) -> None:
    """Ranks that ended alike share a row; the silent ones are marked in the topology."""
    run = staged.large()
    phase = run["phases"][0]
    made = [staged.lane([rank], "unfinished", "in train") for rank in range(512)]
    made[341] = staged.lane([341], "named", "rank 341 was killed")
    made[64:72] = [staged.lane([rank], "silent", "wrote nothing") for rank in range(64, 72)]
    merged = merge_lanes([LaneRecord.model_validate(one) for one in made])
    phase["progress"] = staged.progress([one.model_dump() for one in merged], named=341)
    phase["outcome"] = "failed"
    opened = browse(run)
    opened.open_all()
    part = opened.page.locator('figure[data-chart="lanes"]')
    texts = part.locator("svg text").all_text_contents()
    assert {"✖ rank 341 · node42", "∅ ranks 64-71 · node8"} <= set(texts)
    assert any(text.startswith("… 503 ranks · ") for text in texts)
    height = part.locator("svg").evaluate("e => e.viewBox.baseVal.height")
    assert height < 200
    topology = opened.page.locator(chart(opened, "topology", ".phase"))
    assert topology.locator("rect.gpu.silent").count() == 8
    assert topology.locator("rect.gpu.named").get_attribute("data-rank") == "341"
    assert topology.locator("text.ended").all_text_contents() == ["∅ node8", "✖ ▲ node42"]
