"""The sheet for owners of sites has the rules of a policy with their defaults, and all messages."""

import re
from dataclasses import fields
from pathlib import Path

import yaml
from markdown_blocks import blocks

from fcorun.base.config import build
from fcorun.sites.plan.messages.message_kind import list_kinds
from fcorun.sites.plan.policy import Policy

SHEET = (Path(__file__).resolve().parents[2] / "docs" / "guide" / "site_owner.md").read_text(encoding="utf-8")


def test_the_sheet_has_each_rule_with_its_default():
    rows = re.findall(r"^\| `(\w+)` \| `(.+?)` \| .+ \|$", SHEET, re.M)
    assert {key: yaml.safe_load(default) for key, default in rows} == {f.name: f.default for f in fields(Policy)}


def test_the_rules_of_the_sheet_are_a_policy():
    (rules,) = [yaml.safe_load(block.text) for block in blocks(SHEET) if block.language == "yaml"]
    assert build(Policy, rules, "policy.").min_cell == 11


def test_the_sheet_has_all_that_leaves_a_site():
    section = SHEET[SHEET.index("## What leaves") : SHEET.index("## Your rules")]
    named = {name for row in re.findall(r"^\|([^|]+)\|", section, re.M) for name in re.findall(r"`(\w+)`", row)}
    assert named == {*list_kinds()} - {"load", "subset", "start", "result", "end"}
