"""The page of runs that go on: how far they are, their curves, and what failed, read from their records anew."""

import time
from collections.abc import Sequence
from pathlib import Path

from fcorun.base.errors import UserError, abbreviate_sentences, word
from fcorun.base.records.record import FINISHED_STATUSES, Record, load_records, split_damaged
from fcorun.base.records.sweep_settings import list_missing_runs, load_settings
from fcorun.reports.build_table import build_table, drop_superseded, sort_records
from fcorun.reports.page import elements, runs
from fcorun.reports.page.build_page import collect_curves, render_page
from fcorun.reports.pictures.problem_view import curve_styles_of, group_by_problem
from fcorun.reports.sweep_report import STATUSES

_LEAST_SECONDS = 3.0  # between two pages
_TIMES_LONGER = 15.0  # than it takes to make a page, the time to the next one is: about 7 % of a core


class LivePage:
    """The page of the records in and under some folders, which reloads itself.

    Attributes:
        folders: the folders.
        metric, tail_rounds: rank points; None: those of the sweep.
    """

    def __init__(self, folders: Sequence[Path], metric: str | None = None, tail_rounds: int | None = None):
        self.folders = folders
        self.metric = metric
        self.tail_rounds = tail_rounds
        self.content = ""
        self._made = 0.0
        self._seconds = _LEAST_SECONDS  # from a page to the next
        self._first: tuple[float, float] | None = None  # the time of the first page, and the rounds that were done

    def read(self) -> str:
        """Return the page as HTML, made anew if the last one is old."""
        began = time.monotonic()
        if not self.content or began - self._made >= self._seconds:
            try:
                self.content = self._make()
            except UserError as error:  # such as a metric that no run has measured so far
                self.content = self._render(elements.Page(), "Nothing to show yet", [word(str(error))])
            self._made = time.monotonic()
            self._seconds = max(_LEAST_SECONDS, _TIMES_LONGER * (self._made - began))
        return self.content

    def _make(self) -> str:
        records, damaged = split_damaged(load_records(*self.folders), Record.check)
        records, left_out = drop_superseded(records) if records else ([], "")
        summary = [f"Left out: {abbreviate_sentences(damaged)}."] if damaged else []
        page = elements.Page()
        if not records:
            summary.append(f"{', '.join(map(str, self.folders))} holds no records yet.")
            return self._render(page, "No runs yet", summary)
        settings = load_settings(*self.folders)
        settings = settings.with_overrides(metric=self.metric, tail_rounds=self.tail_rounds)
        records = sort_records(records, settings.algos)
        root = self.folders[0] if len(self.folders) == 1 else None
        table = build_table(records, settings.tail_rounds, root=root, conditions=settings.conditions)
        metric = table.resolve_metric(settings.metric)
        missing = list_missing_runs(settings, self.folders)
        summary += [runs.describe_statuses(table, missing), self._describe_progress(records, len(missing)), left_out]
        problems = group_by_problem(table, metric, STATUSES)
        styles = curve_styles_of(table, settings.algos)
        page.curves = collect_curves(records, table, problems, styles, metric=metric, best=range(len(records)))
        if page.curves:
            controls = elements.render_template("curves.html", left_out=page.curves["left_out"], is_live=True)
            page.add_section("curves", "Curves", controls)
        search = elements.render_template("filter.html")
        page.add_section("runs-table", f"{len(records)} runs", search, runs.runs_table(table, metric))
        title = runs.title_runs(records, table)
        return self._render(page, title, [line for line in summary if line])

    def _render(self, page: elements.Page, title: str, summary: Sequence[str]) -> str:
        seconds = self._seconds
        return render_page(page, "fcorun watch", title, summary, library_address="plotly.js", refresh_seconds=seconds)

    def _describe_progress(self, records: Sequence[Record], n_missing: int) -> str:
        """Return a sentence on the rounds that are done, and the time left at the pace since the first page."""
        done, planned = 0.0, 0.0
        for record in records:
            rounds = float(record.config.get("rounds") or 0)
            has_ended = record.status.get("status") in (*FINISHED_STATUSES, "failed")
            planned += rounds
            done += rounds if has_ended else float(record.status.get("round") or 0)
        if done >= planned and not n_missing:
            return ""
        planned += n_missing * planned / len(records)
        now = time.monotonic()
        first_time, first_done = self._first = self._first or (now, done)
        text = f"{done:,.0f} of about {planned:,.0f} rounds are done"
        if done > first_done:
            minutes = (planned - done) * (now - first_time) / (done - first_done) / 60
            text += f"; about {minutes:.2g} min are left, at the pace since this page was first opened"
        return text + "."
