import pytest

from tests import audit

WEAK = {
    "name": "celery",
    "version": "5.2.1",
    "vulns": [{"id": "CVE-2021-23727", "fix_versions": ["5.2.2"]}],
}


def test_what_is_needed_is_asked_for_however_indirectly_and_what_lint_needs_is_not() -> None:
    needed = dict(audit.installed(audit.PACKAGE, audit.EXTRAS))
    # vine by way of kombu; cryptography by way of pymysql's extra.
    assert {"celery", "kombu", "vine", "flower", "tornado", "cryptography"} <= needed.keys()
    assert not {"pytest", "bandit", "celery-singleton-lock"} & needed.keys()


@pytest.mark.parametrize(("ci", "failed"), [("true", 1), ("", 0)])
def test_a_known_weakness_is_a_failure_in_ci_and_a_warning_elsewhere(
    ci: str, failed: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(audit, "is_reachable", lambda: True)
    monkeypatch.setattr(audit, "ask", lambda needed: [WEAK])
    assert audit.main() == failed
    assert "celery 5.2.1: CVE-2021-23727, mended in 5.2.2" in capsys.readouterr().out


def test_data_out_of_reach_is_said_and_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(audit, "REACHABLE", "http://127.0.0.1:1/nobody-listens")
    assert audit.main() == 0
    assert "NOT ASKED" in capsys.readouterr().out
