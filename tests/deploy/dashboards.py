"""Reads dashboards by Grafana's own model of them, and looks for what a reader would stumble over.

Usage: dashboards.py FILE…
"""

import json
import pathlib
import sys

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

# Letters that the title of a panel of this width shows in full.
LETTERS = {3: 17}


def main():
    for path in map(pathlib.Path, sys.argv[1:]):
        board = json.loads(path.read_text())
        read = json.loads(JSONEncoder().encode(Dashboard.from_json(board)))
        same(board, read, path.name)
        panels = board["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels), f"{path.name}: an id is given twice"
        lie_side_by_side(panels, path.name)
        for panel in panels:
            look_at(panel, f"{path.name}: {panel['title']}")


def same(ours, read, where):
    """What the model does not know is lost when it is read."""
    if isinstance(ours, dict):
        for key, value in ours.items():
            assert key in read, f"{where}: Grafana has no {key}"
            same(value, read[key], f"{where}.{key}")
    elif isinstance(ours, list):
        assert len(ours) == len(read), where
        for number, (one, other) in enumerate(zip(ours, read)):
            same(one, other, f"{where}[{number}]")
    else:
        assert ours == read, f"{where}: {ours} is read as {read}"


def lie_side_by_side(panels, where):
    """No panel lies on another, and none leaves half of its row empty."""
    cells, rows = set(), {}
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, f"{where}: {panel['title']} is too wide"
        for cell in ((x, y) for x in range(place["x"], place["x"] + place["w"])
                     for y in range(place["y"], place["y"] + place["h"])):
            assert cell not in cells, f"{where}: {panel['title']} lies on another panel"
            cells.add(cell)
        rows[place["y"]] = rows.get(place["y"], 0) + place["w"]
    for y, width in rows.items():
        assert width == 24, f"{where}: the row at {y} is {width} of 24 wide"


def look_at(panel, where):
    if panel["type"] == "row":
        return
    targets = panel["targets"]
    assert len({target["refId"] for target in targets}) == len(targets), f"{where}: a refId is given twice"
    assert all(target["legendFormat"] for target in targets), f"{where}: a legend is empty"
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults.get("unit") or defaults.get("mappings"), f"{where} has no unit"
    if panel["type"] == "stat":
        assert defaults["thresholds"]["steps"], f"{where}: a figure without a colour says nothing"
    assert len(panel["title"]) <= LETTERS.get(panel["gridPos"]["w"], 40), f"{where}: the title is cut off"


main()
