"""The report of a run: a page, figures and numbers that say whether training worked, and why."""

from verl_core.trainer.report.build import write_report

__all__ = ["write_report"]
